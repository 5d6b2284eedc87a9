"""What a user has to write himself is short, packages are pinned, and each door is tried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.house import code_lines

MOST_LINES = 30  # of a program, without its imports
HERE = Path(__file__).parent
DOORS = sorted(path.parent.name for path in HERE.glob("*/test_door.py"))


@pytest.mark.parametrize("door", DOORS)
def test_programs_are_short_and_packages_pinned(door):
    programs = [path for path in (HERE / door).glob("*.py") if not path.name.startswith("test_")]
    for program in programs:
        imports = re.findall(r"(?m)^(?:import|from) .*", program.read_text())
        assert code_lines([program]) - len(imports) <= MOST_LINES, program.name
    requirements = HERE / door / "requirements.txt"
    lines = requirements.read_text().splitlines() if requirements.exists() else []
    assert [line for line in lines if not re.fullmatch(r"#.*|[\w.\[\]-]+==[\w.]+( ;.*)?|", line)] == []


def test_every_folder_is_tried():
    run = (HERE / "run.py").read_text()
    folders = {path.parent.name for path in HERE.glob("*/*.*")} - {"__pycache__"}
    assert folders == set(DOORS) == set(re.findall(r'^    "(\w+)": Door\(', run, re.MULTILINE))
