import math

import pytest

from common.html.axes import Axis, linear_ticks, make_scale, number_text


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (3, 97, [0, 20, 40, 60, 80, 100]),
        (-0.03, 0.02, [-0.03, -0.02, -0.01, 0, 0.01, 0.02]),
    ],
)
def test_ticks_are_round_and_span_the_data(low, high, expected):
    assert linear_ticks(low, high, 5) == pytest.approx(expected)


def test_ticks_of_times_and_bytes_are_round_in_their_own_unit():
    assert linear_ticks(0, 600, 5, "seconds") == [0, 120, 240, 360, 480, 600]
    assert linear_ticks(0, 4 << 30, 4, "bytes") == [i << 30 for i in range(5)]


def test_every_value_has_a_place_between_the_ends():
    values = [0.3, 17, 5_000_000]
    for axis in (Axis(), Axis(log=True)):
        places = [make_scale(axis, values, 5).place(value) for value in values]
        assert places == sorted(places) and places[0] >= 0 and places[-1] <= 1


def test_a_logarithmic_axis_has_no_place_for_zero():
    scale = make_scale(Axis(log=True), [0, 1, 1000], 5)
    assert not scale.has(0) and scale.has(1)
    assert scale.place(10) - scale.place(1) == pytest.approx(scale.place(100) - scale.place(10))


@pytest.mark.parametrize("values", [[], [5], [0], [math.nan], [math.inf, 3], [-2, -2]])
@pytest.mark.parametrize("log", [False, True])
def test_a_scale_of_one_value_or_none_has_a_width(values, log):
    scale = make_scale(Axis(log=log), values, 5)
    assert scale.low < scale.high and scale.ticks


@pytest.mark.parametrize(
    ("unit", "values", "texts"),
    [
        ("number", [0, 5e6, 1e7], ["0", "2M", "4M", "6M", "8M", "10M"]),
        ("number", [0, 2500], ["0", "500", "1,000", "1,500", "2,000", "2,500"]),
        ("percent", [0, 0.5], ["0 %", "10 %", "20 %", "30 %", "40 %", "50 %"]),
        ("bytes", [0, 5 << 30], ["0", "1 GiB", "2 GiB", "3 GiB", "4 GiB", "5 GiB"]),
        ("seconds", [0, 300], ["0", "1 min", "2 min", "3 min", "4 min", "5 min"]),
    ],
)
def test_ticks_are_told_in_one_unit(unit, values, texts):
    scale = make_scale(Axis(unit=unit), values, 5)
    assert [scale.tick_text(tick) for tick in scale.ticks] == texts


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
        (1e-9, "number", "1e-09"),
        (0, "percent", "0.00 %"),
        (1, "percent", "100.00 %"),
        (0.0000123, "percent", "0.0012 %"),
    ],
)
def test_numbers_as_people_read_them(value, unit, text):
    assert number_text(value, unit) == text
