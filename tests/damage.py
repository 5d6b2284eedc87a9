"""Functions that damage a file or let calls to the disk fail, for tests that must notice it."""

import contextlib
import itertools
import os
from pathlib import Path

import pytest


def flip_bit(path: Path, place: int = -1) -> None:
    """Flip the lowest bit of the byte at the index `place` of a file, by default of the last byte."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DISK_CALLS = ("open", "pwrite", "ftruncate", "fsync", "mkdir", "rename")


@contextlib.contextmanager
def disk_error(number, code):
    """Call `number` (0, 1, …) to the disk, and every one of its name after it, ends with this error."""
    calls, broken = itertools.count(), set()

    def failing(name, call):
        def called(*words, **named):
            if next(calls) == number:
                broken.add(name)
            if name in broken:
                raise OSError(code, os.strerror(code))
            return call(*words, **named)

        return called

    with pytest.MonkeyPatch.context() as patch:
        for name in DISK_CALLS:
            patch.setattr(os, name, failing(name, getattr(os, name)))
        yield broken
