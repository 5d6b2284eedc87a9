"""Read the columns that a Hive-partitioned log keeps in the names of its folders, such as `date=2026-11-01/part-0.csv`.

Such a column has the same text in all rows of a file. The text is used as it stands (007 stays 007), because a value
whose type depended on the names of other folders would change when a new folder comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from urllib.parse import unquote

from common.text import shortened
from data_prep.raw_log.storage import LogFile, is_uri, split_query

# Folder names of Hive and Spark have this text in place of a missing value.
_MISSING = "__HIVE_DEFAULT_PARTITION__"
_LINE_ENDS = {"\n", "\r", "\0"}


def column_in(name: str) -> tuple[str, str] | None:
    """Return ("date", "2026-11-01") for the folder name date=2026-11-01, or None for a name of another form.

    The first text is the name of a column, the second the cell of all rows in the folder. Both are percent-decoded
    once. A missing value is "". Raise ValueError if a decoded text cannot be a cell.
    """
    key, equals, text = name.partition("=")
    if not (key and equals):
        return None
    try:
        key, text = (unquote(part, errors="strict") for part in (key, text))
    except UnicodeDecodeError:
        raise ValueError(f"the name of the folder {name} is not UTF-8 once it is decoded; rename the folder") from None
    if _LINE_ENDS & {*key, *text}:
        raise ValueError(f"the name of the folder {name} has a line end in it once it is decoded; rename the folder")
    return key, "" if text == _MISSING else text


def columns_between(root: str, location: str) -> tuple[tuple[str, str], ...]:
    """Return the columns that the folders between the folder `root` and a file below it have in their names.

    A folder date=2026-11-01 gives ("date", "2026-11-01"). The outermost folder comes first. Folders whose names do not
    have the form key=value are passed over. Raise ValueError if two folders have the same column.
    """
    path, above = (PurePosixPath(split_query(each)[0]) for each in (location, root))
    names = path.relative_to(above).parts[:-1]
    found = [column_in(unquote(name) if is_uri(location) else name) for name in names]
    columns = [each for each in found if each is not None]
    if len(dict(columns)) < len(columns):
        raise ValueError(f"{location}: two of its folders are named after the same column; rename one of them")
    return tuple(columns)


def check_same_columns(files: Sequence[LogFile]) -> None:
    """Raise ValueError if the names of the folders of two files give different columns, such as date=… and hour=…."""
    names = [[name for name, _ in file.constants] for file in files]
    if other := next((place for place, each in enumerate(names) if each != names[0]), 0):
        said = (f"{files[place].location} has {', '.join(names[place]) or 'none'}" for place in (0, other))
        raise ValueError(
            f"all files of a log need the same columns in the names of their folders, in the same order: "
            f"{'; '.join(said)}. Move one of them, or give them as logs of their own"
        )


def contradiction(file: LogFile, name: str, found: str) -> str:
    """Return the error message for a file whose column `name` has another cell, `found`, than its folder's name."""
    return (
        f"{file.location}: column {name!r} has {found!r}, and the name of its folder {dict(file.constants)[name]!r}; "
        "correct one of them, or rename the folder or the column"
    )


def where_folders_have(location: str, names: Iterable[str]) -> str:
    """Return advice for the error that a file lacks the columns `names`.

    The file is at `location`. Return "" if no folder above the file has one of `names` in its name, as in
    date=2026-11-01.
    """
    above = [name for name in names if f"/{name}=" in location]
    if not above:
        return ""
    return (
        f"; {shortened(above, 5)} is in the name of a folder above it: give the folder that holds {above[0]}=…, or the "
        f"quoted glob '…/{above[0]}=*/{PurePosixPath(split_query(location)[0]).name}'"
    )
