"""Times of every form, spoiled in every way, and the clocks of time zones."""

import random
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.kernels.native import choose_kernels
from data_prep.kernels.parsed import Chunk
from data_prep.kernels.times import zone_table
from data_prep.options.log_format import LogFormat
from tests.data_prep.kernels.generated_logs import time_cells
from tests.data_prep.kernels.slow_reader import parse_line
from tests.data_prep.kernels.test_parse import KERNELS, check

EPOCH = datetime(1970, 1, 1)
UTC = ZoneInfo("UTC")


@given(st.integers(0, 2**32))
def test_spoiled_times_are_read_alike(seed):
    """All readers agree on good cells and on those with a few bytes put in, taken away or replaced."""
    random_ = random.Random(seed)
    log_format, cells = time_cells(random_, 40)
    lines = []
    for cell in cells:
        for _ in range(random_.choice([0, 0, 1, 1, 2, 4])):
            place = random_.randint(0, len(cell))
            cell = cell[:place] + random_.choice("0159.,:-+ TZezeGMTamUcby") + cell[place + random_.randint(0, 1) :]
        line = f"1\t{cell}".encode()
        time = parse_line(line, log_format, log_format.columns)[2]["seen"]
        if not log_format.timezone or abs(time or 0) < 3_700_000_000_000:  # the years of a zone's table
            lines.append(line)
    check(lines, log_format)


@pytest.mark.parametrize(
    ("form", "zone", "cell", "expected"),
    [
        ("seconds", "", "1588889317.879", "2020-05-07 22:08:37.879"),
        ("seconds", "", "1588889317.0", "2020-05-07 22:08:37"),
        ("seconds", "", "1.588889317879E9", "2020-05-07 22:08:37.879"),
        ("seconds", "", "-1.5", "1969-12-31 23:59:58.500"),
        ("microseconds", "", "1588889317879999", "2020-05-07 22:08:37.879"),
        ("nanoseconds", "", "1.588889317879e+18", "2020-05-07 22:08:37.879"),
        ("nanoseconds", "", "1588889317879000", "bad"),  # microseconds
        ("seconds", "", "0", "none"),
        ("milliseconds", "", "-1.0", "none"),
        ("iso", "", "2020-05-07", "2020-05-07"),
        ("iso", "", "2020-05-07T22:08", "2020-05-07 22:08"),
        ("iso", "", "2020-05-07 22:08:37.879000001+02", "2020-05-07 20:08:37.879"),
        ("iso", "", "2020-05-07T22:08:37 UTC", "2020-05-07 22:08:37"),
        ("iso", "Asia/Kathmandu", "2020-05-07T22:08:37-0330", "2020-05-08 01:38:37"),
        ("iso", "Asia/Kathmandu", "1588889317879", "2020-05-07 22:08:37.879"),
        ("iso", "", "1588889317", "2020-05-07 22:08:37"),
        ("iso", "", "0", "none"),
        ("iso", "", "599999999", "bad"),  # seconds of 1989, or of another unit
        ("iso", "Europe/Berlin", "2024-07-01 12:00", "2024-07-01 10:00"),
        ("iso", "Europe/Berlin", "2024-10-27 02:30", "2024-10-27 00:30"),  # the first of two
        ("iso", "Europe/Berlin", "2024-03-31 02:30", "2024-03-31 01:30"),  # there is none: by the clock before it
        ("%d/%b/%Y:%H:%M:%S %z", "", "07/May/2020:22:08:37 +0200", "2020-05-07 20:08:37"),
        ("%a %b %d %H:%M:%S %Y", "", "thu MAY  7 22:08:37 2020", "2020-05-07 22:08:37"),
        ("%d %b %y", "", "23 February 24", "2024-02-23"),
        ("%Y%m%d%H%M%S%f", "", "20130311172101000", "2013-03-11 17:21:01"),
        ("%Y-%m-%d %H:%M:%S,%f", "", "2020-05-07 22:08:37", "2020-05-07 22:08:37"),
    ],
)
def test_times_by_example(form, zone, cell, expected):
    log_format = LogFormat(
        {"label": "label", "seen": "timestamp"}, timestamps={"seen": form}, timezone={"seen": zone} if zone else {}
    )
    line = f"1\t{cell}".encode()
    check([line], log_format)
    reason, _, cells = parse_line(line, log_format, log_format.columns)
    time = None
    if expected not in ("none", "bad"):
        time = (datetime.fromisoformat(expected) - EPOCH) // timedelta(milliseconds=1)
    assert (reason, cells["seen"]) == ("timestamp" if expected == "bad" else "", time)


def test_clocks_of_all_zones_are_zoneinfos():
    """Around every change from 1850 to 2100, in UTC and by the zone's own clock."""
    names = random.Random(0).sample(sorted(available_timezones()), 15)
    for name in [*names, "Africa/Freetown", "Asia/Gaza", "America/Recife", "Pacific/Apia"]:
        table, zone = zone_table(name), ZoneInfo(name)
        seconds = [start // 1000 + by for start in table.starts[1:].tolist() for by in (-7_000, -1, 0, 1, 7_000)]
        seconds += [random.Random(name).randint(-3_700_000_000, 4_100_000_000) for _ in range(500)]
        moments = [EPOCH.replace(tzinfo=UTC) + timedelta(seconds=second) for second in seconds]
        local = [moment.astimezone(zone).replace(tzinfo=None, fold=0) for moment in moments]
        milliseconds = np.array(seconds) * 1000
        clock = np.array([(each - EPOCH) // timedelta(milliseconds=1) for each in local])
        assert np.array_equal(table.to_local(milliseconds), clock)
        back = [(each.replace(tzinfo=zone) - EPOCH.replace(tzinfo=UTC)) // timedelta(milliseconds=1) for each in local]
        assert table.to_utc(clock).tolist() == back


@pytest.mark.parametrize("kernels", KERNELS)
def test_whole_numbers_read_like_decimals(kernels):
    """The fast path of whole numbers, and the cells that it leaves, give the same times."""
    numbers = [0, -1, 1, -2, 1_588_889_317, 4_100_000_000, 599_999_999_999, 1_588_889_317_879, 2**62, -(2**63)]
    for unit in ("seconds", "milliseconds", "microseconds", "nanoseconds"):
        log_format = LogFormat({"label": "label", "seen": "timestamp"}, timestamps={"seen": unit})
        whole, decimal = (
            choose_kernels(kernels).parse_chunk(
                Chunk(0, len(numbers), "".join(f"1\t{number}{end}\n" for number in numbers).encode()), log_format
            )
            for end in ("", ".")
        )
        assert whole.rows.row_numbers.tolist() == decimal.rows.row_numbers.tolist()
        for ours, theirs in zip(whole.rows.columns["seen"], decimal.rows.columns["seen"], strict=True):
            assert np.array_equal(ours, theirs)
