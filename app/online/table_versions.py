"""Take the new versions of a Delta table as the parts of a growing log, each version once and in order."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from app.online.log_parts import Ledger, PartSource
from common.packages import explain_missing
from data_prep.raw_log.lake.lake_file import LakeFile
from data_prep.raw_log.lake.lake_tables import DELTA_LOG, find_table, refuse, table_at
from data_prep.raw_log.storage import LogFile, file_name, file_state, inner, is_uri, local_path

log = logging.getLogger("app")

# Pattern of the name of an entry, a file in the log of a Delta table (the folder _delta_log). An entry describes one
# version of the table: 00000000000000000007.json lists the data files that version 7 adds and removes.
_ENTRY = re.compile(r"(\d{20})\.json")
_PART = "version-{}"


def open_source(location: str, released: Path, delay_seconds: float, prepared_from: Mapping[str, Any]) -> PartSource:
    """Open the log at `location`, and return the source of its parts: a folder, whose files are the parts, or a Delta
    table, whose versions are the parts.

    `prepared_from` is `Schema.source` of the run's prepared folder. If that folder was prepared from a version of this
    Delta table, the parts begin with the next version. Raise FileNotFoundError if nothing is at `location`. Raise
    ValueError for a table that is no Delta table, for a path inside a table, or if the library deltalake is missing.
    """
    location = local_path(location)
    table = table_at(location)
    if table is None or table.kind != "Delta":
        refuse(find_table(location))
        return PartSource(location, released, delay_seconds)
    if importlib.util.find_spec("deltalake") is None:
        raise ValueError(f"{table}, and {explain_missing('deltalake')}")
    root = location.rstrip("/") if is_uri(location) else os.path.realpath(location)
    first = prepared_from["version"] + 1 if prepared_from.get("table") == root else 0
    log.info("%s: the versions of the Delta table from %s on are the parts", root, first)
    return TableSource(root, released, delay_seconds, first)


class TableSource(PartSource):
    """The versions of a Delta table as parts. The file of a part is the version's entry in the table's log, such as
    _delta_log/00000000000000000007.json, and the name of this part is version-7.

    A version that adds rows is a part. A version that changes no rows, such as a compaction, is passed over, and one
    that removes or replaces rows is held aside.
    """

    def __init__(self, root: str, released: Path, delay_seconds: float, first: int) -> None:
        self._root, self._first = root, first
        # Number of the newest version of the table that was already trained on, passed over or held aside.
        self._decided = first - 1
        # `_added`: the data files of the table version that `next_part` examined last, by their locations.
        # `_data_files`: the data files of the version that `next_part` returned last.
        self._added: dict[str, LakeFile] = {}
        self._data_files: list[LogFile] = []
        super().__init__(inner(root, DELTA_LOG), released, delay_seconds)

    def next_part(self, ledger: Ledger) -> tuple[LogFile, str] | None:
        """Return the next version of the table that the model may be trained on and the checksum of its entry, or None,
        as `PartSource.next_part` does for files.

        Raise ValueError if the table no longer has the log entry or the data files of a version that was not trained on
        yet.
        """
        self._decided = max([self._decided, *map(_number, ledger.trained)])
        found = super().next_part(ledger)
        if found is None:
            return None
        self._data_files = []
        for location, lake in self._added.items():
            if (state := file_state(location)) is None:
                what = "has lost data files, probably by a vacuum after a compaction"
                raise ValueError(self._lost(_number(found[0].name), what))
            self._data_files.append(LogFile(location, file_name(location), state, lake))
        return found

    def data_files(self) -> Sequence[LogFile]:
        return self._data_files

    def accepts(self, file: LogFile) -> bool:
        """Return True if the version of the table that `file` describes only adds rows. Otherwise return False, and
        hold the version aside, or pass it over if it changes no rows.

        Raise ValueError if the table's log no longer has an entry for an earlier version that this object has not
        looked at.
        """
        # The module delta_table imports the package deltalake, which may be missing.
        from data_prep.raw_log.lake.delta_table import files_added

        number = _number(file.name)
        if number > self._decided + 1:
            raise ValueError(self._lost(self._decided + 1, "has no entry any more in the table's log"))
        try:
            added = self.read(file, partial(files_added, self._root, number))
        except ValueError as error:
            self.hold(file, str(error))
            return False
        if added is not None and not added:
            log.info("version %s of %s changes no rows; it is passed over", number, self._root)
            self.hold(file, "")
        self._added = added or {}
        return bool(added)

    def hold(self, file: LogFile, reason: str, checksum: str = "") -> None:
        super().hold(file, reason, checksum)
        self._decided = max(self._decided, _number(file.name))

    def _lost(self, version: int, what: str) -> str:
        return (
            f"version {version} of the Delta table {self._root} {what}, so the rows that it added are not known, and "
            "the model was not trained on them. Prepare the table's newest version, train a model on it, and begin "
            "another online run with it and another --work; look at the table more often, or keep its log longer"
        )

    def _named(self, paths: Sequence[str]) -> dict[str, str]:
        matches = {path: _ENTRY.fullmatch(file_name(path)) for path in paths}
        numbers = {path: int(match[1]) for path, match in matches.items() if match}
        return {path: _PART.format(number) for path, number in numbers.items() if number >= self._first}


def _number(name: str) -> int:
    """Return the number of a version of the Delta table from the name of its part: 7 for version-7. Return -1 if `name`
    does not have this form.
    """
    match = re.fullmatch(_PART.format(r"(\d+)"), name)
    return int(match[1]) if match else -1
