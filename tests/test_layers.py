"""Imports point down: a line of LAYERS may import from the lines below it, names on one line know nothing of one
another.

Imports inside functions count. No folder has more entries than can be seen in one look.
"""

import ast
from pathlib import Path

import pytest

from benchmarks.house import TOPS, House, circles

PROJECT = Path(__file__).parents[1]
LAYERS = [
    "app.__main__ | app.api",
    "app.cli",
    "app.online",
    "app.scoring.trained",
    "app.training | app.serving",
    "app.run | app.scoring",
    "app.checkpoint",
    "app.distributed | app.model | app.evaluation",
    "app.tables",
    "app.config",
    "data_prep.__main__",
    "data_prep.pipeline",
    "data_prep.report | data_prep.checks | data_prep.encoding",
    "data_prep.raw_log | data_prep.statistics",
    "data_prep.kernels | data_prep.execution | data_prep.sources",
    "data_prep.prepared",
    "data_prep.options",
    "common",
]
FLOORS = {name.strip(): floor for floor, line in enumerate(LAYERS) for name in line.split("|")}
DOORS = {"data_prep.options", "data_prep.prepared", "data_prep.encoding"}  # all that app may know of data_prep
BEYOND = {
    # One face of both packages.
    ("app.api", "data_prep.checks"),
    ("app.api", "data_prep.pipeline"),
    # The baseline is also fitted with the cross that suggest-crosses finds.
    ("app.cli.baseline", "data_prep.checks"),
    # The parts of a log that comes are read as a preparation reads it.
    ("app.online.log_parts", "data_prep.raw_log"),
    ("app.online.online_trainer", "data_prep.raw_log"),
}
MOST_ENTRIES = {"app": 14}  # of a folder; 12 elsewhere


FOLDERS = sorted({path.parent for top in TOPS for path in (PROJECT / top).rglob("*.py")})


@pytest.fixture(scope="module")
def house():
    """The project's files and imports, not read as tests are collected: that takes seconds."""
    return House(PROJECT)


def package(module):
    """Return the place of a module in LAYERS: the longest name there that it has or lies in.

    A module without a place is named after its entry of app/ or data_prep/.
    """
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in FLOORS), ".".join(parts[:2]))


@pytest.fixture(scope="module")
def between(house):
    """The imports of one package from another, as pairs of modules."""
    return [(a, b) for a, targets in house.imports.items() for b in targets if package(a) != package(b)]


def test_every_package_has_a_place(house):
    tops = {"app", "data_prep"}  # their own __init__.py
    assert {package(module) for module in house.paths} - tops <= FLOORS.keys()
    # Ten, because the imports of app form a chain of ten: main, cli, online, trained, training, run, checkpoint,
    # distributed, tables and config.
    assert sum(line.startswith("app.") for line in LAYERS) <= 10
    assert sum(line.startswith("data_prep.") for line in LAYERS) <= 7


def test_imports_point_down(between):
    assert [(a, b) for a, b in between if FLOORS[package(b)] <= FLOORS[package(a)]] == []


def test_app_sees_three_doors_of_data_prep(between):
    past = [(a, b) for a, b in between if a.startswith("app.") and b.startswith("data_prep.")]
    assert [(a, b) for a, b in past if package(b) not in DOORS and (a, package(b)) not in BEYOND] == []


def test_no_file_is_in_a_circle(house):
    assert circles(house.imports) == []


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_a_folder_is_seen_in_one_look(folder):
    entries = [path for path in folder.iterdir() if path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py")))]
    entries = [path for path in entries if path.name not in ("__init__.py", "__pycache__")]
    assert len(entries) <= MOST_ENTRIES.get(str(folder.relative_to(PROJECT)), 12)


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_a_face_names_the_files_of_its_package(folder):
    if folder.name in ("app", "data_prep"):
        return
    source = (folder / "__init__.py").read_text()
    if "iter_modules" in source:  # files that are found by listing the folder
        return
    face = ast.get_docstring(ast.parse(source)) or ""
    for path in folder.glob("*.py"):
        assert path.stem == "__init__" or path.stem in face, f"{folder}/__init__.py does not name {path.name}"


def test_the_tests_mirror_the_packages():
    for top in ("app", "data_prep", "common"):
        for path in (PROJECT / "tests" / top).rglob("test_*.py"):
            assert (PROJECT / path.parent.relative_to(PROJECT / "tests")).is_dir(), path
