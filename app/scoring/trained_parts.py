"""Write and read parts.json, in which an online trainer reports on the latest parts (files) of its growing log. The
file lies beside the trainer's bundles.

The HTTP service shows the report on its page, but does not depend on it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.files import parse_json, write_whole

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
