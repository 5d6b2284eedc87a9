import math

import pytest

from common.text import natural_order, number_text, readable_unit, shortened


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
