"""Small files that are there whole or not at all, whatever ends the process."""

from __future__ import annotations

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it, so that a kill or a full disk leaves what was there before."""
    beside = path.with_name(f"{path.name}.tmp")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
