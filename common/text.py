"""Small texts in messages: the name that was meant, long lists, and names in the order in which people number them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like `name`; "" if none is."""
    return "".join(difflib.get_close_matches(name, list(known), n=1, cutoff=0.5))


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known one, else all of them."""
    return f"did you mean {close!r}?" if (close := nearest(name, known)) else f"known here: {', '.join(known)}"


def shortened(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first `most` texts, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


def natural_order(name: str) -> list[tuple[int, str]]:
    """Key of a sort in which day_2 comes before day_10."""
    parts = re.split(r"([0-9]+)", name)  # text and number by turns
    return [(int(part), "") if index % 2 else (-1, part) for index, part in enumerate(parts)]
