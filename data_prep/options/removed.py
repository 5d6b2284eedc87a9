"""List the settings of the section `prepare` that earlier releases had."""

from __future__ import annotations

from common.settings import Removed

REMOVED = {
    "prepare.block_rows": Removed("a MindRecord sample has 1,000 rows"),
    "prepare.missing_indicator": Removed(
        "numeric fields have indicators, but not in prepare.layout=zoo"
    ),
    "prepare.data.archive_member": Removed(
        "the log in a .tar.gz is its file named train; else unpack it"
    ),
}
