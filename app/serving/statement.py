"""The durable statement of what must serve, and the rule that follows it, which knows neither clock nor file.

current.json holds {"pinned": VERSION}, or {"pinned": null} for the newest. Without the file the newest is meant too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress

from app.scoring.bundle_folder import Chain, rank
from app.serving.options import ServerOptions
from common.files import make_folder, parse_json, sync_folder, write_whole

STATEMENT = "current.json"


def choose(versions: Mapping[str, Chain], pinned: str | None, current: Chain | None) -> Chain | None:
    """Return what must serve in place of `current`. None if that stays, or if nothing else can be opened."""
    chain = max(versions.values(), key=rank, default=None) if pinned is None else versions.get(pinned)
    if chain is None or current is None:
        return chain
    if chain[-1][1].version == current[-1][1].version:
        return chain if len(chain) == 1 < len(current) else None  # folded
    return chain if pinned is not None or rank(chain) > rank(current) else None


class Statement:
    """The file current.json of a folder, the same for all processes."""

    def __init__(self, options: ServerOptions) -> None:
        self.path = (options.state or options.path) / STATEMENT

    def read(self) -> str | None:
        """Return the short version that is pinned, None for the newest. Raises ValueError if the file is damaged."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="backslashreplace")  # what is no UTF-8 is no JSON then
        except FileNotFoundError:
            return None
        with suppress(ValueError, KeyError, TypeError):
            pinned = parse_json(text)["pinned"]
            if pinned is None or isinstance(pinned, str):
                return pinned
        raise ValueError(
            f'{self.path} is damaged: expected {{"pinned": VERSION or null}}, found {text[:80]!r}; pin a version anew '
            "(/v1/pin, or serve --version), or remove the file to serve the newest"
        )

    def write(self, pinned: str | None) -> None:
        """Pin a version, or none, atomically. Raises ValueError if nothing can be written."""
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")  # another process may write at the same time
        try:
            make_folder(self.path.parent)
            write_whole(beside, json.dumps({"pinned": pinned}) + "\n")
            beside.replace(self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            raise ValueError(
                f"{self.path} cannot be written ({error.strerror}), so no process would know of it after a restart; "
                "start the service with --state DIR, a folder that can be written"
            ) from None
