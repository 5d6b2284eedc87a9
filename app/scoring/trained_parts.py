"""The report of an online trainer on its last parts, for whoever serves its bundles: the file parts.json beside them.

The service shows it on its page and needs none of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.files import parse_json, write_whole

TRAINED_PARTS = "parts.json"
MOST_BYTES = 1 << 20
ROW = "; the first: "  # begins a line of the log in the reason of a part that is held aside


def write_trained_parts(folder: Path, content: dict[str, Any]) -> None:
    """Write the file atomically: `parts` in their order, reasons by name of those that are `held`, and the time.

    A reason is cut where it quotes a row, since whoever reaches the service may read it. Raises OSError.
    """
    reasons = {name: reason.partition(ROW)[0] for name, reason in content["held"].items()}
    write_whole(folder / TRAINED_PARTS, json.dumps(content | {"held": reasons}) + "\n")


def read_trained_parts(folder: Path) -> dict[str, Any] | None:
    """Return the file's content, or the `error` for which it cannot be shown. None if there is no trainer."""
    path, damaged = folder / TRAINED_PARTS, f"{TRAINED_PARTS} is damaged; the trainer writes it anew with its next part"
    try:
        with path.open("rb") as file:
            content = parse_json(file.read(MOST_BYTES), parse_constant=lambda _: None)  # JSON has no NaN
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
