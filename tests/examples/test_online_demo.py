"""The online demo on a small log: trainer and service side by side, from the first part to the last."""

import os

import pytest

from examples.online_demo import COLUMNS, NUM_PARTS, PROJECT
from tests.programs import run_python


@pytest.mark.slow
def test_every_part_is_trained_on_and_served(tmp_path):
    environment = os.environ | {"ONLINE_DEMO_DIR": str(tmp_path / "demo"), "ONLINE_DEMO_ROWS": "40000"}
    done = run_python("-m", "examples.online_demo", cwd=PROJECT, env=environment | {"PYTHONPATH": str(PROJECT)})
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| part-")]
    assert len({row[0] for row in rows}) == len(rows) == NUM_PARTS
    for row in rows:
        assert len(row) == len(COLUMNS.split(", "))
        online, frozen, best = map(float, row[2:5])
        assert 0.5 < online < best < 1
        assert 0.5 < frozen < best
