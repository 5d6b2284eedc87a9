"""Find the files of a log: a single file, or several parts in natural order (day_2 before day_10).

An input is a file, a folder or a glob, given as a path or as a URI.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import glob
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from common.packages import make_command
from common.text import natural_order, nearest, shortened
from data_prep.raw_log import storage
from data_prep.raw_log.formats import TAR_ENDINGS, format_of, unpacked_name
from data_prep.raw_log.lake.lake_tables import LakeTable, find_table, refuse, table_at, table_files
from data_prep.raw_log.storage import LogFile, file_name, inner, is_uri

_OTHER_PACKED = (".xz", ".bz2", ".zip", ".lz4", ".Z", ".7z")  # Endings of compressed files that cannot be read.
_WHOLE_LOG = "train.txt"  # Name of Criteo's log.
_NAMES_SHOWN = 5
_ARCHIVE = "dac.tar.gz"  # Name of the archive with Criteo's log.
_HOW_TO_GET_IT = (
    "get it: the Criteo AI Lab offers dac.tar.gz as the Kaggle Display Advertising Challenge dataset "
    "(https://ailab.criteo.com/ressources/), under its own terms: {}. Or make a synthetic "
    "one: {}"
)

log = logging.getLogger(__name__)


def find_log(
    inputs: str | Path | Sequence[str | Path], version: int | None = None, earlier: Mapping[str, Any] | None = None
) -> tuple[LogFile, ...]:
    """Find the files of a log, and return them in the order in which they are read.

    Each input is a file, a folder, a glob or a URI. Inputs are read in the given order, and the files of one input in
    natural order. Folders such as `date=2026-11-01` in a folder belong to its log, and give a column of their own if
    they are below the given folder, or below the part of a glob that has no pattern. A log can also be one Delta or
    Iceberg table. Its data files are read in the order of their commits. `version` is the version of the Delta table or
    the id of a snapshot of the Iceberg table. If it is None, it is the version in `earlier`, which an earlier command
    with the same log has read, or else the newest one.

    Raise FileNotFoundError if an input has no files, and ValueError if an input is ambiguous, if a file occurs twice,
    if two files have different columns in the names of their folders, if a table cannot be read, or if an input belongs
    to a table of Delta, Iceberg, Hudi or Paimon whose files must not be read one by one.
    """
    listed = [storage.local_path(str(one)) for one in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    for location in listed:
        _check_no_password(location)
    look = functools.cache(table_at)  # Cached, because the files of a log mostly lie in the same folders.
    of_table = table_files(listed[0], look, version, earlier or {}) if len(listed) == 1 else None
    if version is not None and of_table is None:
        raise ValueError(f"--version {version} needs one Delta or Iceberg table as the log; {listed[0]} is not that")
    expanded = [] if of_table else [_expand(location, look) for location in listed]
    # For each location of a file, the columns that names of its folders such as date=2026-11-01 give. Files of a Delta
    # or Iceberg table are not included, because the table defines its columns.
    columns = {location: storage.columns_between(root, location) for root, found in expanded for location in found}
    locations = list(of_table or [location for _, found in expanded for location in found])
    real = [location if is_uri(location) else os.path.realpath(location) for location in locations]
    if len(set(real)) != len(real):
        twice = next(location for location, one in zip(locations, real, strict=True) if real.count(one) > 1)
        raise ValueError(f"the input names {twice} twice; its rows would be counted twice")
    for location in locations:
        _check_name(location)
    names = [file_name(location) for location in locations]
    if len(set(names)) != len(names):
        names = locations
    roots = (PurePosixPath(storage.split_query(root)[0]) for root, _ in expanded)
    above = [root for root in roots if storage.column_in(root.name) or storage.column_in(root.parent.name)]
    if above and not any(columns.values()):
        log.info("%s: names of folders above the input give no columns; to have them, give the folder above", above[0])
    files = []
    for location, name in zip(locations, names, strict=True):
        state = storage.file_state(location)
        if state is None and of_table:
            raise FileNotFoundError(
                f"{location} is gone, a data file of version {of_table[location].version} of the table {listed[0]}: it "
                "was probably removed by a vacuum or an expiry. Give a newer version, and --restart to begin anew"
            )
        if state is None:
            raise FileNotFoundError(f"{location} vanished while the input was examined")
        files.append(LogFile(location, name, state, (of_table or {}).get(location), columns.get(location, ())))
    storage.check_same_columns(files)
    return tuple(files)


def absolute(file: LogFile) -> LogFile:
    """Return a copy of the file with an absolute path, with which processes in another working directory find it.

    A URI stays unchanged.
    """
    location = file.location if is_uri(file.location) else str(Path(file.location).absolute())
    return dataclasses.replace(file, location=location)


def _check_name(location: str) -> None:
    """Raise ValueError if the path of a file contains a tab or a line end, or is not UTF-8.

    Such a path cannot be written to rejects.tsv and schema.json.
    """
    try:
        location.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name of {os.fsencode(location)!r} is not UTF-8; rename the file") from None
    if set(location) & set("\t\n\r"):
        raise ValueError(f"the name of {location!r} contains a tab or a line end; rename the file")


def _check_no_password(location: str) -> None:
    if is_uri(location) and urlsplit(location).password:
        raise ValueError(
            f"the URI of {file_name(location)} contains a password, which would appear in files and messages; "
            "pass it in the environment, see docs/data_format.md"
        )


def _expand(location: str, look: Callable[[str], LakeTable | None]) -> tuple[str, list[str]]:
    """Return the files that one path or pattern of a log's input names, and the folder below which folders may have
    names with columns, such as date=2026-11-01.

    `look` is the function that `find_table` calls to recognize a Delta or Iceberg table at a location. Raise ValueError
    if the location belongs to such a table, whose files must not be read one by one.
    """
    is_file = storage.file_state(location) is not None  # `file_state` raises an error if a server does not answer.
    refuse(find_table(location, look))
    if is_file:
        return location, [location]
    entries = storage.entries_in(location)
    if entries is not None:
        return location, _files_of_folder(location, *entries)
    if glob.has_magic(storage.split_query(location)[0]):
        return _matching(location, look)
    if location == "-" or Path(location).exists():
        raise ValueError(
            f"{location} is a stream or a device, which can be read only once; a log is read twice, and again after an "
            "interruption: write it to a file first, compressed if you like"
        )
    if Path(location).is_symlink():
        raise FileNotFoundError(f"{location} is a link that leads nowhere; repair it, or give the file itself")
    raise FileNotFoundError(f"no log at {location}: {_what_is_there(location)}")


def _matching(pattern: str, look: Callable[[str], LakeTable | None]) -> tuple[str, list[str]]:
    if is_uri(pattern):
        address, query = storage.split_query(pattern)
        folder, _, name = address.rpartition("/")
        if glob.has_magic(folder):
            raise ValueError(f"{pattern}: a URI can have * ? [] only in its last part")
        refuse(find_table(folder + query, look))
        root, (files, folders) = folder + query, storage.entries_in(folder + query) or ([], [])
        files = [file for file in files if fnmatch.fnmatchcase(file_name(file), name)]
        folders = [inner(root, each) for each in folders if fnmatch.fnmatchcase(each, name)]
    else:
        fixed = itertools.takewhile(lambda name: not glob.has_magic(name), Path(pattern).parts[:-1])
        root = str(Path(*fixed))
        found = glob.glob(pattern)  # noqa: PTH207 (it takes absolute patterns)
        for folder in dict.fromkeys(map(os.path.dirname, found)):
            refuse(find_table(folder, look))
        files, folders = [each for each in found if Path(each).is_file()], [*filter(os.path.isdir, found)]
    for folder in folders:
        files += _files_of_partition(folder) if storage.column_in(file_name(folder)) else []
    if not files:
        raise FileNotFoundError(f"no file matches {pattern} (quote the pattern, so that the shell does not expand it)")
    return root, _in_order(files)


def _in_order(files: Iterable[str]) -> list[str]:
    return sorted(files, key=lambda file: (natural_order(file), file))


def _files_of_folder(folder: str, files: list[str], folders: list[str]) -> list[str]:
    """Return the files in a folder that are read as the log.

    They are Criteo's log if it is there, otherwise all files that are likely parts of a log, also in folders of the
    form key=value. Raise FileNotFoundError if there is none, and ValueError if the folder has several logs or two
    copies of a part.
    """
    names = {file: file_name(file) for file in files}
    whole = sorted(f for f, name in names.items() if unpacked_name(name) == _WHOLE_LOG or name.endswith(TAR_ENDINGS))
    if len(whole) > 1:
        several = ", ".join(names[file] for file in whole)
        raise ValueError(f"the folder {folder} holds several logs ({several}); give one of them as the input")
    if whole:
        _log_skipped(folder, files, whole)
        return whole
    parts = _in_order(_parts(folder, files, folders))
    if not parts:
        raise FileNotFoundError(
            f"the folder {folder} holds no log: expected {_WHOLE_LOG}, {_WHOLE_LOG}.gz or a .tar.gz, or part files "
            f"such as day_0.gz, part-0.parquet (in folders of it: give '{folder}/*/*'); "
            f"found {_some_names(names.values())}"
        )
    _log_skipped(folder, files, parts)
    return parts


def _parts(folder: str, files: Iterable[str], folders: Iterable[str]) -> list[str]:
    """Return the parts of a log among the files of a folder, and in subfolders such as date=2026-11-01."""
    parts = [file for file in files if is_part(file_name(file))]
    _check_not_twice(folder, parts)
    below = (inner(folder, name) for name in folders if storage.column_in(name) and not name.startswith("."))
    return [*parts, *itertools.chain.from_iterable(map(_files_of_partition, below))]


def _files_of_partition(folder: str) -> list[str]:
    """Return the parts of a log in a folder of the form key=value and in such folders below it.

    Raise ValueError if the folder belongs to a table, or if a part lies in a subfolder whose name does not have this
    form.
    """
    files, names = storage.entries_in(folder) or ([], [])
    if others := [name for name in names if not storage.column_in(name)]:
        refuse(table_at(folder))
    if others := [name for name in others if not name.startswith(("_", "."))]:
        raise ValueError(
            f"{inner(folder, others[0])} is no folder of the form key=value, and its parent is; move it elsewhere, or "
            "give the files to read by a glob"
        )
    parts = _parts(folder, files, names)
    _log_skipped(folder, files, parts)
    return parts


def _log_skipped(folder: str, files: Iterable[str], parts: Iterable[str]) -> None:
    """Log a message that names the files of a folder that are not read, because the user may expect them to be read.

    Hidden files are not mentioned.
    """
    names = sorted(map(file_name, {*files} - {*parts}), key=natural_order)
    names = [name for name in names if not name.startswith((".", "_"))]
    if names:
        packed = [name for name in names if name.endswith(_OTHER_PACKED) and is_part(str(PurePosixPath(name).stem))]
        log.info(
            "these files of the folder %s are not read as parts of the log: %s; to read one, give it as the input%s",
            folder,
            _some_names(names),
            f", packed by gzip or zstd instead: {_some_names(packed)}" if packed else "",
        )


def _some_names(names: Iterable[str]) -> str:
    """Return a text with the first few names in natural order, and the number of further names.

    If there are no names, return "nothing".
    """
    return shortened(sorted(names, key=natural_order), _NAMES_SHOWN) or "nothing"


def _what_is_there(location: str) -> str:
    """Return a hint for the error message that `location` does not exist.

    The hint is a similar name, the names of the files in the folder, or where to get Criteo's log.
    """
    if file_name(location) in (_ARCHIVE, _WHOLE_LOG):
        return _HOW_TO_GET_IT.format(make_command("download"), make_command("synthesize"))
    if is_uri(location):
        return "there is no such object"
    folder = Path(location).parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    close = nearest(Path(location).name, names)
    return f"did you mean {folder / close}?" if close else f"the folder {folder} holds {_some_names(names)}"


def _check_not_twice(folder: str, parts: Iterable[str]) -> None:
    locations: dict[str, str] = {}
    for part in map(file_name, _in_order(parts)):
        unpacked = unpacked_name(part)
        if unpacked in locations:
            raise ValueError(
                f"the folder {folder} holds {locations[unpacked]} and {part}, which seem to be the same; "
                "give the files to read, such as 'FOLDER/*.gz'"
            )
        locations[unpacked] = part


def is_part(name: str) -> bool:
    """Return True if a file with this name counts as a part of the log in its folder.

    Hidden files, markers of Spark and Hadoop (_SUCCESS), README and LICENSE files, and files with the true
    probabilities of synthetic logs do not count.
    """
    if name.startswith((".", "_")) or name.endswith(".truth.parquet") or name.lower().startswith(("readme", "license")):
        return False
    return PurePosixPath(unpacked_name(name)).suffix in format_of(name).endings
