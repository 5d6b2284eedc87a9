"""Quoted cells, as in RFC 4180: a cell in double quotes may hold separators, and quotes twice.

Only lines with a quote cost anything. A quoted cell cannot go over a line's end, as chunks are cut there: such a row is
rejected, each of its lines for itself.
"""

from __future__ import annotations

import csv

from data_prep.kernels.rows import MAX_LINE_BYTES

BARE_SEPARATOR = 0x1F  # "unit separator", which stands between cells once the quotes are off
_BARE = bytes([BARE_SEPARATOR])


def take_quotes_off(lines: bytes, separator: str) -> tuple[bytes, list[int]]:
    """Return the same lines with cells between BARE_SEPARATOR, and the numbers of those that are badly quoted."""
    divided = separator.encode()
    if b'"' not in lines and _BARE not in lines:
        return lines.replace(divided, _BARE), []
    bare, badly_quoted = [], []
    for number, line in enumerate(lines.removesuffix(b"\n").split(b"\n")):
        if len(line) > MAX_LINE_BYTES:
            bare.append(line)  # as long as it was, for the parser to see
        elif _BARE in line:  # which no cell can hold any more; it spoils its own line alone
            badly_quoted.append(number)
            bare.append(b"")
        elif b'"' not in line:
            bare.append(line.replace(divided, _BARE))  # as above: a line must not depend on those beside it
        else:
            cells = _cells(line, separator)
            if cells is None:
                badly_quoted.append(number)
            bare.append(_BARE.join(cells or []))
    return b"\n".join(bare) + b"\n", badly_quoted


def _cells(line: bytes, separator: str) -> list[bytes] | None:
    """Return the cells of a line with quotes; None if they do not match."""
    text = line.removesuffix(b"\r").decode("latin-1")  # byte by byte: what they mean is not looked at here
    if "\r" in text:  # csv would take it for a line's end
        return None
    try:
        cells = next(csv.reader([text], delimiter=separator, strict=True))
    except csv.Error:
        return None
    return [cell.encode("latin-1") for cell in cells]
