"""A job that cannot start reports why, in one line, before the first step."""

import re

import pytest

from tests.programs import run_program


def test_an_error_of_one_rank_is_reported_first_and_ends_all(run, tmp_path):
    (tmp_path / "device_1").mkdir()
    (tmp_path / "device_1" / "run.lock").mkdir()
    status, errors = run(tmp_path, 2)
    assert status == 2
    reported = [line for line in errors.splitlines() if "error: " in line]
    assert len(reported) == 1
    assert reported[0].startswith("rank 1: error: nothing can be written to")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("localhost slots=1\n", r"error: host file hosts has 1 slots \(localhost 1\), 2 ranks need one each"),
        ("host.invalid slots=2\n", "error: host host.invalid of the host file cannot be used: 'ssh host.invalid true"),
    ],
)
def test_a_wrong_host_file_is_one_line(run, tmp_path, content, message):
    """Other errors of the file are in tests/app/distributed/test_mpirun.py."""
    (tmp_path / "hosts").write_text(content)
    status, errors = run(tmp_path, 2, HOSTFILE="hosts")
    assert status != 0
    assert len(re.findall(message, errors)) == 1, errors
    assert not (tmp_path / "device_0").exists()


def test_without_mpirun_the_launcher_explains_how_to_get_it(run, tmp_path):
    status, errors = run(tmp_path, 2, MPIRUN="/nowhere/mpirun")
    assert status == 2
    assert errors.count("\n") == 1
    assert "error: several ranks need mpirun, and /nowhere/mpirun was found" in errors or "pip install" in errors


def test_without_mpi_the_launcher_explains_how_to_get_it(run, tmp_path, without_mpi):
    status, errors = run(tmp_path, 2, **without_mpi)
    assert status == 2
    assert errors.count("\n") == 1
    assert re.search(r"error: several ranks need MPI, .* \(libmpi.so.40: cannot open .* pip install mpi4py", errors)


def test_stock_tables_are_for_one_rank(run, tmp_path):
    status, errors = run(tmp_path, 2, "tables.backend=stock")
    assert status == 2
    assert "error: tables.backend=stock is for one rank, found 2" in errors


def test_a_split_without_rows_is_reported_once(two_ranks, project, command_environment):
    command = ("bash", project / "scripts" / "run_eval.sh", "--ranks", 3, "--split", "tset")
    done = run_program(*command, cwd=two_ranks, env=command_environment, status=2)
    assert re.fullmatch(
        r"error: .* has no rows in split 'tset'; the splits with rows: train, valid, test\n", done.stderr
    )
