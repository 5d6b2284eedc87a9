"""Axes of charts: where a value lies, where the ticks are, and numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Unit = Literal["number", "percent", "bytes", "seconds"]  # percent: of fractions, 0.25 is "25 %"

_STEPS = (1, 2, 2.5, 5, 10)
_SHORT = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SECONDS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


@dataclass(frozen=True)
class Axis:
    """What an axis shows: `label` says of what; `low` and `high` stay in view whatever the data are."""

    label: str = ""
    unit: Unit = "number"
    log: bool = False  # values that are not positive have no place on a logarithmic axis and are left out
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Scale:
    """An axis with its ends and ticks."""

    axis: Axis
    low: float
    high: float
    ticks: tuple[float, ...]

    def has(self, value: float) -> bool:
        """Whether a value has a place on this axis."""
        return math.isfinite(value) and (value > 0 or not self.axis.log)

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.axis.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def tick_text(self, tick: float) -> str:
        """A tick's label, short."""
        return _tick_text(tick, self.axis.unit, tick if self.axis.log else max(abs(self.low), abs(self.high)))


def make_scale(axis: Axis, values: Iterable[float], num_ticks: int) -> Scale:
    """A scale on which all values have a place, with about `num_ticks` ticks at round numbers."""
    kept = [value for value in values if math.isfinite(value) and (value > 0 or not axis.log)]
    kept += [end for end in (axis.low, axis.high) if end is not None and (end > 0 or not axis.log)]
    low, high = (min(kept), max(kept)) if kept else (1.0, 10.0)
    if axis.log:
        return _log_scale(axis, low, high, num_ticks)
    if low == high:
        room = (abs(low) or 1) / 2
        low, high = (low - room, high + room) if axis.low is None else (low, high + 2 * room)
    ticks = linear_ticks(low, high, num_ticks, axis.unit)
    if axis.low is None:
        low = min(low, ticks[0])
    if axis.high is None:
        high = max(high, ticks[-1])
    return Scale(axis, low, high, tuple(tick for tick in ticks if low <= tick <= high))


def linear_ticks(low: float, high: float, num_ticks: int, unit: Unit = "number") -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten (of bytes and times: in their unit) around [low, high]."""
    divisor, _ = _divisor(max(abs(low), abs(high)), unit)
    low, high = low / divisor, high / divisor
    raw = (high - low) / max(num_ticks, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * step for step in _STEPS if power * step >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step * divisor for i in range(first, last + 1)]


def _log_scale(axis: Axis, low: float, high: float, num_ticks: int) -> Scale:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    if first == last:
        first, last = first - 1, last + 1
    if last - first <= max(num_ticks // 3, 1):
        ticks = [step * 10.0**power for power in range(first, last + 1) for step in (1, 2, 5)]
    else:
        every = -(-(last - first) // num_ticks)
        ticks = [10.0**power for power in range(first, last + 1, every)]
    low = min(low, 10.0**first) if axis.low is None else low
    high = max(high, 10.0**last) if axis.high is None else high
    return Scale(axis, low, high, tuple(tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)))


def number_text(value: float, unit: Unit = "number") -> str:
    """A value as it stands in tables and hover titles: "45,840,617", "25.6 %", "3.1 GiB", "2.5 min"."""
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "percent":
        return f"{100 * value:.2f} %" if value == 0 or abs(value) >= 1e-4 else f"{100 * value:.2g} %"
    if unit == "number":
        return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1e5 else _digits(value)
    divisor, suffix = _divisor(abs(value), unit)
    return f"{_digits(value / divisor)} {suffix}"


def _digits(value: float) -> str:
    """Four significant digits, without the zeros at the end; no exponent between 0.0001 and a million."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        places = 3 if value == 0 else max(0, 3 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{places}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.3g}"


def _tick_text(tick: float, unit: Unit, largest: float) -> str:
    """All ticks of a linear axis are in the unit of its `largest` end."""
    if unit == "percent":
        return f"{round(100 * tick, 10):g} %"
    if unit == "number":
        if largest < 1e4:
            return f"{round(tick, 12):,g}"
        divisor, suffix = next((d, s) for d, s in _SHORT if largest >= d)
        return f"{round(tick / divisor, 10):g}{suffix if tick else ''}"
    divisor, suffix = _divisor(abs(largest), unit)
    return f"{round(tick / divisor, 10):,g} {suffix}" if tick else "0"


def _divisor(largest: float, unit: Unit) -> tuple[float, str]:
    """The unit in which such a value reads well."""
    if unit == "bytes":
        return next(((float(d), s) for d, s in _BYTES if largest >= d), (1.0, "B"))
    if unit == "seconds":
        return next(((d, s) for d, s in _SECONDS if largest >= (2 * d if d > 1 else d)), (1.0, "s"))
    return (0.01, "%") if unit == "percent" else (1.0, "")
