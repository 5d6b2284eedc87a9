"""Generate logs of random formats, with lines to reject for every reason, for tests that compare several readers."""

import random
import re
from collections import Counter
from dataclasses import dataclass

from data_prep.kernels.parsed import MAX_LINE_BYTES, Chunk, FileOfLog
from data_prep.options.kinds import UNITS, time_range, time_text
from data_prep.options.log_format import RELATIONS, ListForm, LogFormat, VectorForm

_KINDS = ("integer", "hex32", "string", "ignored", "id", "list", "float", "timestamp", "boolean", "vector")
_LABELS = ((("1",), ("0",)), (("yes", "true"), ("no",)), (("click",), ("", "0")))
_MISSING = ((), (), ("NULL",), ("NA", "a_long_mark"), ("-",))
_INTEGERS = ("0", "1", "-1", "-0", "007", "9223372036854775807", "-9223372036854775808", "0" * 19)
_TEXTS = ("a", "Zürich", "東京", "\0", "x" * 30, "12345678", "123456789", "NUL", "\t", '"', 'a"b', "*", "a*b", "\\*")
_DECIMALS = ("0", "1", "0.5", ".5", "5.", "+2", "1e-3", "0.1", "1E5", "9007199254740993", "3.4028235e38", "1e-400")
_DECIMALS += ("0.1e-45", "1e22", "1e23", "0e999", "00.10", "1" * 38, "2.2250738585072011e-308", "123456789.12345678e-5")
_QUOTED_TEXTS = ("a,b", "a;b", "a b", "a|b", 'say "hi"', '""')

_BAD_INTEGERS = ("1" * 20, "9223372036854775808", "-9223372036854775809")
_BAD_INTEGERS += ("1.5", "+1", "x", "--1", "1e3", ".0", "1.", "1.0.0", "1.01")
_BAD_HEX = ("0123ABCD", "0123abc", "`1234567", "0123abcde", "g1234567", "0x123456")
_BAD_LABELS = ("2", "maybe", "11", "Yes")
_BAD_DECIMALS = ("nan", "inf", "-inf", "1e39", "3.4028236e38", "1e00001")
_BAD_DECIMALS += ("0x1p3", "1_0", ".", "e5", "1e", "--1", "1.2.")
_BAD_WEIGHTS = (*_BAD_DECIMALS, "-1", "-1e-5", "")
_TIME_FORMS = (*UNITS, "iso", "iso", "%Y-%m-%dT%H:%M:%S.%f", "%y%m%d%H", "at %d/%m/%Y", "%Y%m%d")
_TIME_FORMS += ("%m/%d/%Y %I:%M:%S %p", "%d.%m.%y %I%p", "%f@%d1-%m-%Y", "%H%M %d-%m-%Y")
_TIME_FORMS += ("%d/%b/%Y:%H:%M:%S %z", "%a %b %d %H:%M:%S %Y", "%Y%m%d%H%M%S%f", "%b %d, %Y %I:%M %p%z")
_ZONES = ("Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "Africa/Casablanca")
_ZONE_CELLS = ("Z", "UTC", "+0000", "+02:00", "-0330", "+14", "-00:30")
_BAD_TIMES = ("x", "1.5.0", "1e", "2014-13-01 00:00", "2014-01-01T00:00:00+24:00", "2014-01-01T00:00:00.")
_BAD_TIMES += ("32/Jan/2014:00:00:00 Z", "2014-02-30T00:00:00.000", "2014-01-01T24:00:00.000", "at 29/02/1900")
_BAD_TIMES += ("at 1/2/14", "at 001/2/2014", "1/2/2014 0:00:00 AM", "1/2/2014 13:00:00 PM", "1/2/2014 11:00:00")
_BAD_TIMES += ("01.02.14 1xM", "99999999999999999999")
_BOOLEANS = ("true", "False", "TRUE", "yes", "nO", "on", "OFF", "t", "F", "y", "N", "1", "0", "1.0", "0.0")
_BAD_BOOLEANS = ("2", "-1", "01", "truee", "tru", "ye", "x", "0.", "\0", "ON!")
_BAD_TEXTS = (b"\xff", b"a\x80", b"\xc3")


@dataclass(frozen=True)
class GeneratedLog:
    """A random format of a log, and lines in this format. `reasons` has, for each line, the reason to reject it, or
    "".
    """

    log_format: LogFormat
    lines: list[bytes]
    reasons: list[str]
    line_end: bytes
    columns: tuple[str, ...]  # Names of the columns in the order of the file.

    @property
    def header(self) -> bytes:
        """The header: a line with the names of the columns, without line end."""
        return self.log_format.separator.join(self.columns).encode()

    @property
    def text(self) -> bytes:
        """The whole file."""
        lines = [self.header, *self.lines] if self.log_format.header else self.lines
        return b"".join(line + self.line_end for line in lines)

    @property
    def rejects_by_reason(self) -> Counter:
        """Return the number of lines to reject, by reason."""
        return Counter(filter(None, self.reasons))

    def chunks(self, num_lines) -> list[Chunk]:
        """Return the lines after the header as chunks of `num_lines` lines."""
        parts = [(first, self.lines[first : first + num_lines]) for first in range(0, len(self.lines), num_lines)]
        file = FileOfLog(columns=self.columns if self.log_format.others == "ignored" else ())
        return [Chunk(first, len(part), b"".join(line + self.line_end for line in part), file) for first, part in parts]


def generate_log(seed: int, num_lines: int = 300, bad_share: float | None = None) -> GeneratedLog:
    """Return a random log, which depends only on the arguments. About the share `bad_share` of its lines is bad;
    without `bad_share`, the share is random too.
    """
    random_ = random.Random(seed)
    log_format = _draw_format(random_)
    cells = _Cells(random_, log_format)
    share = random_.choice([0.0, 0.003, 0.02, 0.2, 0.9]) if bad_share is None else bad_share
    drawn = [cells.bad_line() if random_.random() < share else (cells.good_line(), "") for _ in range(num_lines)]
    lines, reasons = map(list, zip(*drawn, strict=True))
    return GeneratedLog(log_format, lines, reasons, random_.choice([b"\n", b"\r\n"]), tuple(cells.columns))


def _draw_format(random_: random.Random) -> LogFormat:
    kinds = ["label", *random_.choices(_KINDS, (3, 4, 2, 1, 0.5, 1, 1, 0.7, 1, 0.7), k=random_.randint(1, 12))]
    kinds += ["weight"] * (random_.random() < 0.3)
    if not set(kinds) & {"hex32", "string"}:
        kinds.append(random_.choice(["hex32", "string"]))
    random_.shuffle(kinds)
    columns = {f"{kind}_{place}": kind for place, kind in enumerate(kinds)}
    separator, quotes = random_.choice([",", ",", "\t", ";", "|", " "]), random_.random() < 0.4
    between = [character for character in "|;, /" if quotes or character != separator]
    lists = {
        name: ListForm(random_.choice(between), random_.choice([1, 2, 5]), random_.choice(["mean", "sum"]))
        for name, kind in columns.items()
        if kind == "list"
    }
    texts = [name for name, kind in columns.items() if kind in ("string", "list")]
    shares = {texts[-1]: texts[0]} if len(texts) > 1 and random_.random() < 0.5 else {}
    forms = [form for form in _TIME_FORMS if separator not in form]
    clicked, not_clicked = random_.choice(_LABELS)
    if "" not in not_clicked:
        clicked, not_clicked = random_.choice([(clicked, not_clicked)] * 2 + [(clicked, "rest"), ("rest", not_clicked)])
    can_be_decimal = quotes or separator != ","
    rule = f"{random_.choice(RELATIONS)} {random_.choice(['0', '1', '0.5', '+1.50', '-1e-3', '4'])}"
    header = random_.random() < 0.5
    return LogFormat(
        columns=columns,
        separator=separator,
        timestamps={name: random_.choice(forms) for name, kind in columns.items() if kind == "timestamp"},
        timezone={
            name: random_.choice(_ZONES)
            for name, kind in columns.items()
            if kind == "timestamp" and random_.random() < 0.4
        },
        header=header,
        others=random_.choice(["refused", "ignored"]) if header else "refused",
        quotes=quotes,
        trim=separator != " " and random_.random() < 0.3,
        decimal=random_.choice([".", ".", ","]) if can_be_decimal else ".",
        lists=lists,
        shares=shares,
        vectors={
            name: VectorForm(random_.choice([1, 2, 3, 9]), random_.choice(["standardize", "norm", "none"]))
            for name, kind in columns.items()
            if kind == "vector"
        },
        missing=random_.choice(_MISSING),
        **random_.choice([{"clicked": clicked, "not_clicked": not_clicked}] * 3 + [{"clicked": rule}]),
        label=random_.choice(["required", "required", "optional"]),
        features={
            name: tuple(random_.sample(("hour", "weekday", "age"), random_.randint(0, 3)))
            for name, kind in columns.items()
            if kind == "timestamp" and random_.random() < 0.8
        },
    )


def _in_quotes(text: str) -> str:
    """Return a text in single quotes, as Python and NumPy write the texts of a list."""
    return f"'{text}'"


class _Cells:
    """Makes random cells and lines of a format. Each column has a few frequent and many rare values."""

    def __init__(self, random_: random.Random, log_format: LogFormat) -> None:
        self._random = random_
        self._format = log_format
        self.columns = dict(log_format.columns)  # Columns of the file, in its order, with their kinds.
        if log_format.others == "ignored":
            places = [*log_format.columns.items(), ("another", "ignored"), ("one more", "ignored")]
            if log_format.separator == " ":
                places.pop()
            random_.shuffle(places)
            self.columns = dict(places)
        any_label = log_format.label == "optional" and "rest" in (log_format.clicked, log_format.not_clicked)
        self._bad_reasons = ["columns", *([] if any_label else ["label"]), *self._reasons_of_kinds()]

    def _reasons_of_kinds(self):
        for kind in ("integer", "float", "timestamp", "vector"):
            if self._format.columns_of_kind(kind):
                yield kind
        yield "categorical"
        if self._format.weight:
            yield "weight"
        if self._format.quotes:
            yield "quotes"

    def good_line(self) -> bytes:
        return self._join(self._good_cells())

    def bad_line(self) -> tuple[bytes, str]:
        """Return a line with exactly one fault, and the reason for which it must be rejected."""
        if self._random.random() < 0.002:
            return self._join([*self._good_cells()[:-1], b"x" * MAX_LINE_BYTES]) + b"x", "too long"
        reason = self._random.choice(self._bad_reasons)
        return self.spoiled(reason), reason

    def spoiled(self, reason: str) -> bytes:
        """Return a line that must be rejected for this reason."""
        choose = self._random.choice
        cells = self._good_cells()
        if reason == "columns":
            return self._join(choose([cells[:-1], [*cells, b""], [*cells, *cells]]))
        if reason == "quotes":
            cells = [b""] * len(cells)
            cells[choose(range(len(cells)))] = choose([b'"x"y', b'"', b'"x'])
            return self._format.separator.encode().join(cells)
        kinds = {"categorical": ("hex32", "boolean", "string", "list")}.get(reason, (reason,))
        name = choose(self._format.columns_of_kind(*kinds))
        bad = {
            "label": _BAD_LABELS,
            "integer": _BAD_INTEGERS,
            "hex32": _BAD_HEX,
            "boolean": _BAD_BOOLEANS,
            "string": _BAD_TEXTS,
            "list": _BAD_TEXTS,
            "weight": _BAD_WEIGHTS,
            "float": _BAD_DECIMALS,
            "timestamp": _BAD_TIMES,
        }
        if reason == "vector":
            cell = self._bad_vector(name)
        else:
            cell = choose(
                _BAD_DECIMALS if reason == "label" and self._format.click_rule else bad[self._format.columns[name]]
            )
        if "rest" in (self._format.clicked, self._format.not_clicked) and reason == "label":
            cell = choose(["", *self._format.missing])
        if isinstance(cell, str) and self._format.separator in cell and not self._format.quotes:
            cell = "x"
        if UNITS.get(self._format.timestamps.get(name), 3) < 3 and choose([True, False]):
            thousands = choose([1000**by for by in range(1 - UNITS[self._format.timestamps[name]] // 3)])
            cell = str(choose([600_000_000, 4_099_999_999]) * thousands)  # of a coarser unit
        cells[list(self.columns).index(name)] = cell if isinstance(cell, bytes) else cell.encode()
        return self._join(cells)

    def _good_cells(self) -> list[bytes]:
        return [self._cell(name, kind).encode() for name, kind in self.columns.items()]

    def _cell(self, name: str, kind: str) -> str:
        random_ = self._random
        if kind == "list":
            values = [self._cell(name, "string") for _ in range(random_.randint(0, 7))]
            separator = self._format.list_form(name).separator
            if any(values) and random_.random() < 0.3 and (self._format.quotes or separator != self._format.separator):
                return f"[{separator.join(map(_in_quotes, values))}]"
            return separator.join(values)
        if kind == "label" and self._format.label == "optional" and random_.random() < 0.1:
            return random_.choice(["", *self._format.missing])
        if kind == "label" and self._format.click_rule:
            return self._decimal()
        if kind == "label":
            cells = self._format.clicked if random_.random() < 0.3 else self._format.not_clicked
            return random_.choice(("anything", "2", "ü") if cells == "rest" else cells)
        if kind == "weight":
            return self._decimal()
        if random_.random() < 0.1:
            return random_.choice(["", *self._format.missing])
        if kind == "timestamp":
            return self._time(self._format.time_form(name), self._format.timezone.get(name, ""))
        if kind == "vector":
            return "[]" if random_.random() < 0.1 else self._vector(self._numbers(name))
        if kind == "float":
            return random_.choice(["-", ""]) + self._decimal().removeprefix("+")
        rank = int(random_.paretovariate(0.8))
        if kind == "integer":
            point_zero = f"{rank % 10**15}{random_.choice(['.', self._format.decimal])}{'0' * random_.randint(1, 9)}"
            return random_.choice([*_INTEGERS, str(rank % 10**15), str(-rank % 100), point_zero, "-0.0"])
        if kind == "boolean":
            return random_.choice(_BOOLEANS)
        if kind == "hex32":
            return f"{rank * 2654435761 % 2**32:08x}"
        return random_.choice([*self._texts(), f"value {rank}" if self._format.separator != " " else f"value-{rank}"])

    def _numbers(self, name: str) -> list[str]:
        return [
            self._random.choice(["", "-"]) + self._decimal().lstrip("+")
            for _ in range(self._format.vectors[name].width)
        ]

    def _vector(self, numbers: list[str]) -> str:
        """Write numbers as a vector: between any marks that do not separate the columns, with brackets or without."""
        between = [" ", "  ", ";", " |", *[",", ", "] * (self._format.decimal == ".")]
        if not self._format.quotes:
            between = [mark for mark in between if self._format.separator not in mark]
        text = numbers[0] + "".join(self._random.choice(between) + number for number in numbers[1:])
        blank = " " * (self._format.separator != " ")
        return self._random.choice(["{}", "[{}]", "({})", "{{{}}}", f"[{blank}{{}}{blank}]"]).format(text)

    def _bad_vector(self, name: str) -> str:
        numbers = self._numbers(name)
        place = self._random.randrange(len(numbers))
        wrong = [*numbers[:place], self._random.choice([*_BAD_DECIMALS, "null", "[1"]), *numbers[place + 1 :]]
        return self._vector(self._random.choice([wrong, [*numbers, "1"], [*numbers, *numbers], [*numbers, "x"]]))

    def _time(self, form: str, zone: str) -> str:
        random_ = self._random
        first, last = time_range(form)
        if "%y" not in form and random.Random(form).random() < 0.5:
            first, last = 1_400_000_000_000, 1_400_500_000_000
        if zone or form in ("iso", "nanoseconds"):  # years in which zones change their clocks
            first, last = max(first, -3_700_000_000_000), min(last, 4_000_000_000_000)
        seconds = random_.randint(first // 1000, last // 1000)
        milliseconds = random_.choice([first, last // 1000 * 1000, seconds * 1000 + 7, seconds * 1000])
        text = time_text(milliseconds, form)
        if form in UNITS:
            return self._time_number(milliseconds, form)
        if form == "iso":
            date, _, clock = text.removesuffix("Z").partition(" ")
            clock = random_.choice([clock[:5], clock[:8], clock, clock + "123456", clock[:10]])
            zone_cell = random_.choice(["", "", random_.choice(("", " ")) + random_.choice(_ZONE_CELLS)])
            moment = abs(milliseconds) * random_.choice([1, 1_000, 1_000_000])
            number = str(moment) if moment >= 4_100_000_000 else "-1"
            texts = [date, f"{date}T{clock}{zone_cell}", f"{date} {clock}{zone_cell}", number]
            return random_.choice([each for each in texts if self._format.quotes or self._format.separator not in each])
        if "%z" in form:
            text = text.replace("+0000", random_.choice(_ZONE_CELLS))
        if "%b" in form and random_.random() < 0.3:
            text = text.upper()
        if "/%m" in form and random_.random() < 0.5:  # without the zeros before a part
            text = re.sub("(?<![0-9])0(?=[0-9])", "", text) if "0000" not in text[:9] and milliseconds > 0 else text
        if form.endswith("%f") and random_.random() < 0.5:
            text += random_.choice(["1", "999", "000000"])
        elif form.endswith("%f") and random_.random() < 0.5:
            text = text[:-3].removesuffix(".")
        return text

    def _time_number(self, milliseconds: int, unit: str) -> str:
        """A number since 1970 as programs write it, also a sentinel, or nearly one of another unit."""
        random_ = self._random
        power = UNITS[unit]
        milliseconds += 4_100_000_000 * (0 <= milliseconds < 4_100_000_000)  # there numbers may be of a coarser unit
        if random_.random() < 0.1:
            return random_.choice(["0", "-1", "0.0", "-1.0", str(599_999_999 if power > -3 else 4_100_000_000_000_000)])
        whole, fraction = str(milliseconds // 10**power if power > 0 else milliseconds * 10**-power), ""
        if power > 0 and random_.random() < 0.5:
            fraction = f".{milliseconds % 1000:03}"
        elif len(whole) < 17 and milliseconds > 0:
            fraction = random_.choice(["", ".0", ".25"])
        if not fraction and random_.random() < 0.2 and whole[0] != "-":
            return f"{whole[0]}.{whole[1:] or 0}{random_.choice('eE')}{len(whole) - 1}"
        return whole + fraction

    def _decimal(self) -> str:
        random_ = self._random
        drawn = random_.choice([random_.random(), min(random_.paretovariate(0.1), 1e38), random_.random() * 1e-5])
        text = random_.choice([*_DECIMALS, repr(drawn), f"{drawn:.3f}"])
        return text.replace(".", ",") if self._format.decimal == "," and random_.random() < 0.7 else text

    def _texts(self) -> list[str]:
        if self._format.quotes:
            return [*_TEXTS, *_QUOTED_TEXTS]
        return [text for text in _TEXTS if self._format.separator not in text]

    def _join(self, cells: list[bytes]) -> bytes:
        if self._format.trim:
            cells = [self._with_blanks(cell) for cell in cells]
        if self._format.quotes:
            cells = [self._quoted(cell) for cell in cells]
        if self._format.trim:
            cells = [self._with_blanks(cell) for cell in cells]
        return self._format.separator.encode().join(cells)

    def _with_blanks(self, cell: bytes) -> bytes:
        return b" " * self._random.choice([0, 0, 1, 2]) + cell + b" " * self._random.choice([0, 0, 0, 1])

    def _quoted(self, cell: bytes) -> bytes:
        if b'"' in cell or self._format.separator.encode() in cell or self._random.random() < 0.1:
            return b'"' + cell.replace(b'"', b'""') + b'"'
        return cell


def time_cells(random_: random.Random, count: int) -> tuple[LogFormat, list[str]]:
    """A format with a label and a time of any form and zone, and cells of that time."""
    form, zone = random_.choice(_TIME_FORMS), random_.choice(["", *_ZONES])
    log_format = LogFormat(
        {"label": "label", "seen": "timestamp"}, timestamps={"seen": form}, timezone={"seen": zone} if zone else {}
    )
    return log_format, [_Cells(random_, log_format)._cell("seen", "timestamp") for _ in range(count)]
