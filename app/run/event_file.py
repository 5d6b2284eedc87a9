"""TensorBoard's event file, of scalars alone, written without TensorBoard, TensorFlow or PyTorch.

A file is a sequence of records: length (uint64), its masked CRC-32C, an `Event`, its masked CRC-32C (TensorFlow's
core/lib/io/record_writer.h); an `Event` is a protocol buffer (TensorFlow's core/util/event.proto).
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.run.logs import LogFile

_POLYNOMIAL = 0x82F63B78  # of CRC-32C, its bits reversed
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # a protocol buffer's wire types


def first_events(first_step: int) -> bytes:
    """What a file begins with; TensorBoard then drops what other files of the folder say of `first_step` and later."""
    version = _event(0, _bytes(3, b"brain.Event:2"))
    if first_step <= 1:
        return version
    return version + _event(first_step, _bytes(7, _integer(1, 1)))  # SessionLog.START


def scalars(step: int, values: Mapping[str, float]) -> bytes:
    """One event: the values by tag after `step` steps."""
    summary = b"".join(
        _bytes(1, _bytes(1, tag.encode()) + _tag(2, _FLOAT) + struct.pack("<f", value)) for tag, value in values.items()
    )
    return _event(step, _bytes(5, summary))


def _event(step: int, content: bytes) -> bytes:
    data = _tag(1, _DOUBLE) + struct.pack("<d", time.time()) + _integer(2, step) + content
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _tag(field: int, wire_type: int) -> bytes:
    return bytes([field << 3 | wire_type])


def _integer(field: int, value: int) -> bytes:
    return _tag(field, _VARINT) + _varint(value)


def _bytes(field: int, content: bytes) -> bytes:
    return _tag(field, _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _crc_table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (_POLYNOMIAL if value & 1 else 0) for value in table]
    return table


_TABLE = _crc_table()


def _checksum(data: bytes) -> bytes:
    """CRC-32C, turned and moved as TensorFlow does, so that a checksum of checksums is none of them."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


class EventFile:
    """One launch's file in `folder`; `first_step` is the first one that this launch takes."""

    def __init__(self, folder: Path, first_step: int) -> None:
        self._file = LogFile(folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}")
        self._first_step = first_step

    @property
    def is_written(self) -> bool:
        """Whether all so far is in the file."""
        return self._file.is_written

    def sync(self) -> None:
        """Let a power cut take none of it."""
        self._file.sync()

    def add(self, step: int, values: Mapping[str, Any], prefix: str) -> None:
        """Note the finite numbers among `values`, as `prefix/name`."""
        numbers = {
            f"{prefix}/{name}": float(value)
            for name, value in values.items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        }
        if not numbers:
            return
        if not self._file.path.parent.is_dir():
            with suppress(OSError):  # the file cannot be opened then, and that is what is said
                self._file.path.parent.mkdir()
        begin = b"" if self._file.path.exists() or not self._file.is_written else first_events(self._first_step)
        self._file.append(begin + scalars(step, numbers))
