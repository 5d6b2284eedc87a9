"""Read and write the durable statement of which version must serve, and choose the model that follows from it.

The file current.json holds {"pinned": VERSION}, or {"pinned": null} for the newest version. Without the file the newest
version serves.
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
    """Return the chain that must serve in place of `current`. None means that `current` stays or nothing can be opened.

    `versions` holds the chains that can be opened. This function depends on neither clock nor files.
    """
    chain = max(versions.values(), key=rank, default=None) if pinned is None else versions.get(pinned)
    if chain is None or current is None:
        return chain
    if chain[-1][1].version == current[-1][1].version:
        return chain if len(chain) == 1 < len(current) else None  # The same version was folded into a whole bundle.
    return chain if pinned is not None or rank(chain) > rank(current) else None


class Statement:
    """The file current.json in a folder. All processes of the service share it."""

    def __init__(self, options: ServerOptions) -> None:
        self.path = (options.state or options.path) / STATEMENT

    def read(self) -> str | None:
        """Return the pinned version in its short form, or None for the newest. Raise ValueError if the file is
        damaged.
        """
        try:
            # Bytes that are not UTF-8 are escaped, and then fail as JSON.
            text = self.path.read_text(encoding="utf-8", errors="backslashreplace")
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
        """Pin a version, or unpin with None. The file is replaced atomically. Raise ValueError if it cannot be
        written.
        """
        # Another process may write at the same time.
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
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
