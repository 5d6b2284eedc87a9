"""Exchange an online trainer's report on its latest parts: it writes parts.json next to its bundles.

The service shows the report on its page, but does not depend on it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.files import parse_json, write_whole

TRAINED_PARTS = "parts.json"
MOST_BYTES = 1 << 20
ROW = "; the first: "  # Precedes a quoted log line in the reason why a part is held aside.


def write_trained_parts(folder: Path, content: dict[str, Any]) -> None:
    """Write the file atomically.

    `content` has `parts` in their order, `held` with a reason for each part that was held aside, and the time. Reasons
    are cut before a quoted log line, because anybody who reaches the service may read them. Raise OSError.
    """
    reasons = {name: reason.partition(ROW)[0] for name, reason in content["held"].items()}
    write_whole(folder / TRAINED_PARTS, json.dumps(content | {"held": reasons}) + "\n")


def read_trained_parts(folder: Path) -> dict[str, Any] | None:
    """Return the file's content, or {"error": reason} if it cannot be shown, or None if there is no trainer."""
    path, damaged = folder / TRAINED_PARTS, f"{TRAINED_PARTS} is damaged; the trainer writes it anew with its next part"
    try:
        with path.open("rb") as file:
            # JSON has no NaN, so treat one as null.
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
