"""Parse the texts of times in cells into milliseconds since 1970 (UTC), and convert times between time zones."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from data_prep.options.kinds import ISO, LIKELY_SECONDS, MONTHS, SECONDS, UNITS, time_pattern

# Result of parsing cells [n]: their values, a mask of the cells that are not missing, and a mask of the good cells,
# whose rows are not rejected because of them.
Parsed: TypeAlias = tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.bool_]]

# First millisecond of the year 1 and last millisecond of the year 9999, counted from 1970.
FIRST_TIME, LAST_TIME = -62_135_596_800_000, 253_402_300_799_999
_NUMBER = re.compile(rb"(-?)([0-9]{1,19})(?:\.([0-9]{0,18}))?(?:[eE]([-+]?[0-9]{1,2}))?")
_NUMBER_DIGITS = 19  # Maximum number of digits of a time that is a number. Any number of 19 digits fits in 64 bits.
# Range of times that are likely in a log, in milliseconds since 1970: the years 1989 to 2099.
_LIKELY = range(LIKELY_SECONDS.start * 1000, LIKELY_SECONDS.stop * 1000)
# Changes of a zone's clock are searched for from 1850 to 2100 in steps of three days (all in seconds since 1970). No
# zone changes its clock twice within three days.
_FIRST_CHANGE, _LAST_CHANGE, _STEP = -3_786_912_000, 4_102_444_800, 3 * 86_400


@dataclass(frozen=True)
class ZoneTable:
    """The offsets of a time zone's clock from UTC.

    Each offset is valid from its start until the start of the next one.
    """

    # Time in UTC, in milliseconds since 1970, from which each offset is valid. The first is the smallest int64.
    starts: NDArray[np.int64]
    offsets: NDArray[np.int64]  # Milliseconds by which the clock is ahead of UTC.

    @functools.cached_property
    def local_starts(self) -> NDArray[np.int64]:
        """The times from which the offsets are valid, in milliseconds since 1970 by the zone's own clock.

        When the clock is set back, an hour occurs twice, and a time in it is taken as a time in the first of the two
        hours. When the clock is set forward, an hour is skipped, and a time in it is read with the offset before the
        change. Both rules are those of `zoneinfo` (fold=0 of PEP 495).
        """
        changes = self.starts[1:] + np.maximum(self.offsets[1:], self.offsets[:-1])
        return np.concatenate([self.starts[:1], changes])

    def to_utc(self, local: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return times by the zone's own clock, `local`, as times in UTC. Both are in milliseconds since 1970."""
        return local - self.offsets[np.searchsorted(self.local_starts, local, side="right") - 1]

    def to_local(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `times` in UTC as times by the zone's own clock. Both are in milliseconds since 1970."""
        return times + self.offsets[np.searchsorted(self.starts, times, side="right") - 1]


@functools.lru_cache(maxsize=16)
def zone_table(name: str) -> ZoneTable:
    """Return the offsets from UTC of the IANA time zone `name`, such as Europe/Berlin. The name "" means UTC.

    The offset of 1850 is also used before 1850, and the offset of 2100 after 2100. Raise KeyError or ValueError if the
    zone is unknown.
    """
    starts, offsets = [np.iinfo(np.int64).min], [0]
    if name:
        zone = ZoneInfo(name)

        def offset(second: int) -> int:
            ahead = datetime.fromtimestamp(second, zone).utcoffset()
            assert ahead is not None
            return int(ahead.total_seconds()) * 1000

        offsets = [offset(_FIRST_CHANGE)]
        for step in range(_FIRST_CHANGE, _LAST_CHANGE, _STEP):
            low, high = step, step + _STEP
            if (new := offset(high)) == offsets[-1]:
                continue
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if offset(middle) == new else (middle, high)
            starts.append(high * 1000)
            offsets.append(new)
    return ZoneTable(np.array(starts, np.int64), np.array(offsets, np.int64))


def parse_times(cells: Sequence[bytes], form: str, zone: str) -> Parsed:
    """Parse non-empty cells [n] as times, one cell at a time.

    Return the times in milliseconds since 1970 (UTC), a mask of the cells that are not missing, and a mask of the good
    cells. A cell is good if it is a time of the years 1 to 9999, or 0 or -1, which mean that the time is missing.
    `form` is a value of LogFormat.timestamps. `zone` is the time zone of cells that do not name one.
    """
    time_of = {cell: _time_of(cell, form) for cell in set(cells)}  # Each distinct cell is parsed once.
    times = np.array([time_of[cell].milliseconds for cell in cells], np.int64)
    are_local = np.array([time_of[cell].is_local for cell in cells], np.bool_)
    times[are_local] = zone_table(zone).to_utc(times[are_local])
    present = np.array([time_of[cell] is not _NO_TIME for cell in cells], np.bool_)
    return times, present, ~present | are_in_range(times, form)


def parse_whole_numbers(numbers: NDArray[np.int64], form: str) -> Parsed:
    """Convert whole numbers [n], which count time since 1970 in the unit `form`, to milliseconds since 1970.

    Return the times, a mask of the numbers that do not mean a missing time, and a mask of the numbers that are
    good: they mean a missing time, or a time in the accepted range.
    """
    unit, power = 10 ** abs(UNITS[form]), UNITS[form]
    within = np.clip(numbers, FIRST_TIME // unit - 1, LAST_TIME // unit + 1)
    times = within * unit if power > 0 else numbers // unit
    present = (numbers != 0) & (numbers != -1)
    return times, present, ~present | are_in_range(times, form)


class _Time(NamedTuple):
    milliseconds: int
    is_local: bool = False  # True if the time is by the clock of the column's time zone, and not in UTC.


_NO_TIME, _BAD = _Time(0), _Time(LAST_TIME + 1)


def _time_of(cell: bytes, form: str) -> _Time:
    if form in UNITS or form == ISO:
        number = _NUMBER.fullmatch(cell)
        if number is not None:
            return _time_of_number(number, form)
        if form in UNITS:
            return _BAD
    match = time_pattern(form).fullmatch(cell)
    if match is None:
        return _BAD
    parts = {code: text for code, text in match.groupdict().items() if text is not None}
    half, zone, month = (parts.pop(code, b"").lower() for code in ("p", "z", "b"))
    parts.pop("a", None)
    milliseconds = int(parts.pop("f", b"0").ljust(3, b"0")[:3])
    numbers = {code: int(digits) for code, digits in parts.items()}
    if month:
        numbers["m"] = 1 + next(place for place, name in enumerate(MONTHS) if name.startswith(month[:3].decode()))
    if half:
        if not 1 <= numbers["I"] <= 12:
            return _BAD
        numbers["H"] = numbers["I"] % 12 + 12 * (half == b"pm")
    # POSIX defines that years of two digits from 69 on are in the 20th century.
    year = numbers["Y"] if "Y" in numbers else numbers["y"] + (1900 if numbers["y"] >= 69 else 2000)
    hour, minute, second = (numbers.get(code, 0) for code in "HMS")
    try:
        moment = datetime(year, numbers["m"], numbers["d"], hour, minute, second, tzinfo=UTC)
    except ValueError:
        return _BAD
    ahead = 0
    if zone[:1] in (b"+", b"-"):
        ahead = int(zone[:1] + b"1") * (60 * int(zone[1:3]) + int(zone[-2:] if len(zone) > 3 else 0)) * 60_000
    return _Time(int(moment.timestamp()) * 1000 + milliseconds - ahead, is_local=not zone)


def _time_of_number(number: re.Match[bytes], form: str) -> _Time:
    """Convert a written number that counts time since 1970 in the unit `form` to milliseconds since 1970, rounded down.

    If the form is iso, the unit is guessed: it is the first unit, from seconds to nanoseconds, in which the number is a
    time before 2100.
    """
    sign, whole, fraction, exponent = number.groups(default=b"")
    if len(whole + fraction) > _NUMBER_DIGITS:
        return _BAD
    digits, power = int(sign + whole + fraction), int(exponent or 0) - len(fraction)
    if digits == 0 or (power <= 0 and digits == -(10**-power)):  # In logs, 0 and -1 mean that the time is missing.
        return _NO_TIME

    def time_in(unit: int) -> int:
        shift = power + unit
        return digits * 10**shift if shift >= 0 else digits // 10**-shift

    if form in UNITS:
        time = time_in(UNITS[form])
    else:
        unit = next((unit for unit in UNITS.values() if time_in(unit) < _LIKELY.stop), 0)
        time = time_in(unit)
        # The cell is bad if its number is negative, too large for any unit, or a time before 1989 in seconds, because
        # it may then be a time in another unit.
        if digits < 0 or time >= _LIKELY.stop or (unit == UNITS[SECONDS] and time < _LIKELY.start):
            return _BAD
    return _Time(time) if FIRST_TIME <= time <= LAST_TIME else _BAD


def are_in_range(times: NDArray[np.int64], form: str) -> NDArray[np.bool_]:
    """Return a mask of `times` [n] that are plausible in a column whose times are written in the given form.

    A time must be in the years 1 to 9999. The number that is written in the cell must not be a likely time in a coarser
    unit: a column of milliseconds, for example, must not contain a likely number of seconds.
    """
    good = (times >= FIRST_TIME) & (times <= LAST_TIME)
    for coarser in range(1, 2 - UNITS.get(form, 3) // 3):
        good &= (times < _LIKELY.start // 1000**coarser) | (times >= _LIKELY.stop // 1000**coarser)
    return good
