"""List the settings of the section `prepare` that earlier releases had."""

from __future__ import annotations

from common.settings import ANY_VALUE, Removed

REMOVED = {
    "prepare.block_rows": Removed(ANY_VALUE, "a MindRecord sample has 1,000 rows"),
    "prepare.missing_indicator": Removed(
        ANY_VALUE, "every numeric field has a column that tells missing cells, but with prepare.layout=zoo none has"
    ),
    "prepare.data.archive_member": Removed(
        ANY_VALUE, "the log in a .tar.gz is its file named train, with any ending; unpack it if it has another name"
    ),
}
