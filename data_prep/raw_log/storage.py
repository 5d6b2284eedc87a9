"""Read files from disk or from a cloud store, given as local paths or as URIs (`s3://`, `gs://`, `hdfs://`).

URIs are read with pyarrow. It is imported only if there is a URI, because it costs every worker memory and start-up
time.

A Hive-partitioned log keeps columns in the names of its folders, such as `date=2026-11-01/part-0.csv`. Such a column
has the same text in all rows of a file. The text is used as it stands (007 stays 007), because a value whose type
depended on the names of other folders would change when a new folder comes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import xxhash

from common.files import fill, format_checksum
from common.text import first_line, shortened

if TYPE_CHECKING:
    from data_prep.raw_log.lake.lake_file import LakeFile

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_LONE_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")  # Matches a % that does not begin an escape such as %20.
# A stream requests this many bytes at a time, because a request to a distant server takes tens of milliseconds.
_STREAM_BYTES = 8 << 20
# Folder names of Hive and Spark have this text in place of a missing value.
_HIVE_MISSING = "__HIVE_DEFAULT_PARTITION__"
_LINE_ENDS = {"\n", "\r", "\0"}


@dataclass(frozen=True)
class FileState:
    """Properties of a file that show whether it has changed: after a change, at least one of them differs."""

    size: int
    modified_ns: int
    inode: int = 0  # Inode of a local file, or 0 for a URI.


@dataclass(frozen=True)
class LogFile:
    """A file of the log. `name` identifies it in messages and in rejects.tsv."""

    location: str
    name: str
    state: FileState
    # Object that turns the rows of the file into rows of a Delta or Iceberg table. None if the file belongs to no such
    # table.
    lake: LakeFile | None = field(default=None, compare=False, repr=False)
    # Columns that the names of the file's folders give, such as ("date", "2026-11-01") for date=2026-11-01: the name of
    # each, and the text that all rows of the file have in it, or "" if the value is missing.
    constants: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Fingerprint:
    """The size and the checksum of a file as it is stored, that is, before it is decompressed."""

    size_bytes: int
    checksum: str


class StoredFile(io.RawIOBase):
    """A file that is read once from start to end, while the checksum of its bytes is computed."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._hash = xxhash.xxh3_64()
        self.bytes_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = fill(self._file.readinto, buffer)
        self._hash.update(memoryview(buffer)[:size])
        self.bytes_read += size
        return size

    def fingerprint(self) -> Fingerprint:
        """Read the rest of the file, which the decompressor has not read.

        Return size and checksum of the whole file.
        """
        while self.read(1 << 20):
            pass
        return Fingerprint(self.bytes_read, format_checksum(self._hash))


def is_uri(location: str) -> bool:
    """Return True if the location of a file is a URI, and False if it is a path."""
    return _URI.match(location) is not None


def local_path(location: str) -> str:
    """Return the path that a `file://` URI means. Return all other locations unchanged."""
    return unquote(urlsplit(location, allow_fragments=False).path) if location.startswith("file://") else location


def file_state(location: str) -> FileState | None:
    """Return size, modification time and inode of a file, or None if there is no such file.

    Raise OSError if a server does not answer.
    """
    if is_uri(location):
        with _clear_errors(location):
            file_system, path_there = _file_system(location)
            info = file_system.get_file_info(path_there)
        return FileState(info.size or 0, info.mtime_ns or 0) if info.is_file else None
    path = Path(location)
    if not path.is_file():
        return None
    status = path.stat()
    return FileState(status.st_size, status.st_mtime_ns, status.st_ino)


def files_in(location: str) -> list[str] | None:
    """Return the locations of the files directly in a folder, not in subfolders, or None if there is no such folder."""
    entries = entries_in(location)
    return None if entries is None else entries[0]


def entries_in(location: str) -> tuple[list[str], list[str]] | None:
    """Return the locations of the files directly in a folder, and the names of its subfolders.

    Return None if there is no such folder.
    """
    if not is_uri(location):
        path = Path(location)
        if not path.is_dir():
            return None
        entries = list(path.iterdir())
        return [str(each) for each in entries if each.is_file()], [each.name for each in entries if each.is_dir()]
    from pyarrow.fs import FileSelector, FileType

    with _clear_errors(location):
        file_system, path_there = _file_system(location)
        if file_system.get_file_info(path_there).type != FileType.Directory:
            return None
        infos = file_system.get_file_info(FileSelector(path_there))
    files = [inner(location, info.base_name) for info in infos if info.is_file]
    return files, [info.base_name for info in infos if info.type == FileType.Directory]


def inner(folder: str, name: str) -> str:
    """Return the location (path or URI) of the file or folder `name` in the folder at location `folder`."""
    if not is_uri(folder):
        return str(Path(folder, name))
    address, query = split_query(folder)
    return f"{address.rstrip('/')}/{quote(name)}{query}"


def split_query(location: str) -> tuple[str, str]:
    """Split a URI into its address and its query, which starts with `?` and has options of the file system.

    A path is returned unchanged, with the query "".
    """
    if not is_uri(location):
        return location, ""
    address, question_mark, query = location.partition("?")
    return address, question_mark + query


def file_name(location: str) -> str:
    """Return the last component of a path or of a URI. Escapes in a URI, such as %20, are decoded."""
    name = PurePosixPath(split_query(location)[0]).name
    return unquote(name) if is_uri(location) else name


@contextmanager
def open_stream(location: str) -> Iterator[Any]:
    """Open a file for reading from start to end. Yield an object with the method `readinto`.

    Raise OSError if the file cannot be opened.
    """
    if not is_uri(location):
        with Path(location).open("rb", buffering=0) as file:
            yield file
        return
    with _clear_errors(location):
        file_system, path = _file_system(location)
        stream = file_system.open_input_stream(path, compression=None, buffer_size=_STREAM_BYTES)
    with stream:
        yield _ClearStream(stream, location)


@contextmanager
def open_random(location: str) -> Iterator[Any]:
    """Open a file for random access. Yield a file object of pyarrow. Raise OSError if the file cannot be opened."""
    import pyarrow as pa

    if not is_uri(location):
        with pa.OSFile(location) as file:
            yield file
        return
    with _clear_errors(location):
        file_system, path = _file_system(location)
        with file_system.open_input_file(path) as file:
            yield file


def read_range(location: str, offset: int, num_bytes: int) -> bytes:
    """Return `num_bytes` bytes of a file from the offset `offset` on, or fewer if the file ends before.

    Raise OSError if the file cannot be read.
    """
    if not is_uri(location):
        with Path(location).open("rb") as file:
            file.seek(offset)
            return file.read(num_bytes)
    with open_random(location) as file:
        return bytes(file.read_at(num_bytes, offset))


@dataclass(frozen=True)
class _ClearStream:
    """An input stream of pyarrow whose error messages name the file."""

    stream: Any
    location: str

    def readinto(self, buffer: Any) -> int:
        with _clear_errors(self.location):
            return int(self.stream.readinto(buffer))


def _file_system(location: str) -> tuple[Any, str]:
    """Return pyarrow's file system for a URI, and the path of the file within it.

    Characters in the URI that should be escaped, such as blanks, are escaped here.
    """
    from pyarrow.fs import FileSystem

    address, query = split_query(location)
    address = quote(_LONE_PERCENT.sub("%25", address), safe="%/:@!$&'()*+,;=")
    file_system, path = FileSystem.from_uri(address + query)
    return file_system, path


@contextmanager
def _clear_errors(location: str) -> Iterator[None]:
    """Replace pyarrow's errors inside the `with` block by errors of one line.

    The new message names the file and a likely cause.
    """
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise
    except pa.ArrowInvalid as error:
        raise ValueError(f"{location} cannot be opened: {first_line(error)}") from error
    except (OSError, pa.ArrowNotImplementedError) as error:
        raise OSError(f"cannot read {location}: {first_line(error)}. {_hint(location)}") from error


def _hint(location: str) -> str:
    if location.startswith("s3:"):
        return (
            "Credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or ~/.aws, or the machine's role), "
            "another server than Amazon's from AWS_ENDPOINT_URL"
        )
    if location.startswith(("hdfs:", "viewfs:")):
        return "HDFS needs JAVA_HOME, HADOOP_HOME and CLASSPATH=$(hadoop classpath --glob)"
    return "See pyarrow.fs.FileSystem.from_uri for what it needs"


def changed_while_read(location: str) -> str:
    """Return the error message for a file of the log that changed or vanished during a pass over the log."""
    return f"{location} changed or vanished while it was read; prepare it again when it no longer changes"


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
    return key, "" if text == _HIVE_MISSING else text


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
