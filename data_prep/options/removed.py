"""List the settings of the section `prepare` that earlier releases had."""

from __future__ import annotations

from common.settings import ANY_VALUE, Removed

REMOVED = {
    "prepare.data.archive_member": Removed(
        ANY_VALUE, "the log in a .tar.gz is its file named train, with any ending; unpack it if it has another name"
    ),
}
