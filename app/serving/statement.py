"""Read and write two files beside bundles: current.json, which states which version of the model must answer requests
(serve), and parts.json, in which an online trainer reports on the latest parts (files) of its growing log. Choose the
bundles of the version that must serve.

current.json contains {"pinned": VERSION}, or {"pinned": null} if the newest version must serve. Without the file the
newest version serves. The HTTP service shows the trainer's report on its page, but does not depend on it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

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


TRAINED_PARTS = "parts.json"
MOST_BYTES = 1 << 20
# The reason why the trainer does not train on a file of the log may quote a log line. This text stands before the
# quoted line.
ROW = "; the first: "


def write_trained_parts(folder: Path, content: dict[str, Any]) -> None:
    """Write `content` as parts.json into `folder` atomically. Raise OSError if the file cannot be written.

    `content` has `parts` (a list of reports in the order of training), `held` (for each part that the trainer does not
    train on, the reason by the part's name) and `written` (the time). A reason is cut before the log line that it
    quotes, because anybody who reaches the service may read it.
    """
    reasons = {name: reason.partition(ROW)[0] for name, reason in content["held"].items()}
    write_whole(folder / TRAINED_PARTS, json.dumps(content | {"held": reasons}) + "\n")


def read_trained_parts(folder: Path) -> dict[str, Any] | None:
    """Return the online trainer's report: the content of parts.json in `folder`. Return {"error": reason} if the file
    is damaged or cannot be read, and None if it does not exist.
    """
    path, damaged = folder / TRAINED_PARTS, f"{TRAINED_PARTS} is damaged; the trainer writes it anew with its next part"
    try:
        with path.open("rb") as file:
            # Python's parser accepts NaN and Infinity, which JSON does not have. Read both as None.
            content = parse_json(file.read(MOST_BYTES), parse_constant=lambda _: None)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return {"error": f"{TRAINED_PARTS} cannot be read: {error.strerror}"}
    except ValueError:
        return {"error": damaged}
    return content if _is_good(content) else {"error": damaged}


def _is_good(content: Any) -> bool:
    if not isinstance(content, dict) or not isinstance(content.get("written"), int | float):
        return False
    parts, reasons = content.get("parts"), content.get("held")
    are_parts = isinstance(parts, list) and all(isinstance(part, dict) for part in parts)
    return are_parts and isinstance(reasons, dict)
