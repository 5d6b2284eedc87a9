"""A simple, slow implementation of docs/data_format.md: it computes what a prepared folder must contain, cell by cell.

It shares no code with the product. So a comparison with it also finds errors that the native and the NumPy kernels have
in common, and errors of the code that calls them.
"""

import fnmatch
import itertools
import math
import re
import struct
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from zoneinfo import ZoneInfo

LIMIT = 65_536
SPLITS = ("train", "valid", "test")
U64 = 2**64 - 1
NO_TIME = "no time"
MONTHS = ["january", "february", "march", "april", "may", "june", "july", "august", "september", "october"]
MONTHS += ["november", "december"]
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
EPOCH, MS = datetime(1970, 1, 1), timedelta(milliseconds=1)
# Number of the line in the log, label, ids, numeric columns, weight (1 without one), keys, inputs of vectors.
Row = tuple[int, int, list[int], list[float], float, dict[str, int], list[float]]


@dataclass
class Prepared:
    """The contents of a prepared folder."""

    num_lines: int
    rejects: bytes
    rows: dict[str, list[Row]]  # By name of the split, in the order of the log.
    vocabulary: list[tuple[str, str, int, int]]  # field, value, count, id


def read_log(files: dict[str, bytes], options) -> Prepared:
    """Return what `prepare` with these `options` must write for a log. `files` maps the names of the log's files, in
    order, to their contents.
    """
    form, lines, rejects, rows = options.data, 0, [], []
    for place, (name, content) in enumerate(files.items()):
        raw_lines = content.split(b"\n")
        raw_lines = raw_lines[:-1] if raw_lines[-1] == b"" else raw_lines
        kinds = form.columns
        if form.others == "ignored":
            kinds = {name: form.columns.get(name, "ignored") for name in raw_lines[0].decode().split(form.separator)}
        for number, raw in enumerate(raw_lines[form.header :], start=1 + form.header):
            reason, label, cells = parse_line(raw, form, kinds)
            if reason:
                where = f"{name}:{number}" if len(files) > 1 else f"{number}"
                rejects.append(b"%s\t%s\t%s\n" % (where.encode(), reason.encode(), raw[:LIMIT]))
            else:
                rows.append((lines, place, label, cells))
            lines += 1
    splits = _split(rows, lines, list(files), options)
    return _encode(rows, splits, lines, b"".join(rejects), options)


def parse_line(raw: bytes, form, kinds: dict[str, str]) -> tuple[str, int, dict]:
    """Parse a line. Return the reason to reject it or "", its label, and its cells by column name.

    `form` is the format of the log, and `kinds` maps the line's columns, in order, to their kinds. A missing cell is
    None.
    """
    if len(raw) > LIMIT:
        return "too long", 0, {}
    separator = form.separator.encode()
    texts = _unquoted(raw, separator, form.trim) if form.quotes else _plain(raw, separator)
    if texts is None:
        return "quotes", 0, {}
    if len(texts) != len(kinds):
        return "columns", 0, {}
    missing = [b"", *(word.encode() for word in form.missing)]
    found = {kind: [] for kind in ("label", "integer", "categorical", "weight", "float", "timestamp", "vector")}
    cells, label = {}, 0
    for (name, kind), text in zip(kinds.items(), texts, strict=True):
        text = text.strip(b" ") if form.trim else text
        text = b"" if text in missing else text
        if kind == "label":
            label = _label(text, form)
            found["label"].append(label is not None or (form.label == "optional" and not text))
        elif kind == "integer":
            whole = re.sub(rb"(?<=[0-9])[.%s]0+$" % form.decimal.encode(), b"", text)
            good = not text or (re.fullmatch(rb"-?[0-9]{1,19}", whole) and -(2**63) <= int(whole) < 2**63)
            found["integer"].append(good)
            cells[name] = int(whole) if good and text else None
        elif kind == "hex32":
            found["categorical"].append(not text or re.fullmatch(rb"[0-9a-f]{8}", text))
            cells[name] = text.decode(errors="replace") or None
        elif kind == "boolean":
            word = text.lower().decode(errors="replace")
            is_true = word in ("true", "yes", "on", "t", "y", "1", "1.0")
            found["categorical"].append(not text or is_true or word in ("false", "no", "off", "f", "n", "0", "0.0"))
            cells[name] = int(is_true) if text else None
        elif kind in ("string", "list"):
            found["categorical"].append(_is_utf8(text))
            cells[name] = text.decode(errors="replace") or None
        elif kind == "weight":
            cells[name] = _decimal(text, form)
            found["weight"].append(cells[name] is not None and cells[name] >= 0)
        elif kind == "id":
            cells[name] = text
        elif kind == "float":
            cells[name] = _decimal(text, form)
            found["float"].append(not text or cells[name] is not None)
        elif kind == "timestamp":
            time = _time(text, form.timestamps[name], form.timezone.get(name, "")) if text else NO_TIME
            found["timestamp"].append(time is not None)
            cells[name] = None if time == NO_TIME else time
        elif kind == "vector":
            cells[name] = _vector(text, form)
            found["vector"].append(len(cells[name]) in (0, form.vectors[name].width) and None not in cells[name])
            cells[name] = cells[name] or None
    return next((reason for reason, good in found.items() if not all(good)), ""), label, cells


def _float32(number: float) -> float:
    return struct.unpack("<f", struct.pack("<f", number))[0]


def _vector(text: bytes, form) -> list[float | None]:
    """Return the components of a vector, rounded to float32, with None in place of a part that is no number. Return []
    for a missing vector.
    """
    text = text.strip(b" \t")
    if len(text) > 1 and text[:1] + text[-1:] in (b"[]", b"()", b"{}"):
        text = text[1:-1].strip(b" \t")
    for mark in (b";", b"|", *[b","] * (form.decimal == ".")):
        text = re.sub(b"[ \t]*" + re.escape(mark) + b"[ \t]*", b"\n", text)
    numbers = [_decimal(part, form) for part in re.sub(b"[ \t]+", b"\n", text).split(b"\n")] if text else []
    return [number if number is None else _float32(number) for number in numbers]


def _label(text: bytes, form) -> int | None:
    """Return 1 for a label cell that means a click, 0 for one that means no click, and None for any other cell."""
    if isinstance(form.clicked, str) and form.clicked != "rest":
        relation, bound = re.fullmatch(r"([<>=]+) (.*)", form.clicked).groups()
        number, bound = _decimal(text, form), float(bound)
        found = {">": lambda: number > bound, "<": lambda: number < bound, "=": lambda: number == bound}
        return None if number is None else int(any(found[sign]() for sign in relation))
    cell = text.decode(errors="replace")
    for label, cells in ((1, form.clicked), (0, form.not_clicked)):
        if cells != "rest" and cell in cells:
            return label
    return None if not text else 1 if form.clicked == "rest" else 0 if form.not_clicked == "rest" else None


def _decimal(text: bytes, form) -> float | None:
    """Return the number in a cell, rounded from its exact value to float64. Return None if the cell has no number, or
    one out of the range of float32.
    """
    text = re.sub(form.decimal, ".", text.decode("latin-1")).encode("latin-1") if form.decimal == "," else text
    found = re.fullmatch(rb"([-+]?)([0-9]*)\.?([0-9]*)(?:[eE]([-+]?[0-9]{1,4}))?", text)
    if not found or not found[2] + found[3]:
        return None
    sign, whole, fraction, power = found.groups()
    exact = Fraction(int(whole + fraction)) * Fraction(10) ** (int(power or 0) - len(fraction))
    if exact >= Fraction(2) ** 128 - Fraction(2) ** 103:  # It would be rounded up beyond the largest float32.
        return None
    number = float(exact)
    return 0.0 if number < 2.0**-1022 else -number if sign == b"-" else number


def _time(text: bytes, form: str, zone: str) -> int | str | None:
    """Return the time in a cell, in milliseconds since 1970. Return NO_TIME for a number that means a missing time (0
    or -1), and None for a cell that is no time in the years 1 to 9999.
    """
    units = {"seconds": 1_000, "milliseconds": 1, "microseconds": Fraction(1, 10**3), "nanoseconds": Fraction(1, 10**6)}
    cell = text.decode(errors="replace")
    if form == "iso" or form in units:
        if number := re.fullmatch(r"-?([0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,2})?", cell):
            exact = Fraction(re.sub(r"\.(?![0-9])", "", cell))
            if len(number[1].replace(".", "")) > 19:
                return None
            if exact in (0, -1):
                return NO_TIME
            return _time_of_number(exact, [*units.values()], [*units].index(form) if form in units else None)
        if form in units:
            return None
        date, *clock = re.split("[T ]", cell, maxsplit=1)
        rest = clock[0] if clock else ""
        of_clock = re.match(r"[0-9 ]?[0-9]:[0-9 ]?[0-9](:[0-9 ]?[0-9](\.[0-9]{1,9})?)?", rest)
        if clock and not of_clock:
            return None
        forms = ["%Y-%m-%d", *(("%H:%M:%S.%f" if of_clock[1] else "%H:%M") for _ in clock)]
        zones = [part.removeprefix(" ") for part in [rest[of_clock.end() :] if clock else ""] if part]
        cell = "|".join([date, *([of_clock[0]] if clock else []), *zones])
        form = "|".join([*forms, *("%z" for _ in zones)])
    fraction = re.search("%S([.,]?)%f", form)
    time = _time_by_codes(cell, form, zone)
    if time is None and fraction:  # The fraction of a second may be missing, with the mark before it. %N matches "".
        time = _time_by_codes(cell, form.replace(fraction[0], "%S" if fraction[1] else "%S%N"), zone)
    return time


def _time_by_codes(rest: str, form: str, zone: str) -> int | None:
    first, last = (datetime(1, 1, 1) - EPOCH) // MS, (datetime(9999, 12, 31, 23, 59, 59, 999000) - EPOCH) // MS
    found, digits = {}, re.findall("%.|[^%]", form)
    for place, part in enumerate(digits):
        if part[0] != "%":
            if not rest.startswith(part):
                return None
            rest = rest[1:]
            continue
        beside = [*digits[max(place - 1, 0) : place], *digits[place + 1 : place + 2]]
        beside = [near for near in beside if near not in ("%p", "%z", "%a", "%b")]
        is_free = not any(near[0] == "%" or near in "0123456789" for near in beside)
        one = "[0-9]{1,2}| [0-9]" if is_free else "[0-9]{2}"
        patterns = {"%Y": "[0-9]{4}", "%y": "[0-9]{2}", "%f": "[0-9]{1,9}", "%p": "[APap][Mm]", "%N": ""}
        patterns |= {"%z": "Z|UTC|GMT|[-+][0-9]{2}(:?[0-9]{2})?", "%b": _names(MONTHS), "%a": _names(DAYS)}
        cell = re.match(patterns.get(part, one), rest)
        if not cell:
            return None
        found[part[1]], rest = cell[0], rest[len(cell[0]) :]
        if part == "%z" and cell[0][0] in "+-" and cell[0][3:].strip(":") >= "60":
            found["z"], rest = cell[0][:3], cell[0][3:] + rest
    if rest:
        return None
    found.pop("a", None)
    clock = {"Y": found.get("Y") or str(1900 + int(found["y"]) + 100 * (int(found["y"]) < 69))}
    clock |= {code: found[code].strip() for code in "mdHMS" if code in found}
    if "b" in found:
        clock["m"] = str([name[:3] for name in MONTHS].index(found["b"][:3].lower()) + 1)
    if "I" in found:
        clock |= {"I": found["I"], "p": found["p"]}
    try:
        moment = datetime.strptime(" ".join(clock.values()), " ".join(f"%{code}" for code in clock))
        digits = found.get("z", "").lstrip("ZUTCGM").replace(":", "")
        if "z" in found:
            ahead = datetime.strptime(f"{digits or '+00'}00"[:5], "%z").utcoffset()
        else:
            ahead = moment.replace(tzinfo=ZoneInfo(zone or "UTC")).utcoffset()
    except ValueError:
        return None
    time = (moment - EPOCH - ahead) // MS + int(f"{found.get('f', '0'):0<3}"[:3])
    return time if moment.second <= 59 and first <= time <= last else None


def _names(names: list[str]) -> str:
    """Return a regular expression that matches each of `names`, or its first three letters, in upper or lower case."""
    return "(?i:" + "|".join([*names, *(name[:3] for name in names)]) + ")"


def _time_of_number(exact: Fraction, units: list, unit: int | None) -> int | None:
    """Return the time, in milliseconds since 1970, that a number means, or None if it means no time.

    `units` are the lengths of the units in milliseconds, the longest first, and `unit` is the index of the number's
    unit. If it is None, the number is in the first unit in which it is a time before about 2100.
    """
    likely = (600_000_000_000, 4_100_000_000_000)
    if unit is None:
        times = [math.floor(exact * each) for each in units]
        place, time = next(((p, t) for p, t in enumerate(times) if t < likely[1]), (0, 0))
        return time if exact > 0 and time >= (likely[0] if place == 0 else 1) else None
    time = math.floor(exact * units[unit])
    for by in (1000**coarser for coarser in range(1, unit + 1)):  # A likely time in a longer unit is a mistake.
        if likely[0] // by <= time < likely[1] // by:
            return None
    return time if -62_135_596_800_000 <= time < 253_402_300_800_000 else None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _plain(raw: bytes, separator: bytes) -> list[bytes]:
    return raw.removesuffix(b"\r").split(separator)


def _unquoted(raw: bytes, separator: bytes, trim: bool) -> list[bytes] | None:
    """Return the cells of a line with quotes as in RFC 4180, or None if the quotes do not match. In a cell that does
    not begin with a quote, quotes are ordinary characters.
    """
    if b"\x1f" in raw or (b'"' in raw and b"\r" in raw.removesuffix(b"\r")):
        return None
    cells, rest = [], raw.removesuffix(b"\r")
    while True:
        rest = rest.lstrip(b" ") if trim else rest
        if rest.startswith(b'"'):
            quoted = re.match(rb'"((?:[^"]|"")*)"' + rb" *" * trim, rest)
            if not quoted or rest[quoted.end() : quoted.end() + 1] not in (b"", separator):
                return None
            cell, rest = quoted[1].replace(b'""', b'"'), rest[quoted.end() :]
        else:
            end = rest.find(separator)
            cell, rest = (rest, b"") if end < 0 else (rest[:end], rest[end:])
        cells.append(cell)
        if not rest:
            return cells
        rest = rest[1:]


def _mix(state: int) -> int:
    """Mix the bits of a 64-bit number: the finalizer of SplitMix64."""
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & U64
    state = (state ^ state >> 27) * 0x94D049BB133111EB & U64
    return state ^ state >> 31


def _split(rows, num_lines: int, names: list[str], options) -> list[str]:
    bounds = (options.train_fraction, options.train_fraction + options.valid_fraction)
    hashes = [_mix(options.seed + (number + 1) * 0x9E3779B97F4A7C15 & U64) for number, *_ in rows]
    if options.split == "hash":
        return [SPLITS[sum(h >> 11 >= round(bound * 2**53) for bound in bounds)] for h in hashes]
    times = [name for name, kind in options.data.columns.items() if kind == "timestamp"]
    if options.split == "chronological" and times:
        by = options.split_by or times[0]
        oldest = [(-math.inf if row[3][by] is None else row[3][by], row[0]) for row in rows]
        rank = {line: place for place, (_, line) in enumerate(sorted(oldest))}
        return [SPLITS[sum(rank[row[0]] >= round(bound * len(rows)) for bound in bounds)] for row in rows]
    if options.split == "chronological":
        return [SPLITS[sum(row[0] >= round(bound * num_lines) for bound in bounds)] for row in rows]
    if options.split == "files":
        patterns = {"valid": options.valid_files, "test": options.test_files}
        by_file = [[s for s, p in patterns.items() if any(fnmatch.fnmatchcase(n, one) for one in p)] for n in names]
        return [next(iter(by_file[row[1]]), "train") for row in rows]
    splits = [""] * len(rows)
    for label in (0, 1):
        order = sorted((h, i) for i, h in enumerate(hashes) if (rows[i][2] or 0) == label)
        for rank, (_, i) in enumerate(order):
            splits[i] = SPLITS[sum(rank >= round(bound * len(order)) for bound in bounds)]
    return splits


def _bucket(x: int) -> int:
    return math.floor(math.log(x) ** 2) if x > 2 else max(x, -(2**31))


def _own_number(value, kind: str) -> int:
    """Return the 32-bit number of a value, from which `_oov_number` computes the value's out-of-vocabulary id."""
    if kind == "hex32":
        return int(value, 16)
    if kind == "bucket":
        return value + 2**31
    if kind in ("boolean", "hour", "weekday", "present"):
        return value
    return _key(value.encode()) >> 32


def _key(text: bytes) -> int:
    """Return the 64-bit hash (key) of a text, as docs/data_format.md defines it."""
    key = len(text) * 0x9E3779B97F4A7C15 & U64
    for first in range(0, len(text), 8):
        key = (key ^ int.from_bytes(text[first : first + 8], "little")) * 0xD6E8FEB86659FD93 & U64
        key ^= key >> 32
    return _mix(key)


def _oov_number(value, kind: str, buckets: int) -> int:
    h = _own_number(value, kind)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ h >> shift) * factor & 0xFFFFFFFF
    return (h ^ h >> 16) * buckets >> 32


def _ranks(training: list[float]) -> list[tuple[float, float]]:
    """Return up to 257 pairs of a quantile of the training rows' numbers and its rank from 0 to 1. Equal quantiles are
    one pair, with the mean of their ranks.
    """
    ordered = sorted(map(float, training))
    ranks = {}
    for i in range(257 if training else 0):
        ranks.setdefault(ordered[max(math.ceil(i * len(ordered) / 256) - 1, 0)], []).append(i / 256)
    return [(number, sum(of_number) / len(of_number)) for number, of_number in sorted(ranks.items())]


def _rank(x: float, bounds: list[tuple[float, float]]) -> float:
    """Return the rank of x, from 0 to 1, by linear interpolation between the (number, rank) pairs `bounds`."""
    if not bounds:
        return 0.5
    below = [pair for pair in bounds if pair[0] <= x] or bounds[:1]
    above = [pair for pair in bounds if pair[0] >= x] or bounds[-1:]
    (low, low_rank), (high, high_rank) = below[-1], above[0]
    return low_rank if high <= low else low_rank + (x - low) / (high - low) * (high_rank - low_rank)


def _log(x: float) -> float:
    return math.copysign(math.log1p(abs(x)), x)


def trains(weight: float) -> bool:
    """Return True if a weight is still above 0 when it is rounded to float32, whose smallest positive number is
    2^-149.
    """
    return weight > 2.0**-150


def _fitted(transform: str, training: list):
    """Return the function that transforms a numeric field's numbers, fitted to its numbers in the training rows.

    `transform` is the value of prepare.numeric_transform.
    """
    if transform == "quantile":
        bounds = _ranks(training)
        return lambda x: _rank(float(x), bounds)
    if transform == "log1p":
        return _log
    if transform in ("log1p_standardize", "piecewise"):
        of_logs = _fitted("standardize", list(map(_log, training)))
        return lambda x: min(max(of_logs(_log(x)), -10), 10)
    if transform == "max":
        largest = max([1, *training])
        return lambda x: x / largest
    if not training:
        return float
    training = list(map(Fraction, training))
    mean = sum(training) / len(training)
    deviation = math.sqrt(sum((one - mean) ** 2 for one in training) / len(training))
    return lambda x: (x - float(mean)) / (deviation or 1.0)


def _fitted_vector(scale: str, width: int, training: list):
    """Return a function from a vector, or None for a missing one, to its inputs of the model: the scaled components,
    and 1 if the vector is missing, else 0. The scaling is fitted to the vectors `training` of the training rows.
    """
    columns = [list(map(Fraction, column)) for column in zip(*training, strict=True)] or [[Fraction(0)]] * width
    means = [sum(column) / len(column) for column in columns]
    variances = [
        sum((x - mean) ** 2 for x in column) / len(column) for column, mean in zip(columns, means, strict=True)
    ]
    bounds = [(_float32(float(mean)), _float32(math.sqrt(each))) for mean, each in zip(means, variances, strict=True)]

    def scaled(vector):
        if vector is None:
            return [0.0] * width + [1.0]
        if scale == "standardize":
            pairs = zip(vector, bounds, strict=True)
            return [
                min(max((x - mean) / (deviation if deviation >= 2**-126 else math.inf), -10), 10)
                for x, (mean, deviation) in pairs
            ] + [0.0]
        norm = math.hypot(*vector) if scale == "norm" else 1.0
        return [x / (norm or 1.0) for x in vector] + [0.0]

    return scaled


def _pieces(logs: list[float], number: int):
    """Return the functions that compute the pieces of a number from its logarithm. `logs` are those of the training."""
    ordered = sorted(logs or [0.0])
    ends = [ordered[max(math.ceil(i * len(ordered) / number) - 1, 0)] for i in range(number + 1)] if number else []
    ends = sorted(set(ends))
    bounds = list(itertools.pairwise(ends))
    bounds += [None] * (number - len(bounds))

    def piece_in(bound):
        if bound is None:
            return lambda log: 0.0
        share = lambda log: min(max((log - bound[0]) / (bound[1] - bound[0]), 0.0), 1.0)  # noqa: E731
        scaled = _fitted("standardize", list(map(share, ordered)))
        return lambda log: scaled(share(log))

    return list(map(piece_in, bounds))


def _encode(rows, splits: list[str], num_lines: int, rejects: bytes, options) -> Prepared:
    kinds = options.data.columns
    integers = [name for name, kind in kinds.items() if kind == "integer"]
    features = {name: options.data.features.get(name, ("hour", "weekday")) for name in kinds}
    numeric = [
        name
        for name, kind in kinds.items()
        if kind in ("integer", "float") or (kind == "timestamp" and "age" in features[name])
    ]
    fields = [(name, kind, name) for name, kind in kinds.items() if kind in ("boolean", "hex32", "string", "list")]
    for name in (name for name, kind in kinds.items() if kind == "timestamp"):
        fields += [(f"{name}_{part}", part, name) for part in ("hour", "weekday") if part in features[name]]
    if options.integer_buckets:
        fields += [(f"{name}_bucket", "bucket", name) for name in integers]
    fields = fields or [(f"{name}_present", "present", name) for name in numeric[:1]]
    of_name = {name: (kind, source) for name, kind, source in fields}
    fields += [("*".join(parts), "cross", parts) for parts in options.crosses]
    weight_of = next((name for name, kind in kinds.items() if kind == "weight"), "")
    weights = [0.0 if label is None else cells.get(weight_of, 1.0) for _, _, label, cells in rows]
    in_training = [split == "train" and trains(weight) for split, weight in zip(splits, weights, strict=True)]
    training = [cells for (*_, cells), counts in zip(rows, in_training, strict=True) if counts]

    def value_of(cells, kind, source):
        if kind in ("hour", "weekday") and cells[source] is not None:
            moment = EPOCH + MS * cells[source]
            if zone := options.data.timezone.get(source):
                moment = moment.replace(tzinfo=UTC).astimezone(ZoneInfo(zone))
            return moment.hour if kind == "hour" else moment.weekday()
        if kind == "present" and cells[source] is not None:
            return 0
        return _bucket(cells[source]) if kind == "bucket" and cells[source] is not None else cells[source]

    def number_of(cells, name):
        if kinds[name] != "timestamp" or cells[name] is None:
            return cells[name]
        return max((newest[name] - cells[name]) / 86_400_000, 0)

    def length_of(name, kind, source):
        if kind == "list":
            return options.data.list_form(name).max_length
        lengths = [length_of(part, *of_name[part]) for part in source] if kind == "cross" else [1]
        return options.of_fields("max_length").get(name, max(*lengths, min(math.prod(lengths), 100), 1))

    def crossed(cells, name, parts):
        lists = [values_of(cells, part, *of_name[part]) for part in parts]
        if [None] in lists:
            return [None]
        while math.prod(map(len, lists)) > length_of(name, "cross", parts):
            max(lists[::-1], key=len).pop()
        escaped = [[re.sub(r"[*\\]", lambda found: "\\" + found[0], str(value)) for value in one] for one in lists]
        return ["*".join(values) for values in itertools.product(*escaped)]

    def values_of(cells, name, kind, source):
        if kind == "cross":
            return crossed(cells, name, source)
        value = value_of(cells, kind, source)
        if kind != "list" or value is None:
            return [value]
        form = options.data.list_form(name)
        parts = [part.strip(" ") if options.data.trim else part for part in value.split(form.separator)]
        if value[:2] == "['" and value[-2:] == "']":  # A list as Python writes it.
            parts = re.findall("'([^']*)'", value)
        return [part for part in parts if part][: form.max_length] or [None]

    shares = options.data.shares
    owners = [name for name, *_ in fields if name not in shares]
    floats = [name for name in numeric if kinds[name] == "float"]
    has_pieces = options.numeric_transform == "piecewise" and options.layout != "zoo"
    num_pieces = min(8, 256 // len(floats)) if floats and has_pieces else 0
    num_numeric = len(numeric) * (2 if options.layout != "zoo" else 1) + len(floats) * num_pieces
    num_oov = {name: options.of_fields("hash_size").get(name, options.oov_buckets) for name in owners}
    next_id, vocabulary, ids = num_numeric + sum(num_oov.values()), [], {}
    first_oov = {name: num_numeric + sum(list(num_oov.values())[:place]) for place, name in enumerate(owners)}
    for name in owners:
        of_owner = [field for field in fields if name in (field[0], shares.get(field[0]))]
        counts = Counter(value for field in of_owner for cells in training for value in values_of(cells, *field))
        num_missing = counts.pop(None, 0)
        is_hashed = options.vocabulary == "hash" or name in options.of_fields("hash_size")
        least = math.inf if is_hashed else options.of_fields("min_count").get(name, options.min_count)
        # Among equally frequent values, numbers are sorted by size and texts by their bytes.
        frequent = sorted((-n, v.encode() if isinstance(v, str) else v) for v, n in counts.items() if n >= least)
        frequent = frequent[: options.of_fields("max_size").get(name)]
        kept = [(n, 1, v.decode() if isinstance(v, bytes) else v) for n, v in frequent]
        for n, _, value in sorted([*kept, (-num_missing, 0, None)], key=lambda one: one[:2]):
            ids[name, value] = next_id
            vocabulary.append((name, "" if value is None else str(value), -n, next_id))
            next_id += 1

    vectors = {
        name: _fitted_vector(form.scale, form.width, [cells[name] for cells in training if cells[name] is not None])
        for name, kind in kinds.items()
        if kind == "vector"
        for form in [options.data.vectors[name]]
    }
    newest = {name: max((cells[name] for cells in training if cells[name] is not None), default=0) for name in numeric}
    present = {name: [number_of(cells, name) for cells in training if cells[name] is not None] for name in numeric}
    transforms = {name: _fitted(options.numeric_transform, present[name]) for name in numeric}
    pieces = {name: _pieces(list(map(_log, present[name])), num_pieces) for name in floats}
    prepared = {split: [] for split in SPLITS}
    for (line, _, label, cells), split, weight in zip(rows, splits, weights, strict=True):
        of_row = []
        for name, kind, source in fields:
            owner, length = shares.get(name, name), length_of(name, kind, source)
            for value in (values := values_of(cells, name, kind, source)):
                known = (owner, value) in ids
                oov_id = 0 if known else first_oov[owner] + _oov_number(value, kind, num_oov[owner])
                of_row.append(ids.get((owner, value), oov_id))
            of_row += [-1] * (length - len(values))
        found = [number_of(cells, name) for name in numeric]
        numbers = [0.0 if x is None else transforms[name](x) for name, x in zip(numeric, found, strict=True)]
        found_floats = ((x, pieces[name]) for name, x in zip(numeric, found, strict=True) if name in floats)
        numbers += [0.0 if x is None else piece(_log(x)) for x, of_field in found_floats for piece in of_field]
        numbers += [float(x is None) for x in found] if options.layout != "zoo" else []
        keys = {name: _key(cells[name]) for name, kind in kinds.items() if kind == "id"}
        inputs = [number for name, scaled in vectors.items() for number in scaled(cells[name])]
        prepared[split].append((line, label or 0, of_row, numbers, weight, keys, inputs))
    return Prepared(num_lines, rejects, prepared, vocabulary)
