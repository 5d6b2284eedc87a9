"""Find the parts of a growing log (files, or versions of a Delta table), read them, and check if the model may be
trained on each part. A part that fails the check is held aside: the model is not trained on it.

A part that is a file is complete when it gets its name. Parts are taken in the natural order of their names (part-2
before part-10). A Delta table's versions are taken once and in order.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from common.packages import explain_missing
from common.text import natural_order, shortened
from data_prep.encoding.encoder import ParsedRows, RowEncoder
from data_prep.prepared.examples import Examples, concatenate
from data_prep.raw_log.lake.lake_file import LakeFile
from data_prep.raw_log.lake.lake_tables import DELTA_LOG, find_table, refuse, table_at
from data_prep.raw_log.log_files import find_log, is_part
from data_prep.raw_log.reading import file_of_log, open_reader
from data_prep.raw_log.storage import (
    FileState,
    LogFile,
    StoredFile,
    file_name,
    file_state,
    files_in,
    inner,
    is_uri,
    local_path,
    open_stream,
)

log = logging.getLogger("app")

T = TypeVar("T")

CHUNK_BYTES = 8 << 20
NO_STATE = FileState(-1, -1)  # Used in place of a file's size and time if the path is not that of a file.
# Number of most recent parts of the log with whose figures a new part is compared, to hold a suspicious one aside.
RECENT = 14
# Pauses in seconds before reading a part (file of the log) is tried again after an error of a disk or network. These
# first attempts keep the order of the parts through a short interruption. After the last attempt the part is held aside
# (not trained on now), so that later parts need not wait for it, and is tried again every READ_AGAIN_SECONDS.
READ_PAUSES, READ_AGAIN_SECONDS = (0.5, 1.0, 2.0, 4.0), 60.0
# A part of the log whose counts, such as clicks, deviate from the expected ones by fewer standard deviations than this
# is not refused as suspicious, whatever the bounds say, because the deviation may be chance.
FEW_CLICKS = 5.0
# Figures of fewer cases than this say little, because they may be far from the true ones by chance. A new part is
# compared with the click rate of the last parts if they have this number of clicks and of other rows, with their shares
# of missing and unknown values if they have this number of lines, and with the calibration of parts with this number of
# clicks.
ENOUGH = 25


@dataclass(frozen=True)
class Part:
    """A part of the log after it was read: all its rows, in memory, and the figures that the guard (the checks before a
    part is trained on) compares with those of other parts.
    """

    file: LogFile
    checksum: str
    parsed: Sequence[ParsedRows]  # The good lines after parsing: one `ParsedRows` for each chunk of the file, in order.
    rows: Examples  # The part's good lines in encoded form: ids, numbers, labels and weights.
    num_lines: int
    first_reject: str  # Text of the first bad line and the reason why it is bad. "" if all lines are good.
    # For each column, the share of the part's rows in which the cell is missing, see `GrowingVocabulary.shares`.
    missing: Sequence[float] = ()
    # For each categorical column, the share of this part's rows whose value had no id when the part was read.
    unknown: Sequence[float] = ()
    # Sum of the part's scores, divided by its number of clicks. None if it has no clicks. The scores are those of the
    # model before it is trained on this part.
    calibration: float | None = None
    # Number of the part's rows in each bin of the score, see `count_scores`. The scores are those of the model before
    # it is trained on this part.
    scores: Sequence[int] = ()

    @property
    def row_numbers(self) -> np.ndarray:
        """Index of each good line among all lines of the file, [n], starting at 0."""
        return np.concatenate([rows.row_numbers for rows in self.parsed])

    @property
    def counts(self) -> dict[str, Any]:
        """The figures by which the guard (the checks before training) compares parts of the log, by name: the numbers
        of lines, of rows (good lines) and of clicks, and the fields `missing`, `unknown`, `calibration` and `scores`.

        For weighted rows, the sums of weights replace the numbers of rows and clicks.
        """
        weights = np.ones(len(self.rows)) if self.rows.weights is None else self.rows.weights.astype(np.float64)
        clicks = float((weights * self.rows.labels).sum())
        looked_at = {name: getattr(self, name) for name in ("missing", "unknown", "calibration", "scores")}
        return {"lines": self.num_lines, "rows": float(weights.sum()), "clicks": clicks} | looked_at


@dataclass(frozen=True)
class GuardBounds:
    """Bounds of the guard, the checks before a part (file of the log) is trained on. A part that exceeds a bound is
    held aside, that is, not trained on.
    """

    # Maximum share of bad lines in a part (file of the log). An online run uses the setting
    # prepare.max_reject_fraction.
    rejected: float = 0.0
    # Largest factor, up or down, between the click rate of a part (file of the log) and that of the parts before it.
    change: float = 3.0
    # Largest factor, up or down, between the calibration of a part (the sum of its scores divided by the number of
    # clicks) and the median calibration of the parts before it.
    miscalibration: float = 2.0
    # Maximum difference between a column's share of missing cells in a part and the highest such share in one of the
    # parts before it.
    missing: float = 0.2
    # Maximum difference between a column's share of values without ids in a part and the highest such share in one of
    # the parts before it.
    unknown: float = 0.3


@dataclass(frozen=True)
class Ledger:
    """The record of the parts (files of the log) that a model was trained on, and of the decision whether to publish
    the model. The manifest of each checkpoint of an online run stores this record as JSON.
    """

    # The parts, by name, in the order of training. Each record has the checksum of the file's content (`checksum`) and
    # the file's size and time (`state`). An equal `state` shows that the file is unchanged without reading it.
    trained: dict[str, dict[str, Any]] = field(default_factory=dict)
    # `Part.counts` (numbers of rows, clicks and so on) of the last RECENT parts.
    recent: list[dict[str, Any]] = field(default_factory=list)
    # Names of the files with sampled rows of the last parts, which `candidate.Samples` writes.
    samples: list[str] = field(default_factory=list)
    # Reason why the model is not published that resulted from training on the last part, or "" if it is published.
    withheld: str = ""
    # Unit in which the ages of values are measured ("rows" or "seconds"), or "" if no value ever expires.
    ages_in: str = ""

    def after(self, part: Part, existing: Collection[str] = (), keep: int = 0) -> Ledger:
        """Return a copy of this record to which `part`, a file of the log that the model was trained on now, is added.

        If `keep` is above 0, drop old records. The records of the last `keep` parts stay, those of parts whose file
        names are in `existing`, and that of the part whose name sorts last.
        """
        record = {"checksum": part.checksum, "state": asdict(part.file.state)}
        recent = [*self.recent, part.counts][-RECENT:]
        trained = self.trained | {part.file.name: record}
        needed = {*existing, *list(trained)[-keep:], max(trained, key=_order)} if keep else trained
        return replace(self, trained={name: trained[name] for name in trained if name in needed}, recent=recent)

    def has(self, file: LogFile) -> bool:
        """Return True if the model was trained on the part in `file`, and the file's size and time have not changed
        since that training.
        """
        record = self.trained.get(file.name)
        return record is not None and record["state"] == vars(file.state)

    def why_never(self, name: str, checksum: str) -> str | None:
        """Return None if the model may be trained on the part `name`, and "" if it was trained on this part already.
        Otherwise return why the model must never be trained on it: another trained part has the same name or the same
        content.
        """
        if name in self.trained:
            if self.trained[name]["checksum"] == checksum:
                return ""
            return "it was trained on with another content; give new rows a new name, after those of the others"
        if twin := next((other for other, record in self.trained.items() if record["checksum"] == checksum), None):
            return f"it has the content of {twin}, which was trained on"
        return None

    def why_late(self, name: str) -> str | None:
        """Return a text that says why the part `name` comes too late: its name sorts before the name of a part that the
        model was trained on. Return None if it does not come too late.
        """
        if self.trained and _order(name) < _order(last := max(self.trained, key=_order)):
            return f"it comes before {last}, which was trained on; rename it to a name after that to train on it now"
        return None


class PartSource:
    """The parts of a log in a folder.

    `held` maps the name of each part that is held aside (not trained on) to the reason. A part is held aside until its
    file changes. A user can release the parts in `can_be_released`, which maps names to checksums, earlier than that:
    by writing a file into the folder `released` that has the part's name and contains its checksum.
    """

    def __init__(self, folder: str, released: Path, delay_seconds: float = 0.0) -> None:
        """Open the folder of parts. A part, and all parts after it, must wait until its file has not changed for
        `delay_seconds`.

        Raise FileNotFoundError if the folder does not exist.
        """
        self.folder, self._released, self._delay_seconds = folder, released, delay_seconds
        self.waiting = ""  # Name of the next part's file if it must still wait for `delay_seconds`, otherwise "".
        self.held: dict[str, str] = {}
        self.can_be_released: dict[str, str] = {}
        self._looked_at: dict[str, FileState] = {}
        # Times (of time.monotonic) from which reading is tried again, by the names of the files of the log that could
        # not be read.
        self._read_again: dict[str, float] = {}
        # Names of files in the folder that do not look like files of the log. The training log has mentioned them
        # already.
        self._no_parts: set[str] = set()
        self._files()

    def names(self) -> set[str]:
        """Return the names of all parts (files of the log) in the folder, including those that the model was trained on
        already and those that it must not be trained on.
        """
        return {file.name for file in self._files()}

    def is_released(self, name: str, checksum: str) -> bool:
        """Return True if a user has released the part `name`, that is, allowed to train on it although it was refused.
        The user's permission must be for a file with the checksum `checksum`.
        """
        path = self._released / name
        return path.is_file() and path.read_bytes().strip() == checksum.encode()

    def next_part(self, ledger: Ledger) -> tuple[LogFile, str] | None:
        """Return the next part (file of the log) that the model may be trained on, and the checksum of its content.
        Return None if no part is left, or if the next part must still wait, because its file has changed within the
        last `delay_seconds`.

        Earlier parts that the model must not be trained on are held aside.
        """
        files, self.waiting = self._files(), ""
        no_files = self._no_files(files)
        for name in self._looked_at.keys() - {file.name for file in files} - no_files.keys():
            self._forget(name)
        for name, kind in no_files.items():
            what = f"it is {kind}, and a part is a file; move it elsewhere, or put the file in its place"
            self.hold(LogFile(f"{self.folder}/{name}", name, NO_STATE), what)
        for file in files:
            if ledger.has(file) or (self._is_known(file) and not self._is_wanted(file.name)):
                continue
            # Compare the time of the file with the clock only if there is a delay, because the clock that set the
            # file's time may be ahead of this machine's.
            if self._delay_seconds and time.time() - file.state.modified_ns / 1e9 < self._delay_seconds:
                self.waiting = file.name
                return None
            if (checksum := self.read(file, partial(_checksum, file))) is None:
                continue
            if (reason := ledger.why_never(file.name, checksum)) is not None:
                self.hold(file, reason)
            elif not self.accepts(file):
                continue
            elif (reason := ledger.why_late(file.name)) and not self.is_released(file.name, checksum):
                self.hold(file, reason, checksum)
            else:
                self._forget(file.name)
                return file, checksum
        return None

    def accepts(self, file: LogFile) -> bool:
        """Return True if the model may be trained on the part in `file`.

        Otherwise return False; `next_part` then goes on to the part after it. This class accepts every part, but a
        subclass can reject some.
        """
        return True

    def data_files(self) -> Sequence[LogFile]:
        """Return the files that contain the rows of the part which `next_part` returned last. Return () if the part's
        own file contains them.
        """
        return ()

    def read(self, file: LogFile, reading: Callable[[], T]) -> T | None:
        """Call the function `reading`, which reads the part in `file`, and return its result. After an error of a disk
        or network, pause and call it again. If the part cannot be read, hold it aside (do not train on it) and return
        None. If its file was removed, return None.
        """
        pauses = () if file.name in self._read_again else READ_PAUSES
        for pause in (*pauses, None):
            try:
                return reading()
            # The part's file was removed from the folder. The next call of `next_part` drops what `self` holds about
            # the part.
            except FileNotFoundError:
                return None
            except OSError as error:
                if pause is None or isinstance(error, PermissionError):
                    why = error.strerror or str(error)
                    why += "; let this user read it" * isinstance(error, PermissionError)
                    self.hold(file, f"it cannot be read: {why}; it is tried again every {READ_AGAIN_SECONDS:g} s")
                    self._read_again[file.name] = time.monotonic() + READ_AGAIN_SECONDS
                    return None
                time.sleep(pause)
        return None

    def hold(self, file: LogFile, reason: str, checksum: str = "") -> None:
        """Hold the part in `file` aside: `next_part` does not return it again until its file changes or, if a
        `checksum` is given, until a user releases the part. Record and log the reason.

        If the reason is "", the part is skipped silently, because the model was trained on it already.
        """
        before = self.held.get(file.name)
        self._forget(file.name)
        self._looked_at[file.name] = file.state
        if checksum:
            self.can_be_released[file.name] = checksum
        if reason:
            self.held[file.name] = reason
        if reason and reason != before:
            log.warning("warning: %s is held aside: %s", file.location, reason)

    def _forget(self, name: str) -> None:
        for of_parts in (self._looked_at, self.held, self.can_be_released, self._read_again):
            of_parts.pop(name, None)

    def _is_known(self, file: LogFile) -> bool:
        next_try = self._read_again.get(file.name, math.inf)
        return self._looked_at.get(file.name) == file.state and time.monotonic() < next_try

    def _is_wanted(self, name: str) -> bool:
        return name in self.can_be_released and self.is_released(name, self.can_be_released[name])

    def _no_files(self, files: Sequence[LogFile]) -> dict[str, str]:
        """Find entries of the folder that have the name of a part but are not files. Return for each name what it is
        ("a folder", "a link to nothing", "a pipe or a device").

        A folder without an ending in its name is left out, because it may contain old parts. A partition folder such as
        `date=2026-11-01` is returned, because the preparation of a log would read the files in it.
        """
        kinds: dict[str, str] = {}
        names = set() if is_uri(self.folder) else {path.name for path in Path(self.folder).iterdir()}
        for name in filter(is_part, sorted(names - {file.name for file in files})):
            path = Path(self.folder, name)
            if path.is_dir():
                kinds |= {name: "a folder"} if path.suffix or "=" in name else {}
            elif not path.is_file() and os.path.lexists(path):
                kinds[name] = "a link to nothing" if path.is_symlink() else "a pipe or a device"
        return kinds

    def _files(self) -> list[LogFile]:
        paths = files_in(self.folder)
        # Listing a folder is not atomic: a list may contain a part and miss an earlier part that appeared in the folder
        # before it. So list the folder until two lists in a row are equal.
        while paths != (again := files_in(self.folder)):
            paths = again
        if paths is None:
            raise FileNotFoundError(f"SOURCE {self.folder}: there is no such folder; parts are renamed into it")
        names = self._named(paths)
        parts = sorted(names, key=lambda path: _order(names[path]))
        # `file_state` returns None if the file was removed since the folder was listed.
        states = {path: file_state(path) for path in parts}
        return [LogFile(path, names[path], state) for path, state in states.items() if state is not None]

    def _named(self, paths: Sequence[str]) -> dict[str, str]:
        """Return the names of the parts among the files `paths`, by path. Log a warning for the files that are no
        parts.
        """
        names = {path: file_name(path) for path in paths}
        self._log_no_parts({name for name in names.values() if not is_part(name)})
        return {path: name for path, name in names.items() if is_part(name)}

    def _log_no_parts(self, names: set[str]) -> None:
        """Log a warning for each file in the folder of the log whose name is not that of a log file (a part), because a
        user may have meant it as one. Each file is named only once.
        """
        names = {name for name in names if not name.startswith((".", "_")) and not name.endswith(".truth.parquet")}
        if new := shortened(sorted(names - self._no_parts), 5):
            log.warning(
                "warning: not read as parts of the log, by their names: %s; a part's name ends in .csv, .jsonl, "
                ".parquet or another ending of a log, or has none",
                new,
            )
        self._no_parts = names


def _checksum(file: LogFile) -> str:
    with open_stream(file.location) as raw, StoredFile(raw) as stored:
        return stored.fingerprint().checksum


def read_part(file: LogFile, checksum: str, encoder: RowEncoder, files: Sequence[LogFile] = ()) -> Part:
    """Read, parse and encode a part, in the same way as the preparation of a log does, and return it.

    `checksum` is the checksum of the part's file, which the result records. `files` are the data files that have the
    rows, or () if `file` has them. Raise ValueError if a file is damaged, has other columns than `encoder`, or changes
    while it is read, or if there are no lines.
    """
    if not files:
        find_log(file.location)  # `find_log` raises an error if the name is not that of a log file.
    pieces, examples, num_lines, first_reject = [], [], 0, ""
    log_format = encoder.log_format
    for place, each in enumerate(files or [file]):
        of_log = file_of_log(place, each.name, num_lines, each, log_format)
        with open_reader(each, log_format) as reader:
            for task, _ in reader.chunks(CHUNK_BYTES, of_log):
                parsed, rows = encoder.encode(task.load())
                examples.append(rows)
                pieces.append(parsed.rows)
                num_lines += task.num_lines
                first_reject = first_reject or parsed.rejects_tsv.split(b"\n")[0].decode(errors="replace")
                if file_state(each.location) != each.state:
                    raise ValueError("it changed while it was read; rename a part into the folder when it is whole")
    if not examples:
        raise ValueError("it has no lines")
    return Part(file, checksum, pieces, concatenate(examples), num_lines, first_reject)


def why_suspicious(
    part: Part, ledger: Ledger, click_rate: float, bounds: GuardBounds, columns: Sequence[str] = ()
) -> str | None:
    """Return the reason why a part (file of the log) is suspicious, or None if its figures are similar to those of the
    last parts. It is suspicious if one of these figures exceeds a bound: the share of bad lines, the change of the
    click rate, or a column's share of missing cells or of values without ids. A part whose labels are all equal is
    suspicious if it has so many rows that chance does not explain it.

    `click_rate` is that of the data that the model was trained on before. It is used as long as the last parts have few
    clicks (ENOUGH). `columns` are the names of the columns that the shares in the part belong to.
    """
    counts = part.counts
    num_rejected = part.num_lines - len(part.rows)
    if num_rejected > bounds.rejected * part.num_lines:
        return (
            f"{num_rejected:,} of its {part.num_lines:,} lines are bad, more than prepare.max_reject_fraction "
            f"{bounds.rejected:g}; the first: {part.first_reject[:200]!r}"
        )
    clicks, rows = (sum(each[name] for each in ledger.recent) for name in ("clicks", "rows"))
    usual, source = click_rate, "the training rows"
    if min(clicks, rows - clicks) >= ENOUGH:
        usual, source = clicks / rows, "the last parts"
    rate, expected = counts["clicks"] / counts["rows"], counts["rows"] * usual
    is_chance = abs(counts["clicks"] - expected) <= FEW_CLICKS * np.sqrt(expected * (1 - usual) + 1)
    if not is_chance and rate in (0, 1):
        return (
            f"all its labels are equal: it has {counts['clicks']:,.0f} clicks, and {expected:,.1f} are expected at the "
            f"click rate of {source}, {usual:.4f}"
        )
    if not is_chance and _is_far(rate, usual, bounds.change):
        return (
            f"its click rate is {rate:.4f}, that of {source} {usual:.4f}: more than a factor of {bounds.change:g} "
            "apart (--most-change)"
        )
    for name, what, bound in (("missing", "are missing", bounds.missing), ("unknown", "have no id", bounds.unknown)):
        shares, num_rows = np.array(counts[name]), len(part.rows)
        if (most := _most_usual(ledger.recent, name)) is None:
            continue
        rise = shares - most - bound - FEW_CLICKS * np.sqrt(shares * (1 - shares) * num_rows + 1) / num_rows
        if rise.size and rise.max() > 0:
            worst = int(rise.argmax())
            return (
                f"{shares[worst]:.1%} of the values of {columns[worst]} {what}, in the last parts at most "
                f"{most[worst]:.1%}: a rise of more than {bound:.0%} (--most-{name})"
            )
    return None


def _most_usual(recent: Sequence[dict[str, Any]], name: str) -> np.ndarray | None:
    """Return, for each column, the largest of the shares `name` in the last parts, or None if these have too few lines
    together. Parts with too few lines of their own (ENOUGH) count only through the mean over all parts.
    """
    last = [each for each in recent if each.get(name)]
    shares, lines = np.array([each[name] for each in last]), np.array([each["lines"] for each in last])
    if lines.sum() < ENOUGH:
        return None
    return np.max([np.average(shares, axis=0, weights=lines), *shares[lines >= ENOUGH]], axis=0)


def why_miscalibrated(part: Part, ledger: Ledger, bounds: GuardBounds) -> str | None:
    """Return the reason why a part (file of the log) is suspicious because of its calibration (the sum of the model's
    scores divided by the number of clicks), or None if the calibration is near the median calibration of the last
    parts. Of these, only parts with enough clicks (ENOUGH) count.

    Return None also if the part has no clicks, or if the model that scored the part was not published, because the
    reason may then lie in the model instead of the part.
    """
    last = [each["calibration"] for each in ledger.recent if each.get("calibration") and each["clicks"] >= ENOUGH]
    clicks, actual = part.counts["clicks"], part.calibration
    if not last or not actual or ledger.withheld:
        return None
    usual = float(np.median(last))
    is_chance = abs(actual / usual - 1) * clicks <= FEW_CLICKS * np.sqrt(actual / usual * clicks + 1)
    if is_chance or not _is_far(actual, usual, bounds.miscalibration):
        return None
    return (
        f"the model expects {actual:.3f} times its clicks, of the last parts {usual:.3f} times: more than a factor of "
        f"{bounds.miscalibration:g} apart (--most-miscalibration)"
    )


def _is_far(value: float, usual: float, factor: float) -> bool:
    return not usual / factor <= value <= usual * factor


def why_useless(part: Part) -> str | None:
    """Return the reason why a model cannot be trained on a part (file of the log): no line is good, or all weights are
    0. Otherwise return None.
    """
    if not len(part.rows):
        return f"{part.num_lines:,} of its {part.num_lines:,} lines are bad; the first: {part.first_reject[:200]!r}"
    return None if part.counts["rows"] else "the weights of all its rows are 0"


def _order(name: str) -> tuple[list[tuple[int, str]], str]:
    return natural_order(name), name


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
