"""Read and write the file current.json, which states which version of the model must answer requests (serve), and
choose the bundles of this version.

The file contains {"pinned": VERSION}, or {"pinned": null} if the newest version must serve. Without the file the newest
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
    """Return the chain (whole bundle and deltas) that must serve in place of `current`, or None if `current` must stay.
    If `current` is None, no model serves yet, and the result None means that there is nothing to serve.

    `versions` holds the chains that can be opened, and `pinned` is the version that must serve, or None for the newest.
    The result depends on the arguments alone, not on the clock or on files.
    """
    chain = max(versions.values(), key=rank, default=None) if pinned is None else versions.get(pinned)
    if chain is None or current is None:
        return chain
    if chain[-1][1].version == current[-1][1].version:
        # The chosen version serves already. Open it again only if the folder now has it as a single whole bundle, into
        # which its deltas were merged.
        return chain if len(chain) == 1 < len(current) else None
    return chain if pinned is not None or rank(chain) > rank(current) else None


class Statement:
    """The file current.json, which says which version must serve. It lies in the folder `options.state`, or
    `options.path` by default, and all processes of the service read it.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.path = (options.state or options.path) / STATEMENT

    def read(self) -> str | None:
        """Return the version that must serve (the pinned version, without the prefix "xxh3:"), or None if the newest
        must serve. Raise ValueError if the file is damaged.
        """
        try:
            # Let bytes that are not valid UTF-8 become escape sequences, which are not valid JSON, so that a damaged
            # file raises the ValueError below.
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
        """Write current.json, atomically: `pinned` is the version that must serve, or None for the newest. Raise
        ValueError if the file cannot be written.
        """
        # Write to a temporary file of this process first, because another process may write current.json at the same
        # time.
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
