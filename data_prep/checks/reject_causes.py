"""Find the likely causes for which lines of a log are rejected.

The command `describe` looks for causes in a sample of the log, and the command `prepare` in the whole log. If lines are
not UTF-8, this module also finds their likely encoding. `Finding` is the class of all reports about a log.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from common.packages import load, python_command
from common.text import printable, show
from data_prep.execution.prepared_folder import REJECTS_FILE
from data_prep.kernels.parse import is_utf8, parse_labels, take_quotes_off
from data_prep.kernels.parsed import BARE_SEPARATOR, Chunk
from data_prep.kernels.strings import Strings
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.raw_log.formats import format_of
from data_prep.raw_log.text_lines import NUL_BYTES
from data_prep.statistics.statistics import LogStatistics

_SEPARATORS = {
    b"\t": "a tab",
    b",": "a comma",
    b";": "a semicolon",
    b"|": "a bar",
    b"\x01": "byte 1 (Ctrl-A)",
    b" ": "a blank",
}
_BARE = bytes([BARE_SEPARATOR])
_REASONS_OF_CELLS = (b"integer", b"categorical", b"weight", b"float", b"timestamp")
_EXAMPLE_BYTES = 120
_REJECTS_SHOWN = 5
_LABELS_READ = 1_000  # The labels of this many rejected lines are counted for an error message.
_REJECT_BYTES_SHOWN = 300
_LONGEST_NAME = 100  # If the cell in the place of the label is longer than this, the line is not a header.
# If at most this fraction of the bytes, cells or lines has a fault, the fault is not the reason why nearly all lines
# are rejected.
_FEW = 0.1
_NUMBER_TEXT = b"+-.0123456789eE"
# Advice for a log with lines that are not JSON objects. `json_lines` turns such a line into one with too many cells, so
# that it is rejected.
_NO_OBJECTS = (
    "\nThe first one is no JSON object: a log of JSON has one a line, and no blank lines. jq -c . OLD > NEW makes such "
    "a log of objects of several lines, or with blank lines; remove a line that was cut off"
)
_NOT_UTF8 = "is not UTF-8, as a text has to be"
# Encodings of scripts other than Latin, in which most letters have bytes above 127. Keys are Python's names of the
# encodings, and values are iconv's.
_OF_OTHER_SCRIPTS = {"gb18030": "GB18030", "big5": "BIG5", "cp932": "CP932", "cp949": "CP949", "koi8_r": "KOI8-R"} | {
    f"cp{number}": f"CP{number}" for number in (1251, 1253, 1255, 1256, 874)
}
_OF_LATIN = ("CP1252", "CP1250")  # Encodings of Latin scripts, in which few letters have bytes above 127.
# If more than this fraction of the bytes above 127 follow another such byte, the script is not Latin. The fraction is
# low, because in encodings with two bytes per letter the second byte may be below 128.
_SIDE_BY_SIDE = 0.3
_LOOKED_AT = 1 << 16  # The encoding is guessed from this many bytes.
_SHOWN = 4  # Maximum number of encodings in a message.


@dataclass(frozen=True)
class Finding:
    """A message about a fault or an oddity of a log, which the user should know before preparing the log."""

    what: str  # What was found: a sentence, whose subject is `where` if that is given.
    do: str = ""  # Advice for the user on what to do, or "" if there is none.
    where: str = ""  # The columns, line or file with the fault or oddity, or "".
    # True if `prepare` would fail or its result be useless. False if the oddity may be intended.
    is_wrong: bool = False

    def __str__(self) -> str:
        return f"{self.where} {self.what}".strip() + f"; {self.do}" * bool(self.do)


def print_findings(findings: Sequence[Finding], file: TextIO | None = None) -> None:
    """Print each finding about a log on a line of its own, marked "wrong" if it `is_wrong`, and "odd" otherwise.

    Wrong things are printed first. Without findings, print that nothing is wrong or odd.
    """
    for each in sorted(findings, key=lambda each: not each.is_wrong):
        show(f"{'wrong' if each.is_wrong else 'odd'}: {each}", file=file)
    if not findings:
        show("nothing is wrong or odd with these rows", file=file)


def check_rejects(
    rejects: Counter[str], rejects_tsv: bytes, chunks: Sequence[Chunk], log_format: LogFormat
) -> Iterator[Finding]:
    """Yield findings about the lines in a sample of a log that `prepare` would reject, with the cause if it is visible.

    `chunks` are the lines of the sample. `rejects` has the number of rejected lines among them for each reason, and
    `rejects_tsv` contains the rejected lines in the form of the file rejects.tsv.
    """
    if not rejects:
        return
    num_lines = sum(chunk.num_lines for chunk in chunks)
    limit = PrepareOptions().max_reject_fraction
    fraction = rejects.total() / num_lines
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in rejects.most_common())
    first = rejects_tsv.split(b"\n", 1)[0].split(b"\t", 2)
    where, text = first[0].decode(), first[2][:_EXAMPLE_BYTES].decode("utf-8", errors="backslashreplace")
    what = (
        f"{rejects.total():,} of {num_lines:,} lines ({fraction:.2%}) would be rejected: {reasons}. "
        f"The first is line {where}: {text!r}"
    )
    stops = f"prepare stops above prepare.max_reject_fraction={limit:g}"
    yield Finding(what, stops, is_wrong=True) if fraction > limit else Finding(what)
    if _are_parts_of_rows(rejects):
        yield Finding(divided_rows(log_format))
    hints = ((chunk.file.name, _explain(chunk, log_format)) for chunk in chunks)
    if found := next(((name, hint) for name, hint in hints if hint), None):
        yield Finding(found[1], where=found[0] and f"{found[0]}:", is_wrong=True)


def _explain(chunk: Chunk, log_format: LogFormat) -> str:
    """Return why nearly all lines of a chunk (a block of lines) are bad, or why the first line of the chunk is bad.

    The result is a text for an error message, or "" if no cause is visible.
    """
    lines = [line.rstrip(b"\r") for line in chunk.lines.split(b"\n", 200)[:200] if line]
    if not lines:
        return ""
    if _are_of_nul(lines):
        return f"there are {NUL_BYTES}"
    if sum(not is_utf8(line) for line in lines) > _FEW * len(lines):
        bad = b"\n".join(line for line in lines if not is_utf8(line))
        return f"the text {_NOT_UTF8}; {to_utf8(bad)}"
    separator = bytes([BARE_SEPARATOR]) if chunk.is_bare else log_format.separator.encode()
    usual = _most_common(line.count(separator) for line in lines) + 1
    names = chunk.file.columns or tuple(log_format.columns)
    if usual != len(names) and not log_format.quotes:
        return _explain_columns(lines, len(names), log_format)
    rows = [line.split(separator) for line in lines if line.count(separator) + 1 == usual]
    label_index = names.index(log_format.label_column)
    labels = Strings.of([row[label_index] for row in rows[:2]])
    good = parse_labels(labels, log_format)[2].tolist()
    if good == [False, True] and labels.lengths[0] < _LONGEST_NAME:
        start = lines[0][:60].decode(errors="backslashreplace")
        return f"the first line is a header ({start!r} …): remove it, or set header: true in a --data file"
    return _explain_cells(rows[1:], names, log_format)


def _explain_columns(lines: Sequence[bytes], expected: int, log_format: LogFormat) -> str:
    """Return why the separator of the format does not divide `lines` into `expected` columns, and what to do."""
    widths = {each: _most_common(line.count(each) for line in lines) + 1 for each in _SEPARATORS}
    own = log_format.separator.encode()
    described = _SEPARATORS.get(own, repr(log_format.separator))
    for separator, width in widths.items():
        if width == expected and separator != own:
            advice = "set separator in a --data file, or replace it"
            return f"columns are separated by {_SEPARATORS[separator]}, expected {described}: {advice}"
    usual = widths.get(own, 1)
    if usual == expected - 1 and log_format.columns == LogFormat().columns:
        return (
            f"lines have {usual} columns, one less than expected: it seems to be Criteo's test.txt, which has no "
            "labels; prepare train.txt"
        )
    # If the message must name the likely separator, a blank is the last choice, because texts within cells contain many
    # blanks.
    likely = own if usual > 1 else max(widths, key=lambda each: widths[each] * (each != b" "))
    return (
        f"lines have {widths.get(likely, 1)} columns between {likely.decode()!r}, expected {log_format.description}; "
        f"{python_command('data_prep describe LOG')} > my.yaml, then --data my.yaml"
    )


def _explain_cells(rows: Sequence[Sequence[bytes]], names: Sequence[str], log_format: LogFormat) -> str:
    values = [row[index] for row in rows for index in map(names.index, log_format.hex_fields) if row[index]]
    if values and sum(cell != cell.lower() for cell in values) > _FEW * len(values):
        return "categorical cells have upper-case digits: make them lower-case, or give their columns the kind string"
    integers = [row[index] for row in rows for index in map(names.index, log_format.integer_fields)]
    floats = [cell for cell in integers if b"." in cell and not cell.strip(_NUMBER_TEXT)]
    if len(floats) > _FEW * len(rows):
        return f"integer columns hold numbers with a point ({floats[0].decode()}): give them the kind float"
    return ""


def _are_of_nul(lines: Sequence[bytes]) -> bool:
    return sum(line.count(b"\0") for line in lines) > _FEW * sum(map(len, lines))


def _most_common(numbers: Iterable[int]) -> int:
    return Counter(numbers).most_common(1)[0][0]


def check_statistics(
    statistics: LogStatistics,
    max_reject_fraction: float,
    log_name: str,
    folder: Path,
    name_cell: Callable[[Chunk, int, LogFormat, str], str],
    is_fitted: bool,
) -> None:
    """Raise ValueError if the log is empty, if too many of its lines are bad, or if it has no training rows.

    Too many lines are bad if they are more than the share `max_reject_fraction` of all lines. Training rows are only
    demanded if `is_fitted` is True, which means that something, such as a vocabulary, is fitted to them. `log_name`
    names the log in the message. `folder` contains rejects.tsv, whose first lines the message shows. `name_cell` is a
    function that returns a description of the bad cell in a line.
    """
    if statistics.num_lines == 0:
        raise ValueError(f"{log_name} is empty; expected lines of {statistics.log_format.description}")
    if statistics.num_rejects > max_reject_fraction * statistics.num_lines:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(statistics.rejects_by_reason.items()))
        first = b"\n".join(line[:_REJECT_BYTES_SHOWN] for line in _first_rejects(folder, _REJECTS_SHOWN))
        raise ValueError(
            f"{statistics.num_rejects:,} of {statistics.num_lines:,} lines of {log_name} are bad ({reasons}), more "
            f"than prepare.max_reject_fraction={max_reject_fraction:g} allows. The first ones "
            "(line number, reason, line):\n"
            + printable(first.decode(errors="backslashreplace"))
            + (
                f"\nIn them {f'there are {NUL_BYTES}'}"
                if _are_of_nul(_first_rejects(folder, _REJECTS_SHOWN))
                else _other_form(statistics, log_name, folder)
                + _other_labels(statistics, folder)
                + _first_bad_cell(statistics, folder, name_cell)
            )
        )
    if statistics.num_training_rows == 0 and is_fitted:
        counting = " with a label and a weight above 0" if statistics.log_format.weight_source else ""
        raise ValueError(
            f"{log_name}: none of {statistics.num_lines:,} lines is a training row{counting}; give more lines or a "
            "larger prepare.train_fraction"
        )


def _other_form(statistics: LogStatistics, log_name: str, folder: Path) -> str:
    """Return advice if most lines do not have the described columns, or if rejected lines are only parts of rows.

    A row consists of several parts, each on a line of its own, if its cells contain line ends. Return "" if most lines
    have the described columns and rejected lines are no parts of rows.
    """
    rejects, log_format = statistics.rejects_by_reason, statistics.log_format
    is_other = 2 * (rejects["columns"] + rejects["too long"]) >= statistics.num_lines
    first = _first_rejects(folder, 1)[0].split(b"\t", 2)[2]
    added = tuple(each * len(log_format.columns) for each in (_BARE, log_format.separator.encode()))
    if (format_of(log_name).is_table or first.startswith(b"{")) and first.endswith(added):
        return _NO_OBJECTS
    if _are_parts_of_rows(rejects) or (not is_other and 2 * rejects["columns"] >= rejects.total()):
        return f"\n{divided_rows(log_format)}"
    if not is_other:
        return ""
    if b"\r" in first:
        return (
            "\nThe first one has \\r within; lines end in \\n or \\r\\n here: change the line ends, for example by tr "
            "'\\r' '\\n'"
        )
    rejected = [line.split(b"\t", 2)[2] for line in _first_rejects(folder, _REJECTS_SHOWN)]
    return f"\nIn them, {_explain_columns(rejected, len(log_format.columns), log_format)}"


def _are_parts_of_rows(rejects: Counter[str]) -> bool:
    """Return True if at least a third of the rejected lines are rejected because of their quotes.

    Such a line is probably a part of a row that has a line end within quotes: in each part, one quote has no
    counterpart.
    """
    return 3 * rejects["quotes"] >= rejects.total()


def divided_rows(log_format: LogFormat) -> str:
    """Return advice for a log whose cells contain line ends, so that its lines are only parts of rows."""
    or_separator = "" if log_format.quotes else f" or {log_format.separator!r}"
    return (
        f"They seem to have cells with a line end{or_separator} inside, which no cell may have: replace these by "
        "blanks, in rows to score too, in pandas by frame.replace(r'\\s+', ' ', regex=True)"
    )


def _other_labels(statistics: LogStatistics, folder: Path) -> str:
    """If at least half of all lines are rejected for their label, return advice that names the labels found.

    Otherwise return "".
    """
    if 2 * statistics.rejects_by_reason["label"] < statistics.num_lines:
        return ""
    log_format, column = statistics.log_format, statistics.log_format.label_column
    rows = [line.split(b"\t", 2)[2] + b"\n" for line in _first_rejects(folder, _LABELS_READ)]
    names = list(log_format.columns)
    # If the log format has the setting `others: ignored`, the header of each file determines the order of its columns,
    # and this function does not know the header.
    if log_format.others == "ignored":
        shown = ""
    else:
        bare = [take_quotes_off(row, log_format)[0][:-1].split(_BARE) for row in rows]
        cells = [cells[names.index(column)] for cells in bare if len(cells) == len(names)]
        counts = Counter(cell.rstrip(b"\r").decode(errors="backslashreplace") for cell in cells)
        shown = f"; the first of them hold {', '.join(repr(cell) for cell, _ in counts.most_common(_REJECTS_SHOWN))}"
    return (
        f"\nThe {log_format.label_in_words}{shown}: set prepare.data.clicked and not_clicked in the --data file to the "
        "cells of this log (one of both may be: rest), or clicked to a rule such as '>= 4'"
    )


def _first_bad_cell(
    statistics: LogStatistics, folder: Path, name_cell: Callable[[Chunk, int, LogFormat, str], str]
) -> str:
    """Return a text that describes the bad cell in the first rejected line, or "" if the cell is not known."""
    _, reason, line = _first_rejects(folder, 1)[0].split(b"\t", 2)
    if reason == b"categorical" and not is_utf8(line):
        # A single line is too little text to recognize the encoding of the log, so all lines that are not UTF-8 are
        # joined.
        bad = b"\n".join(each for each in _first_rejects(folder, _LABELS_READ) if not is_utf8(each))
        return f"\nThe first one {_NOT_UTF8}; {to_utf8(bad)}"
    # If the log format has the setting `others: ignored`, the header of each file determines the order of its columns,
    # and this function does not know the header.
    if reason not in _REASONS_OF_CELLS or statistics.log_format.others == "ignored":
        return ""
    chunk = Chunk(0, 1, line + b"\n", is_bare=_BARE in line)
    return f"\nIn the first one it is {name_cell(chunk, 0, statistics.log_format, reason.decode())}"


def _first_rejects(folder: Path, count: int) -> list[bytes]:
    with (folder / REJECTS_FILE).open("rb") as rejects:
        return [line.rstrip(b"\r\n") for line in itertools.islice(rejects, count)]


def to_utf8(text: bytes) -> str:
    """Return advice how to convert a log to UTF-8, with an iconv command that names the log's most likely encoding.

    `text` contains lines of the log that are not UTF-8. If it is empty, the command does not name an encoding.
    """
    text = text[:_LOOKED_AT]
    high = np.frombuffer(text, np.uint8) > 127
    if not high.any():
        names = []
    elif np.count_nonzero(high[1:] & high[:-1]) > _SIDE_BY_SIDE * np.count_nonzero(high):
        matches = load("charset_normalizer").from_bytes(text, cp_isolation=list(_OF_OTHER_SCRIPTS))
        names = [_OF_OTHER_SCRIPTS[match.encoding] for match in matches][:_SHOWN]
    else:
        names = sorted((name for name in _OF_LATIN if _can_decode(text, name)), key=lambda name: _num_signs(text, name))
    if not names:
        return "convert the log from the encoding that its writer had: iconv -f ENCODING -t UTF-8 OLD > NEW"
    others = f"; by its bytes it could be {' or '.join(names[1:])} too, so look at some words" * (len(names) > 1)
    return f"convert the log: iconv -f {names[0]} -t UTF-8 OLD > NEW{others}"


def _can_decode(text: bytes, name: str) -> bool:
    with contextlib.suppress(UnicodeDecodeError):
        text.decode(name)
        return True
    return False


def _num_signs(text: bytes, name: str) -> int:
    """Decode `text` with the encoding `name`, and return the number of non-ASCII characters that are not letters.

    A text that is read in a wrong encoding has many such characters.
    """
    return sum(not character.isalpha() for character in text.decode(name) if not character.isascii())
