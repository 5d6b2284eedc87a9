"""Tables like some that others wrote: columns of codes as integers, among amounts, with what the label follows."""

from datetime import UTC, datetime

import numpy as np


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
        codes = random.choice(np.arange(3_000, 311_000), size, replace=False)
        columns[name] = codes[ranks]
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
    codes = [*columns]
    return {**columns, **amounts, "clk": _clicks(random, logits, 0.2)}, codes, [*amounts]


def write_csv(path, columns, separator=","):
    rows = zip(*columns.values(), strict=True)
    lines = [separator.join(columns), *(separator.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


HEADERS = (
    "names",
    "numbers",
    "a gap",
    "rows end",
    "both end",
    "names end",
    "again",
    "places",
    "title",
    "none",
    "none, like others",
    "none, a mark",
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


# Columns such as others wrote, by how their cells are written: a name, the cells by a generator and a time, their kind.
WRITTEN = {
    "list of Python": ("tags", lambda r, t: str(_tags(r)), "list"),
    "list of numbers": ("tags", lambda r, t: str(r.integers(0, 9, 2)), "list"),
    "list with blanks": ("tags", lambda r, t: " | ".join(_tags(r)), "list"),
    "list with tildes": ("tags", lambda r, t: "~".join(_tags(r)), "list"),
    "weighted list": ("tags", lambda r, t: " ".join(f"{each}:0.{r.integers(9)}" for each in _tags(r)), "list"),
    "padded list": ("tags", lambda r, t: " ".join([*_tags(r), "<pad>", "<pad>", "<pad>"][:4]), "list"),
    "vector": ("vector", lambda r, t: str(r.random(4).round(3).tolist()), "ignored"),
    "level of a log": ("level", lambda r, t: r.choice(["[INFO]", "[WARN]", "[DEBUG]"]), "string"),
    "path": ("path", lambda r, t: f"/{r.choice(['shop', 'blog'])}/{r.integers(9)}/{r.integers(9)}", "string"),
    "brand": ("brand", lambda r, t: r.choice(["H&M", "C&A", "A&F", "Marks&Co"]), "string"),
    "version": ("os_version", lambda r, t: r.choice(["9.3", "10.1", "10.10", "12.0"]), "string"),
    "price": ("price", lambda r, t: r.choice(["4.99", "9.99", "19.90"]), "float"),
    "id of 13 digits": ("item_id", lambda r, t: f"{3_017_620_422_003 + 7_919 * r.integers(300)}", "string"),
    "id with points": ("cat_id", lambda r, t: f"{r.integers(40)}{r.choice(['', '.0'])}", "string"),
    "float codes": ("x", lambda r, t: f"{r.choice([1680, 2000, 750])}.0", "string"),
    "weight": ("sample_weight", lambda r, t: f"{r.random():.3f}", "float"),
    "infinity": ("x", lambda r, t: r.choice(["inf", *[f"{r.random():.3f}"] * 40]), "float"),
    "error of a spreadsheet": ("x", lambda r, t: r.choice(["#DIV/0!", *[f"{r.random():.3f}"] * 40]), "float"),
    "country": ("country", lambda r, t: r.choice(["NA", "DE", "FR"]), "string"),
    "seconds or -1": ("time", lambda r, t: r.choice(["-1", *[str(t)] * 19]), "timestamp"),
    "seconds as a float": ("time", lambda r, t: f"{t}.0", "timestamp"),
    "milliseconds": ("x", lambda r, t: f"{t}{r.integers(1000):03}", "timestamp"),
    "digits": ("x", lambda r, t: _clock("%Y%m%d%H%M%S")(r, t) + f"{r.integers(10**6):06}", "timestamp"),
    "day as a float": ("day", _clock("%Y%m%d.0"), "timestamp"),
    "hour of digits": ("hour", _clock("%y%m%d%H"), "timestamp"),
    "hour of a partition": ("x", _clock("%Y-%m-%d-%H"), "timestamp"),
    "time of a file": ("x", _clock("%Y%m%d_%H%M%S"), "timestamp"),
    "time of a server": ("x", _clock("%d/%b/%Y:%H:%M:%S +0000"), "timestamp"),
    "year first": ("date", _clock("%y-%m-%d"), "timestamp"),
    "a fraction or none": ("x", lambda r, t: _clock("%Y-%m-%d %H:%M:%S")(r, t) + r.choice(["", ".125"]), "timestamp"),
}  # fmt: skip
LABELS = [("0", "1"), ("-1", "1"), ("no", "yes"), ("0.0", "1.0"), ("", "1"), ("NULL", "1"), ("false", "true")]


def written_table(seed, num_rows=1_200):
    """Columns of some kinds of WRITTEN after a label of LABELS: the columns, their kinds, and which rows are clicks."""
    random = np.random.default_rng(seed)
    shops = random.integers(0, 6, num_rows)
    clicks = random.random(num_rows) < (1 + shops) / 10
    columns = {
        "click": np.array(LABELS[seed % len(LABELS)])[clicks.astype(int)],
        "shop": [f"s{shop}" for shop in shops],
    }
    times, kinds = 1_588_889_317 + np.sort(random.integers(0, 20 * 86_400, num_rows)), {}
    for style in random.choice([*WRITTEN], 4, replace=False):
        name, cell, kind = WRITTEN[style]
        kinds[f"{style} {name}"] = kind
        columns[f"{style} {name}"] = np.array([cell(random, time) for time in times.tolist()], object)
    return columns, kinds, clicks
