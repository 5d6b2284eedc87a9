"""List the settings of the section `prepare` that earlier releases had."""

from __future__ import annotations

from common.settings import Removed

REMOVED: dict[str, Removed] = {}
