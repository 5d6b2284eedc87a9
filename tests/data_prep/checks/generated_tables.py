"""Tables like some that others wrote: columns of codes as integers, among amounts, with what the label follows."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

START = 1_588_889_317  # 2020-05-07 22:08:37 UTC


def _clicks(random, logits, rate):
    logits = logits - np.quantile(logits, 1 - rate)
    return (random.random(len(logits)) < 1 / (1 + np.exp(-1.5 * logits))).astype(int)


def access_table(num_rows=32_000, seed=1):
    """Nine columns of codes, label first: as a challenge on access of employees; (columns, codes, amounts)."""
    random = np.random.default_rng(seed)
    columns, logits = {}, np.zeros(num_rows)
    sizes = {"RESOURCE": 7000, "MGR_ID": 4000, "ROLE_1": 128, "ROLE_2": 177, "DEPT": 449, "TITLE": 343, "FAMILY": 67}
    for name, size in {**sizes, "DESC": 2358, "ROLE_CODE": 343}.items():
        ranks = np.minimum(random.zipf(1.3, num_rows) - 1, size - 1)
        columns[name] = random.choice(np.arange(3_000, 311_000), size, replace=False)[ranks]
        logits += random.normal(0, 0.7, size)[ranks]
    return {"ACTION": _clicks(random, logits, 0.8), **columns}, [*columns], []


def ad_table(num_rows=30_000, seed=2):
    """Ads that were shown: small codes, large ones, an hour and amounts; (columns, codes, amounts)."""
    random = np.random.default_rng(seed)
    columns, logits = {}, random.normal(0, 0.3, num_rows)
    for name, size in {"cms": 97, "age_level": 7, "pvalue": 4, "shopping_level": 3, "position": 9, "hour": 24}.items():
        columns[name] = random.integers(0, size, num_rows)
        logits += random.normal(0, 0.5, size)[columns[name]]
    for name, size in {"brand": 3_000, "cate": 600, "campaign": 5_000}.items():
        ranks = np.minimum(random.zipf(1.3, num_rows) - 1, size - 1)
        columns[name] = random.choice(np.arange(1, 500_000), size, replace=False)[ranks]
        logits += random.normal(0, 0.6, size)[ranks]
    amounts = {"seconds": random.geometric(0.02, num_rows), "bid": random.integers(1, 4_000, num_rows)}
    logits += 0.4 * np.log(amounts["seconds"]) - amounts["bid"] / 3_000
    return {**columns, **amounts, "clk": _clicks(random, logits, 0.2)}, [*columns], [*amounts]


def write_csv(path, columns, separator=","):
    rows = zip(*columns.values(), strict=True)
    lines = [separator.join(columns), *(separator.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


HEADERS = (
    *("names", "numbers", "a gap", "rows end", "both end", "names end", "again", "places", "title"),
    *("none", "none, like others", "none, a mark"),
)


def laid_out_text(seed, separator=","):
    """The text of a table with or without a line of names, of one of HEADERS; and its names, or None, and its rows."""
    random = np.random.default_rng(seed)
    num_rows, layout = 300, HEADERS[seed % len(HEADERS)]
    kinds = {
        "amount": lambda: np.round(random.gamma(2, 30, num_rows), 2),
        "count": lambda: random.integers(0, 90, num_rows),
        "site": lambda: np.array([f"s{number}" for number in random.integers(0, 9, num_rows)]),
        "word": lambda: random.choice(["north", "south", "west"], num_rows),
        "seen": lambda: np.array([f"2024-03-{day:02}" for day in random.integers(1, 28, num_rows)]),
        "city": lambda: random.choice(["Köln", "Zürich", "Málaga"], num_rows),
    }
    drawn = random.choice([*kinds], random.integers(2, 6))
    columns = [random.integers(0, 2, num_rows), random.integers(0, 5, num_rows), *(kinds[kind]() for kind in drawn)]
    names = ["click", "code", *(f"{kind} {place}" for place, kind in enumerate(drawn))]
    rows = [list(map(str, row)) for row in zip(*columns, strict=True)]
    if layout == "numbers":
        names[2:] = [str(1_000 + place) for place in range(len(drawn))]
    elif layout == "places":
        names = [str(place) for place in range(len(names))]
    elif layout == "a gap":
        names[-1] = ""
    elif layout == "none, like others":  # its cells are alike, and in other rows
        rows[0][:2] = ["1", "1"]
    elif layout == "none, a mark":
        rows[0][-1] = random.choice(["?", "NULL", "-", "unknown"])
    ends = separator * (layout in ("rows end", "both end")) * int(random.integers(1, 3))
    lines = [separator.join(row) + ends for row in rows]
    header = separator.join(names) + separator * (layout in ("names end", "both end"))
    if layout == "again":
        lines.insert(100, header)
    if layout == "title":
        header = f"Clicks of March{separator}2024{separator * (len(names) - 2)}\n{header}"
    text = "\n".join([*([] if layout.startswith("none") else [header]), *lines]) + "\n"
    return text, None if layout.startswith("none") else [name for name in names if name], num_rows


def _tags(random):
    return [f"t{number}" for number in random.integers(0, 9, random.integers(1, 4))]


def _clock(form):
    return lambda r, t: datetime.fromtimestamp(t, UTC).strftime(form)


class Style(NamedTuple):
    """Columns such as others wrote, by how their cells are written."""

    name: str  # Some names decide the kind.
    cell: Callable[[np.random.Generator, int], object]  # A cell, by a generator and the row's time in seconds.
    kind: str  # Or "" if the label's chance decides it.
    form: str = ""  # Form of the times.
    remark: str = ""  # A part of the reason.


TIMES = [  # name, cells, form
    ("x", lambda r, t: f"{t}.{r.integers(1, 1000):03}", "seconds"),
    ("time", lambda r, t: f"{t}.0", "seconds"),
    ("time", lambda r, t: r.choice(["-1", *[str(t)] * 19]), "seconds"),
    ("created_at", lambda r, t: r.choice(["0", *[str(t)] * 19]), "seconds"),
    ("event_ts", lambda r, t: f"1.{t % 10**9}E9", "seconds"),
    ("x", lambda r, t: f"{t}{r.integers(1000):03}", "milliseconds"),
    ("x", lambda r, t: f"{t}{r.integers(10**6):06}", "microseconds"),
    ("x", lambda r, t: f"{t}{r.integers(10**9):09}", "nanoseconds"),
    ("time", lambda r, t: f"{2_026_032_000 + r.integers(10, 10_000)}", "seconds"),
    ("time", lambda r, t: f"202603{r.integers(10, 29)}{r.integers(10, 24)}", "%Y%m%d%H"),  # not of 2034
    ("time", lambda r, t: f"202603{r.integers(10, 29)}0759", "%Y%m%d%H%M"),
    ("day", _clock("%Y%m%d.0"), "%Y%m%d.0"),
    ("hour", _clock("%y%m%d%H"), "%y%m%d%H"),
    ("x", lambda r, t: _clock("%Y%m%d%H%M%S")(r, t) + f"{r.integers(1000):03}", "%Y%m%d%H%M%S%f"),
    ("x", lambda r, t: _clock("%Y%m%d%H%M%S")(r, t) + f"{r.integers(10**6):06}", "%Y%m%d%H%M%S%f"),
    ("x", _clock("%Y-%m-%d-%H"), "%Y-%m-%d-%H"),
    ("x", _clock("%Y%m%d_%H%M%S"), "%Y%m%d_%H%M%S"),
    ("date", lambda r, t: f"20-05-{r.integers(7, 28):02}", "%y-%m-%d"),
    ("date", lambda r, t: f"{r.integers(7, 28):02}-05-20", "%d-%m-%y"),
    ("date", _clock("%y-%m-%d"), "%y-%m-%d"),
    ("x", lambda r, t: f"2026-03-{r.integers(10, 29)} 07:59:00 +0{r.integers(1, 3)}00", "iso"),
    ("x", lambda r, t: f"2026-03-{r.integers(10, 29)}T07:59:00{r.choice(['', '.125'])}Z", "iso"),
    ("x", lambda r, t: _clock("%Y-%m-%d %H:%M:%S")(r, t) + r.choice(["", ".125"]), "iso"),
    ("x", lambda r, t: f"2026/03/{r.integers(10, 29)} 07:59:00{r.choice(['', ',125'])}", "%Y/%m/%d %H:%M:%S,%f"),
    ("x", _clock("%d/%b/%Y:%H:%M:%S +0000"), "%d/%b/%Y:%H:%M:%S %z"),
    ("x", _clock("%a, %d %b %Y %H:%M:%S GMT"), "%a, %d %b %Y %H:%M:%S %z"),
    ("x", _clock("%a %b %e %H:%M:%S %Y"), "%a %b %d %H:%M:%S %Y"),
    ("x", _clock("%Y%m%dT%H%M%SZ"), "%Y%m%dT%H%M%S%z"),
    ("x", lambda r, t: f"{r.integers(1, 29)} Feb 2024", "%d %b %Y"),
    ("x", lambda r, t: f"February {r.integers(1, 29)}, 2024, 1:07 PM", "%b %d, %Y, %I:%M %p"),
    ("x", lambda r, t: _clock("%m/%d/%Y %I:%M:%S ")(r, t) + r.choice(["AM", "PM"]), "%m/%d/%Y %I:%M:%S %p"),
    ("x", lambda r, t: f"{r.integers(1, 29)}.{r.integers(1, 13)}.2019 {r.integers(0, 24)}:07", "%d.%m.%Y %H:%M"),
    ("x", lambda r, t: f"2019-03-{r.integers(10, 29)} 10:11:12.{r.integers(0, 10**6):06}", "iso"),
    ("x", lambda r, t: f"201903{r.integers(10, 29)}", "%Y%m%d"),
]  # fmt: skip
OTHERS = [  # name, cells, kind, remark
    ("tags", lambda r, t: str(_tags(r)), "list", ""),
    ("tags", lambda r, t: str(r.integers(0, 9, 2)), "list", ""),
    ("tags", lambda r, t: " | ".join(_tags(r)), "list", ""),
    ("tags", lambda r, t: "~".join(_tags(r)), "list", ""),
    ("tags", lambda r, t: "#".join(f"t{v}" for v in r.integers(1, 9, 2)), "list", ""),
    ("tags", lambda r, t: "/".join(f"t{v}" for v in r.integers(1, 9, 3)), "list", ""),
    ("tags", lambda r, t: "\2".join(f"t{v}" for v in r.integers(1, 9, 2)), "list", ""),
    ("tags", lambda r, t: " ".join(f"{e}:0.{r.integers(9)}" for e in _tags(r)), "list", "the weights are part"),
    ("tags", lambda r, t: "|".join(f"t{v}:0.{v}" for v in r.integers(1, 9, 2)), "list", "the weights are part"),
    ("tags", lambda r, t: " ".join([*_tags(r), *["<pad>"] * 3][:4]), "list", "only fills lists up"),
    ("tags", lambda r, t: " ".join([f"t{r.integers(9)}", *["<pad>"] * r.integers(1, 4)]), "list", "only fills"),
    ("x", lambda r, t: "|".join([*map(str, r.integers(1, 9, 2)), *"000"][: r.integers(3, 6)]), "list", "0 is a"),
    ("x", lambda r, t: "|".join([*map(str, r.integers(1, 9, 2)), "-1", "-1"][: r.integers(3, 5)]), "list", "-1 is"),
    ("vector", lambda r, t: str(r.random(4).round(3).tolist()), "vector", "4 numbers, such as ["),
    ("vector", lambda r, t: str(r.normal(size=4)), "vector", "4 numbers, such as ["),
    ("vector", lambda r, t: "|".join(f"{v:.3f}" for v in r.random(4)), "vector", "4 numbers"),
    ("vector", lambda r, t: ", ".join(f"{v:.3e}" for v in r.random(2)), "vector", "2 numbers"),
    ("place", lambda r, t: f"({r.normal(52):.4f}, {r.normal(13):.4f})", "vector", "2 numbers, such as ("),
    ("vector", lambda r, t: " ".join(map(str, r.random(r.integers(2, 5)))), "ignored", "2 to 4 numbers in a cell"),
    ("prices", lambda r, t: "|".join(f"{p / 8:g}" for p in r.integers(1, 99, r.integers(1, 4))), "ignored", "list, if"),
    ("ids", lambda r, t: "|".join(f"{v}.0" for v in r.integers(1, 9, 2)), "list", ""),
    ("ids", lambda r, t: str(r.integers(1, 9, 3).tolist()), "list", ""),
    ("release", lambda r, t: ".".join(map(str, r.integers(1, 5, 3))), "string", ""),
    ("period", lambda r, t: " ".join(f"{m:02}.{r.integers(10, 12)}.2024" for m in (1, 2)), "string", ""),
    ("level", lambda r, t: r.choice(["[INFO]", "[WARN]", "[DEBUG]"]), "string", ""),
    ("path", lambda r, t: f"/{r.choice(['shop', 'blog'])}/{r.integers(9)}/{r.integers(9)}", "string", ""),
    ("brand", lambda r, t: r.choice(["H&M", "C&A", "A&F", "Marks&Co"]), "string", ""),
    ("os_version", lambda r, t: r.choice(["9.3", "10.1", "10.10", "12.0"]), "string", "float if it is an amount"),
    ("price", lambda r, t: r.choice(["4.99", "9.99", "19.90"]), "float", ""),
    ("item_id", lambda r, t: 3_017_620_422_003 + 7_919 * r.integers(300), "string", "named like an id"),
    ("upc", lambda r, t: 722_252_100_900 + 31 * r.integers(300), "string", "named like an id"),
    ("x", lambda r, t: 3_000_000_000_000 + 4_000_000_037 * r.integers(200), "string", "milliseconds, if these"),
    ("x", lambda r, t: START + 86_400 * r.integers(400), "string", "timestamps: seconds, if these are times"),
    ("cat_id", lambda r, t: f"{r.integers(40)}{r.choice(['', '.0'])}", "string", "are two values"),
    ("x", lambda r, t: f"{r.choice([1680, 2000, 750])}.0", "string", "float if it is an amount"),
    ("sample_weight", lambda r, t: f"{r.random():.3f}", "float", "weight if it is the row's weight in the loss"),
    ("x", lambda r, t: r.choice(["inf", "-inf", *[f"{r.random():.3f}"] * 40]), "float", ""),
    ("x", lambda r, t: r.choice(["3e39", *[f"{r.random():.3f}"] * 40]), "float", ""),
    ("x", lambda r, t: r.choice(["#DIV/0!", *[f"{r.random():.3f}"] * 40]), "float", ""),
    ("sampleWeight", lambda r, t: f"{r.random():.3f}", "float", "weight if it is the row's weight in the loss"),
    ("itemType", lambda r, t: r.integers(1, 400), "string", "integer if it is an amount"),
    ("x", lambda r, t: r.choice(["(2.50)", "1'000", *map(str, r.random(30).round(2))]), "string", "to have numbers"),
    ("x", lambda r, t: f"{r.integers(1, 90)} kg", "string", "to have numbers"),
    ("x", lambda r, t: r.choice(["3G", "4G", "5G"]), "string", ""),
    ("x", lambda r, t: 2**60 + r.integers(60), "string", "nanoseconds, if these are times"),
    ("time", lambda r, t: f"{r.integers(24):02}:{r.integers(60):02}", "string", "times of day"),
    ("date", lambda r, t: f"{45_419 + t % 999 / 1000:.3f}", "float", "if it is a time of Excel"),
    ("country", lambda r, t: r.choice(["NA", "DE", "FR", "US"]), "string", "NA is a value"),
    ("x", lambda r, t: r.choice(["NA", "red", "blue"]), "string", ""),
    ("x", lambda r, t: r.choice(["a b", "c", "d-e", "United States", "ü"]), "string", ""),
    ("x", lambda r, t: f"{r.integers(0, 300):05}", "string", ""),
    ("x", lambda r, t: f"{r.integers(0, 2**32):08x}", "hex32", ""),
    ("x", lambda r, t: r.choice(["yes", "no"]), "boolean", ""),
    ("x", lambda r, t: f"word {r.integers(10**12)} of {r.integers(7)}", "ignored", "new value in nearly every row"),
    ("x", lambda r, t: "same", "ignored", "one value only"),
    ("x", lambda r, t: "", "ignored", "missing in all rows"),
    ("x", lambda r, t: f"{r.lognormal(2, 1):.2f}", "float", ""),
    ("x", lambda r, t: f"{r.lognormal(20, 3):.3e}", "float", ""),
    ("x", lambda r, t: f"{r.poisson(3)}.0", "", ""),
    ("x", lambda r, t: r.integers(0, 2**63 - 1), "", ""),
    ("x", lambda r, t: r.integers(1, 400), "", ""),
]  # fmt: skip
WRITTEN = [Style(name, cell, "timestamp", form) for name, cell, form in TIMES]
WRITTEN += [Style(name, cell, kind, "", remark) for name, cell, kind, remark in OTHERS]
LABELS = [("0", "1"), ("-1", "1"), ("no", "yes"), ("0.0", "1.0"), ("", "1"), ("NULL", "1"), ("false", "true")]


def written_cells(style, random, num_rows):
    """Cells of a style in the order of their times."""
    times = START + np.sort(random.integers(0, 20 * 86_400, num_rows))
    return np.array([str(style.cell(random, time)) for time in times.tolist()], object)


def written_table(seed, num_rows=1_200):
    """Columns of some styles of WRITTEN after a label of LABELS, their kinds, and which rows are clicks.

    Some columns have gaps, each with a mark of its own. The kind of such a column is not given.
    """
    random = np.random.default_rng(seed)
    shops = random.integers(0, 6, num_rows)
    clicks = random.random(num_rows) < (1 + shops) / 10
    columns = {
        "click": np.array(LABELS[seed % len(LABELS)])[clicks.astype(int)],
        "shop": np.array([f"s{shop}" for shop in shops]),
    }
    kinds = {}
    for place in random.choice(len(WRITTEN), 4, replace=False).tolist():
        style, gaps = WRITTEN[place], random.random(num_rows) < random.choice([0, 0, 0.01, 0.3])
        name, mark = f"{place} {style.name}", random.choice(["", "?", "NULL", "-", "unknown", " "])
        columns[name] = np.where(gaps, mark, written_cells(style, random, num_rows))
        kinds |= {name: style.kind} if style.kind and not gaps.any() else {}
    return columns, kinds, clicks
