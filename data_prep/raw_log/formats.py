"""Define the formats of log files: how a file's name and first bytes show its format, and which module reads it.

FORMATS is the only place that knows which formats exist. To add one, write a module with the functions of
`FormatModule`, and add an entry to FORMATS.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from data_prep.kernels.parsed import Chunk, FileOfLog
from data_prep.options.log_format import LogFormat
from data_prep.raw_log.storage import Fingerprint, LogFile, file_name

# pyarrow is imported for type checkers only, so that a worker does not load it unless it reads a table.
if TYPE_CHECKING:
    import pyarrow as pa

Item = TypeVar("Item")


class Task(Protocol):
    """A part of a file of the log that a worker loads: a `Chunk`, or an object whose `load` makes one."""

    @property
    def first_line(self) -> int:
        """Number of lines (of rows in a table) that the whole log has before this part."""

    @property
    def num_lines(self) -> int: ...

    def load(self) -> Chunk:
        """Return the rows of this part of the log as lines of text. Raise ValueError if that is impossible."""


class FormatReader(Protocol):
    """An open file of the log, which is read once from start to end."""

    @property
    def is_plain(self) -> bool:
        """True if workers can read parts of the file themselves, as in an uncompressed text file. Later passes over the
        log then need not divide the file again.
        """

    @property
    def stored_bytes_read(self) -> int:
        """Number of bytes of the file, as it is stored, up to the end of the last chunk, for a progress bar.

        The file may be stored compressed.
        """

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Size and checksum of the file as it is stored, or None if it was not yet read to its end."""

    def chunks(self, chunk_bytes: int, file: FileOfLog) -> Iterator[tuple[Task, Task | None]]:
        """Divide the file into parts of about `chunk_bytes` bytes of text, and yield two tasks for each part.

        The first task is for the current pass over the log: it holds the rows of the part, or its position in the file.
        The second task is for later passes: it holds only the position, from which a worker reads the part. It is None
        if a worker cannot read the file from the middle, because it is compressed, is a table such as Parquet, or has
        JSON lines.
        """


class FormatModule(Protocol):
    """The functions of a module that reads files of one format. The module for text has only `open_reader`."""

    def open_reader(self, file: LogFile, log_format: LogFormat) -> AbstractContextManager[FormatReader]:
        """Open a file of the log inside a `with` block, and yield a reader that reads it once from start to end.

        Raise ValueError, also inside the block, if the file is damaged or lacks columns of the format.
        """

    def read_schema(self, file: LogFile) -> pa.Schema:
        """Return the names and types of the columns of a file. Raise ValueError if the file is damaged."""

    def first_rows(self, file: LogFile, num_rows: int, num_parts: int) -> pa.Table:
        """Return about `num_rows` rows of a file, read from `num_parts` places that are spread over the file.

        If a file of this format cannot be read from the middle, return its first rows.
        """


@dataclass(frozen=True)
class FileFormat:
    """A format of log files: how its files are recognized, and which module reads them."""

    name: str  # Name of the format in messages.
    module: str  # Name of the module in this package that reads the format, a `FormatModule`.
    # Endings of the names of files in this format. In a folder, files with these endings are read as parts of the log.
    endings: tuple[str, ...]
    start: bytes = b""  # Regular expression that the first bytes of a file match, or b"" if they can be anything.
    # True if a file has typed values and names of columns. Otherwise its lines consist of cells, and an option says
    # whether its first line contains the names of the columns.
    is_table: bool = True
    # True if each row is a line of text. Such a file may be compressed, and the types of a table's columns are only
    # known for the rows that were read.
    has_lines: bool = False
    # Further endings of the names of files in this format. A file with such an ending is read if the user names it, but
    # not as a part of a folder that the user names.
    unlisted_endings: tuple[str, ...] = ()

    def matches(self, start: bytes) -> bool:
        """Return True if a file that begins with the bytes `start` has this format."""
        return bool(self.start) and re.match(self.start, start) is not None

    def reader(self) -> FormatModule:
        return cast(FormatModule, importlib.import_module(f"{__package__}.{self.module}"))


TEXT = FileFormat(
    "text",
    "text_lines",
    ("", ".txt", ".tsv", ".csv", ".log", ".psv", ".dat", ".data"),
    is_table=False,
    has_lines=True,
)
FORMATS = (
    FileFormat("Feather", "feather", (".feather", ".arrow", ".ipc"), rb"ARROW1\0\0"),
    FileFormat("Parquet", "parquet", (".parquet", ".pq"), rb"PAR1[\0-\x1f]"),
    # Files that end in .json are not read as parts of a folder, because they may contain anything.
    FileFormat("JSON", "json_lines", (".jsonl", ".ndjson"), rb"\{", has_lines=True, unlisted_endings=(".json",)),
    TEXT,
)

# Kinds of compression of text files: the ending of a file's name, and a regular expression for its first bytes.
PACKED = {".gz": re.compile(rb"\x1f\x8b"), ".zst": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")}
TAR_ENDINGS = (".tar.gz", ".tgz")
PACKED_ENDINGS = (*PACKED, *TAR_ENDINGS)

# Formats of binary files, which cannot be read as text: a regular expression for the first bytes, the name of the
# format, and advice what to do. The first expression that matches decides. Letters with which a text could begin match
# only together with bytes that no text contains.
_WITH_NUL = rb"(?=[^\0]*\0)"
_REPACK = "pack it by gzip or zstd instead: {} OLD | gzip > NEW.gz"
_FRAME = "make it Parquet: {}.to_parquet(NEW)"
_ARROW = "make it Parquet: pyarrow.parquet.write_table({}, NEW)"
_BINARY = [
    *(
        (start.pattern, "packed", f"rename it to end in {ending}, or unpack it once if it does")
        for ending, start in PACKED.items()
    ),
    (
        rb"PK\x03\x04.{26}(\[Content_Types\]|_rels|docProps|xl/)",
        "an Excel file",
        _FRAME.format("pandas.read_excel(OLD)"),
    ),
    (rb"PK\x03\x04.{26}[^/\0]*\.npy", "arrays of NumPy", _FRAME.format("pandas.DataFrame(dict(numpy.load(OLD)))")),
    (rb"PK\x03\x04", "a ZIP archive", _REPACK.format("unzip -p")),
    (rb"BZh[1-9]1AY&", "packed by bzip2", _REPACK.format("bzcat")),
    (rb"\xfd7zXZ\0", "packed by xz", _REPACK.format("xzcat")),
    (rb"\x04\x22\x4d\x18", "packed by lz4", _REPACK.format("lz4 -dc")),
    (rb"7z\xbc\xaf\x27\x1c", "packed by 7-Zip", _REPACK.format("7z x -so")),
    (rb"FEA1\0", "Feather of version 1", _ARROW.format("pyarrow.feather.read_table(OLD)")),
    (rb"\xff{4}", "an Arrow stream", _ARROW.format("pyarrow.ipc.open_stream(OLD).read_all()")),
    (_WITH_NUL + rb"ORC", "ORC", _ARROW.format("pyarrow.orc.read_table(OLD)")),
    (rb"Obj\x01", "Avro", "make it Parquet: polars.read_avro(OLD).write_parquet(NEW)"),
    (rb"SQLite format 3\0", "a SQLite database", "sqlite3 -header -csv OLD 'SELECT * FROM TABLE' > NEW.csv"),
    (rb"\x80[\x02-\x05]", "a pickle", f"{_FRAME.format('pandas.read_pickle(OLD)')}, if you trust its writer"),
    (rb".{8}DUCK", "a DuckDB database", "duckdb OLD -c \"COPY TABLE TO 'NEW.parquet'\""),
    (rb".{257}ustar", "a tar archive without compression", "give the files in it: tar -xf OLD; or gzip OLD"),
    (rb"(?i)\s*<(!doctype|html|table|\?xml)", "HTML or XML", "if a download failed, look at what the page says"),
    (rb"%PDF-", "a PDF document", "look for the table that it was made from"),
    (rb"\x89HDF\r\n", "HDF5", _FRAME.format("pandas.read_hdf(OLD)")),
    (rb"\x93NUMPY", "an array of NumPy", _FRAME.format("pandas.DataFrame(numpy.load(OLD))")),
    (rb"\xd0\xcf\x11\xe0", "an old Excel file", _FRAME.format("pandas.read_excel(OLD)")),
    (rb"...\0{5}.{4}[\n\x12]", "TFRecord, as it seems", "read it by tf.data.TFRecordDataset(OLD), and write Parquet"),
]
START_BYTES = 512  # The format is recognized from this many bytes at the start of a file.


def binary_kind(start: bytes) -> str:
    """Return a text that names the binary format of a file and says what to do with the file.

    The format is recognized from `start`, the first bytes of the file. Return "" if the file may be text.
    """
    readable = [
        (each.start, each.name, f"rename it to end in {each.endings[0]}") for each in FORMATS if not each.has_lines
    ]
    for pattern, what, advice in (*readable, *_BINARY):
        if re.match(pattern, start[:START_BYTES], re.DOTALL):
            return f"it is {what} (it starts with {start[:4]!r}); {advice}"
    return ""


def format_of(location: str) -> FileFormat:
    """Return the format that the ending of a file's name stands for. An unknown ending stands for text."""
    name = file_name(location)
    ending, whole_ending = PurePosixPath(unpacked_name(name)).suffix, PurePosixPath(name).suffix
    for each in FORMATS:
        if (ending if each.has_lines else whole_ending) in (*each.endings, *each.unlisted_endings):
            return each
    return TEXT


def unpacked_name(name: str) -> str:
    """Return a file's name without an ending such as .gz that says how it is compressed."""
    return name.removesuffix(PurePosixPath(name).suffix) if name.endswith(tuple(PACKED)) else name


def ending_of(start: bytes) -> str:
    """Return the ending, such as .gz, .parquet or .jsonl, that the name of a file with these first bytes should have.

    For a text file it is .txt.
    """
    packed = (ending for ending, pattern in PACKED.items() if pattern.match(start))
    tables = (each.endings[0] for each in FORMATS if each.matches(start))
    return [*packed, *tables, ".txt"][0]


def spread(items: Sequence[Item], most: int) -> Sequence[Item]:
    """Return at most `most` of the items, at about equal distances, with the first and the last item among them."""
    if len(items) <= most:
        return items
    return [items[place * (len(items) - 1) // max(most - 1, 1)] for place in range(most)]
