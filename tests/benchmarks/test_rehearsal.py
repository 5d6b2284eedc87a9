"""benchmarks/end_to_end/rehearsal.py: stages that are done are kept, what they take is measured, and both are shown."""

import argparse
import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.end_to_end import rehearsal
from benchmarks.end_to_end.rehearsal import Rehearsal
from benchmarks.harness.timing import metered

EATER = """
import time
eaten = b"x" * (200 << 20)
while time.process_time() < 1:
    pass
"""


def open_rehearsal(folder, rows=1000):
    return Rehearsal(folder, argparse.Namespace(rows=rows))


def test_a_stage_that_is_done_is_not_run_again(tmp_path):
    open_rehearsal(tmp_path).stage("export", lambda of: {"disk_bytes": 5})
    open_rehearsal(tmp_path).stage("export", lambda of: pytest.fail("it was done"))


def test_a_stage_that_was_stopped_is_run_again_and_marked(tmp_path):
    def stopped(of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_rehearsal(tmp_path).stage("train", stopped)
    again = open_rehearsal(tmp_path)
    again.stage("train", lambda of: {"steps": 7})
    assert again.content["stages"]["train"]["found"] == {"steps": 7}
    assert again.content["stages"]["train"]["resumed"]
    assert "train (from where it was stopped)" in rehearsal.section(again.content)


def test_another_number_of_rows_is_refused(tmp_path):
    open_rehearsal(tmp_path).stage("serve", lambda of: {})
    with pytest.raises(SystemExit, match=r"holds a rehearsal of 1,000 rows"):
        open_rehearsal(tmp_path, rows=2000)


def test_time_and_memory_are_those_of_all_processes_of_a_stage():
    with metered() as taken:
        both = [subprocess.Popen([sys.executable, "-c", EATER]) for _ in range(2)]
        assert [process.wait() for process in both] == [0, 0]
    assert taken.cpu_seconds > 1.5
    assert taken.peak_mib > 400


def test_a_command_that_fails_ends_the_rehearsal_with_its_output(tmp_path):
    with pytest.raises(SystemExit, match=r"(?s)the folder does not exist.*data_prep inspect no-such ended with 2"):
        open_rehearsal(tmp_path).run("data_prep", "inspect", "no-such")


def test_lines_are_those_of_the_numbers(tmp_path):
    (tmp_path / "log.txt").write_text("a\nb\nc\nd\n", "utf-8")
    rehearsal.write_lines(tmp_path / "log.txt", np.array([0, 2]), tmp_path / "test.txt")
    assert (tmp_path / "test.txt").read_text("utf-8") == "a\nc\n"


def test_the_newest_step_and_checkpoint_of_a_run(tmp_path):
    assert rehearsal.newest_step(tmp_path) == rehearsal.newest_checkpoint(tmp_path) == 0
    assert rehearsal.total_steps(tmp_path) == float("inf")
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 20, "seconds": 1.5}) + "\n", "utf-8")
    for name in ("step-00000010/manifest.json", "step-00000020/tower.npz"):  # the second one is not whole
        (tmp_path / "checkpoints" / name).parent.mkdir(parents=True)
        (tmp_path / "checkpoints" / name).touch()
    assert (rehearsal.newest_step(tmp_path), rehearsal.newest_checkpoint(tmp_path)) == (20, 10)


def test_the_page_and_the_section_show_what_was_found(tmp_path):
    of = open_rehearsal(tmp_path)
    of.stage("evaluate", lambda of: {"disk_bytes": 3 << 30, "AUC on test": 0.75})
    of.stage("regression", lambda of: {"best possible": {"all": {"rows": 9, "auc": 0.8125, "log_loss": 0.5}}})
    for text in (rehearsal.page(of.content), rehearsal.section(of.content)):
        assert "3 GiB" in text
        assert "AUC on test: 0.75" in text
        assert "all: 0.8125 AUC, 0.5000 log loss" in text
