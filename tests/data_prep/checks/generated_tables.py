"""Tables like some that others wrote: columns of codes as integers, among amounts, with what the label follows."""

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
    text = "\n".join([*([] if layout.startswith("none") else [header]), *lines]) + "\n"
    return text, None if layout.startswith("none") else [name for name in names if name], num_rows
