"""Damage to the files of a test."""

from pathlib import Path


def flip_bit(path: Path, place: int = -1) -> None:
    """Change a bit of one byte of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
