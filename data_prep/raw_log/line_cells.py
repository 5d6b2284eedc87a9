"""Cells of single lines: split a line, see whether it has a label, and add one."""

from __future__ import annotations

import dataclasses

from data_prep.kernels.parse import quoted_cells, take_quotes_off
from data_prep.kernels.parsed import BARE_SEPARATOR, Chunk
from data_prep.options.log_format import LogFormat

_BARE = bytes([BARE_SEPARATOR])


def split_line(line: bytes, log_format: LogFormat, is_bare: bool = False) -> list[str]:
    """Return the cells of a line, those of a badly quoted one as far as they can be told apart."""
    if log_format.quotes and not is_bare:
        line, is_bare = take_quotes_off(line.removesuffix(b"\n") + b"\n", log_format)[0], True
    separator = _BARE if is_bare else log_format.separator.encode()
    cells = line.removesuffix(b"\n").removesuffix(b"\r").split(separator)
    return [cell.decode("utf-8", errors="replace") for cell in cells]


def has_label(line: bytes, log_format: LogFormat, is_bare: bool = False) -> bool:
    """Return False for a line that has one column less than the format: that is the label's."""
    separator = _BARE if is_bare else log_format.separator.encode()
    if log_format.quotes and not is_bare:
        line, separator = take_quotes_off(line + b"\n", log_format)[0], _BARE
    return line.count(separator) != len(log_format.columns) - 2


def add_label(chunk: Chunk, log_format: LogFormat) -> Chunk:
    """Return lines without labels as lines with them. A badly quoted line stays badly quoted.

    Lines of a file whose header decides its columns stay as they are: it names no label.
    """
    if chunk.file.columns:
        return chunk
    has_quotes = log_format.quotes and not chunk.is_bare
    separator = _BARE if chunk.is_bare else log_format.separator.encode()
    (place,) = log_format.places([log_format.label_column])
    label = log_format.any_label.encode()
    if has_quotes and (separator in label or b'"' in label):
        label = _quoted(label)
    if place == 0:
        start = label + separator
        return dataclasses.replace(chunk, lines=start + chunk.lines[:-1].replace(b"\n", b"\n" + start) + b"\n")
    labelled = []
    for line in chunk.lines[:-1].split(b"\n"):
        line = line.removesuffix(b"\r")
        row = line.split(separator, place)
        if has_quotes and b'"' in line:
            cells = quoted_cells(line, log_format)
            row = [line] if cells is None else [_quoted(cell) for cell in cells]
        # A line that ends before the label's place keeps a wrong number of columns.
        labelled.append(separator.join([*row[:place], label, *row[place:]]))
    return dataclasses.replace(chunk, lines=b"\n".join([*labelled, b""]))


def _quoted(cell: bytes) -> bytes:
    return b'"' + cell.replace(b'"', b'""') + b'"'
