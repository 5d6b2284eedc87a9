import ast
import math
from pathlib import Path

import pytest

from common.text import natural_order, number_text, printable, readable_unit, shortened, show


def test_the_natural_order_counts_numbers_as_numbers():
    names = ["²", "b", "a10b2", "a9", "a10b10", "a"]  # ² is a digit to Python, but no number
    assert sorted(names, key=natural_order) == ["a", "a9", "a10b2", "a10b10", "b", "²"]


def test_a_long_list_is_shortened():
    assert shortened(["a", "b", "c"], 3) == "a, b, c"
    assert shortened(["a", "b", "c"], 2, between="; ") == "a; b and 1 more"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (45_840_617, "number", "45,840,617"),
        (0.687392, "number", "0.6874"),
        (0.25622, "percent", "25.62 %"),
        (3 * 2**30, "bytes", "3 GiB"),
        (150, "seconds", "2.5 min"),
        (0.0123, "seconds", "12.3 ms"),
        (math.nan, "number", "–"),
        (None, "bytes", "–"),
        (1e-9, "number", "1e-09"),
        (0, "percent", "0.00 %"),
        (1, "percent", "100.00 %"),
        (0.0000123, "percent", "0.0012 %"),
    ],
)
def test_numbers_as_people_read_them(value, unit, text):
    assert number_text(value, unit) == text


def test_a_unit_fits_the_largest_value():
    assert readable_unit(3 << 20, "bytes") == (1 << 20, "MiB")
    assert readable_unit(119, "seconds") == (1, "s") and readable_unit(120, "seconds") == (60, "min")
    assert readable_unit(0, "bytes") == (1, "B") and readable_unit(1e9, "number") == (1, "")


ESCAPES = "\x1b[2J\x1b]0;title\x07\r\x7f\x9b31m\u202e"


def test_a_printed_value_moves_no_cursor(capsys):
    show(f"columns:\tä €\n  site {ESCAPES}")
    printed = capsys.readouterr().out
    assert printed == "columns:\tä €\n  site \\x1b[2J\\x1b]0;title\\x07\\r\\x7f\\x9b31m\\u202e\n"
    assert printable(printed) == printed


PRINTS_WITHOUT_VALUES = {
    "app/training/step/precision.py",  # JSON for the process that started it
    "app/distributed/mpirun.py",  # advice in its own words
    "common/arguments.py",  # the release
    "common/packages.py",  # names of packages, before anything is imported
    "common/text.py",
}


def test_every_command_prints_through_show():
    root = Path(__file__).parents[2]
    printing = {
        str(path.relative_to(root))
        for package in ("app", "data_prep", "common")
        for path in (root / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert printing == PRINTS_WITHOUT_VALUES
