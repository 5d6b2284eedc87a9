"""Checksums of files, as schema.json states them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import xxhash


def checksum(path: Path) -> str:
    """`xxh3:` and 16 hex digits of a file's bytes."""
    with path.open("rb") as file:
        return f"xxh3:{hashlib.file_digest(file, xxhash.xxh3_64).hexdigest()}"
