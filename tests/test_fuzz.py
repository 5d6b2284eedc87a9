"""A failure that `make fuzz` finds is saved, with the command that finds it again."""

import shlex

from tests.fuzz import OVER, drawing_tests, run_round, save_failure
from tests.programs import run_program

PROFILE = "import hypothesis\nhypothesis.settings.register_profile('fuzz', database=None)\n"
TEST = """
import os
from hypothesis import given, strategies as st

@given(st.integers(0, 10**9))
def test_a_property(number):
    {body}
"""


def make_test(folder, body):
    (folder / "conftest.py").write_text(PROFILE)
    (folder / "test_numbers.py").write_text(TEST.format(body=body))
    return drawing_tests(folder, seed=7)


def test_a_failure_is_saved_and_repeated_by_its_command(tmp_path):
    tests = make_test(tmp_path, "assert number % 7")
    path = save_failure(tmp_path / "found", 7, tests, *run_round(7, tests, 60))
    text = path.read_text()
    assert "assert (0 % 7)" in text
    (command,) = [line for line in text.splitlines() if "--hypothesis-seed=7" in line]
    assert "assert (0 % 7)" in run_program(*shlex.split(command), status=1).stdout


def test_a_crash_is_saved_as_well(tmp_path):
    tests = make_test(tmp_path, "os.abort()")
    path = save_failure(tmp_path / "found", 7, tests, *run_round(7, tests, 60))
    assert "status -6; to repeat:" in path.read_text()
    assert str(tmp_path / "test_numbers.py") in path.read_text()


def test_the_end_of_the_time_is_no_failure(tmp_path):
    tests = make_test(tmp_path, "import time; time.sleep(100)")
    status, output = run_round(7, tests, 3)
    assert status in OVER  # on a busy machine it may come before pytest listens
    assert save_failure(tmp_path / "found", 7, tests, status, output) is None


def test_all_that_draws_is_found(project):
    """State machines have no `@given`."""
    found = {path.rsplit("/", 1)[-1] for path in drawing_tests(project / "tests", seed=7)}
    assert {"test_state_machine.py", "test_third_voice.py", "test_parse.py"} <= found
    assert "test_config.py" not in found
