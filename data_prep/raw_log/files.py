"""Which files the log is: one, or parts of it in their natural order (day_2 before day_10).

An input is a file, a folder or a glob, each as a path or as a URI.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import glob
import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from data_prep.raw_log.storage import FileState, file_name, file_state, files_in, is_uri, local_path, split_query

TAR_ENDINGS = (".tar.gz", ".tgz")
PARQUET_ENDINGS = (".parquet", ".pq")
PACKED_ENDINGS = (".gz", ".zst")
_TEXT_ENDINGS = ("", ".txt", ".tsv", ".csv", ".log")  # of part files in a folder; any file can be named itself
_WHOLE_LOG = "train.txt"  # as Criteo names it
_NAMES_SHOWN = 5
_HOW_TO_GET_IT = (
    "Get the log: the Criteo AI Lab offers dac.tar.gz as the Kaggle Display Advertising Challenge dataset "
    "(https://ailab.criteo.com/ressources/), under its own terms: make download. "
    "Or make a synthetic one: make synthesize"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LogFile:
    """A file of the log; `name` tells it from the others in messages and rejects.tsv."""

    location: str
    name: str
    state: FileState


def find_log(inputs: str | Path | Sequence[str | Path]) -> tuple[LogFile, ...]:
    """The files of the log in the order they are read: of each input in turn, by natural order within.

    Raises FileNotFoundError where an input is nothing, ValueError where it is not clear what is meant.
    """
    listed = [inputs] if isinstance(inputs, str | Path) else inputs
    locations = [location for one in listed for location in _expand(local_path(str(one)))]
    real = [location if is_uri(location) else os.path.realpath(location) for location in locations]
    if len(set(real)) != len(real):
        twice = next(location for location, one in zip(locations, real, strict=True) if real.count(one) > 1)
        raise ValueError(f"the input names {twice} twice; its rows would be counted twice")
    for location in locations:
        _check_name(location)
    names = [file_name(location) for location in locations]
    if len(set(names)) != len(names):
        names = locations
    return tuple(LogFile(*pair, _state(pair[0])) for pair in zip(locations, names, strict=True))


def absolute(file: LogFile) -> LogFile:
    """The same for a process that stands in another folder."""
    location = file.location if is_uri(file.location) else str(Path(file.location).absolute())
    return dataclasses.replace(file, location=location)


def is_parquet(location: str) -> bool:
    """Whether a file is a table, by its name's ending; all others are lines."""
    return split_query(location)[0].endswith(PARQUET_ENDINGS)


def natural_order(name: str) -> list[tuple[int, str]]:
    """A key to sort names by, in which numbers count as numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _state(location: str) -> FileState:
    state = file_state(location)
    if state is None:
        raise FileNotFoundError(f"{location} vanished while the input was looked at")
    return state


def _check_name(location: str) -> None:
    """Raise ValueError where a file's name cannot stand in rejects.tsv and schema.json."""
    try:
        location.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name of {os.fsencode(location)!r} is not UTF-8; rename the file") from None
    if set(location) & set("\t\n\r"):
        raise ValueError(f"the name of {location!r} has a tab or a line end in it; rename the file")


def _expand(location: str) -> list[str]:
    """The files that one input stands for."""
    if is_uri(location) and urlsplit(location).password:
        raise ValueError(
            f"the URI of {file_name(location)} has a password in it, which would end up in files and messages; "
            "give it by the environment, as docs/data_format.md says"
        )
    if file_state(location) is not None:
        return [location]
    found = files_in(location)
    if found is not None:
        return _files_of_folder(location, found)
    if glob.has_magic(split_query(location)[0]):
        return _matching(location)
    if location == "-" or Path(location).exists():
        raise ValueError(
            f"{location} is no file but a stream or a device, which can be read only once; a log is read twice, and "
            "again by a run that goes on: write it to a file first, packed if you like"
        )
    if Path(location).is_symlink():
        raise FileNotFoundError(f"{location} is a link that leads nowhere; mend it, or give the file itself")
    raise FileNotFoundError(f"no log at {location}. {_HOW_TO_GET_IT}")


def _matching(pattern: str) -> list[str]:
    if is_uri(pattern):
        address, query = split_query(pattern)
        folder, _, name = address.rpartition("/")
        if glob.has_magic(folder):
            raise ValueError(f"{pattern}: a URI can have * ? [] in its last part alone")
        files = [file for file in files_in(folder + query) or [] if fnmatch.fnmatchcase(file_name(file), name)]
    else:
        files = [file for file in glob.glob(pattern) if Path(file).is_file()]  # noqa: PTH207 (it takes absolute ones)
    if not files:
        raise FileNotFoundError(f"no file matches {pattern} (quote the pattern, so that the shell leaves it as it is)")
    return sorted(files, key=natural_order)


def _files_of_folder(folder: str, found: list[str]) -> list[str]:
    """Criteo's log where the folder holds that, else all that look like part files."""
    whole = sorted(file for file in found if _is_whole_log(file_name(file)))
    if len(whole) > 1:
        names = ", ".join(map(file_name, whole))
        raise ValueError(f"the folder {folder} holds several logs ({names}); give one of them as the input")
    if whole:
        _tell_skipped(folder, found, whole)
        return whole
    parts = sorted((file for file in found if _is_part(file_name(file))), key=natural_order)
    if not parts:
        raise FileNotFoundError(
            f"the folder {folder} holds no log: expected {_WHOLE_LOG}, {_WHOLE_LOG}.gz or a .tar.gz, or part files "
            f"such as day_0.gz, part-0.parquet. {_HOW_TO_GET_IT}"
        )
    _check_not_twice(folder, parts)
    _tell_skipped(folder, found, parts)
    return parts


def _tell_skipped(folder: str, found: Iterable[str], taken: Iterable[str]) -> None:
    """Log what a folder holds beside the log, but for what is hidden: it may have been meant."""
    names = sorted(map(file_name, {*found} - {*taken}), key=natural_order)
    names = [name for name in names if not name.startswith((".", "_"))]
    if names:
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        log.info(
            "of the folder %s these are no part of the log: %s%s; to read one of them, name it as the input",
            folder,
            ", ".join(names[:_NAMES_SHOWN]),
            more,
        )


def _check_not_twice(folder: str, parts: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for part in map(file_name, parts):
        unpacked = _unpacked(part)
        if unpacked in seen:
            raise ValueError(
                f"the folder {folder} holds {seen[unpacked]} and {part}, which seem to be the same; "
                "name the files that you mean, such as 'FOLDER/*.gz'"
            )
        seen[unpacked] = part


def _unpacked(name: str) -> str:
    return name.removesuffix(PurePosixPath(name).suffix) if name.endswith(PACKED_ENDINGS) else name


def _is_whole_log(name: str) -> bool:
    return _unpacked(name) == _WHOLE_LOG or name.endswith(TAR_ENDINGS)


def _is_part(name: str) -> bool:
    """Not hidden, no marker of Spark's or Hadoop's (_SUCCESS), no text about the data, no truth of a synthetic log."""
    if name.startswith((".", "_")) or name.endswith(".truth.parquet") or name.lower().startswith(("readme", "license")):
        return False
    return name.endswith(PARQUET_ENDINGS) or PurePosixPath(_unpacked(name)).suffix in _TEXT_ENDINGS
