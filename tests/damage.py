"""A function that damages a file, for tests that must notice the damage."""

from pathlib import Path


def flip_bit(path: Path, place: int = -1) -> None:
    """Flip the lowest bit of the byte at the index `place` of a file, by default of the last byte."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
