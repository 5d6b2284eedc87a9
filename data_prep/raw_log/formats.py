"""Define the formats of log files: how a file is recognized by its name and its first bytes, and which module reads it.

FORMATS is the only place that knows which formats there are. To add one, write a module with the functions of
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

if TYPE_CHECKING:  # Workers only import pyarrow if they read a table.
    import pyarrow as pa

Item = TypeVar("Item")


class Task(Protocol):
    """A part of a file that a worker loads: a `Chunk`, or an object that makes one."""

    @property
    def first_line(self) -> int:
        """Number of lines, or rows, of the log before this part."""

    @property
    def num_lines(self) -> int: ...

    def load(self) -> Chunk:
        """Return the rows as lines of text. Raise ValueError if that is impossible."""


class FormatReader(Protocol):
    """An open file of the log, which is read once from start to end."""

    @property
    def is_plain(self) -> bool:
        """True if workers can read every chunk themselves, so that later passes need not divide the file again."""

    @property
    def stored_bytes_read(self) -> int:
        """Number of bytes of the stored file up to the end of the last chunk, for the progress bar."""

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Size and checksum of the stored file, or None before it has been read to its end."""

    def chunks(self, chunk_bytes: int, file: FileOfLog) -> Iterator[tuple[Task, Task | None]]:
        """Divide the file into parts of about `chunk_bytes` bytes of text, and yield each part.

        The second value is the position of the part if a worker can read it there, else None.
        """


class FormatModule(Protocol):
    """The functions of a module that reads a format. Text has only the first one, as its columns have no types."""

    def open_reader(self, file: LogFile, log_format: LogFormat) -> AbstractContextManager[FormatReader]:
        """Open a file. Raise ValueError, also inside the `with` block, if it is damaged or lacks columns."""

    def read_schema(self, file: LogFile) -> pa.Schema:
        """Return the names and types of the columns of a file. Raise ValueError if the file is damaged."""

    def first_rows(self, file: LogFile, num_rows: int, num_parts: int) -> pa.Table:
        """Return `num_rows` rows. If the format allows it, they are from `num_parts` places all over the file."""


@dataclass(frozen=True)
class FileFormat:
    """A format of log files, as other modules need to know it."""

    name: str  # Name in messages.
    module: str  # Name of the module in this package that reads the format, a `FormatModule`.
    endings: tuple[str, ...]  # Endings of names. A file with such a name is a part of the log in its folder.
    start: bytes = b""  # Regular expression for the first bytes, or b"" if nothing distinguishes them.
    # True if a file names its columns and has typed values. Otherwise its lines consist of cells, and an option says
    # whether the first line names the columns.
    is_table: bool = True
    # True if a row is a line of text. Such a file may be compressed. The types of a table's columns are then only known
    # for the rows that were read.
    has_lines: bool = False
    unlisted_endings: tuple[str, ...] = ()  # Further endings, for files that are given by name, not by their folder.

    def matches(self, start: bytes) -> bool:
        """Return True if `start` are the first bytes of a file in this format."""
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
    # A .json file in a folder may be anything.
    FileFormat("JSON", "json_lines", (".jsonl", ".ndjson"), rb"\{", has_lines=True, unlisted_endings=(".json",)),
    TEXT,
)

# Ways to compress a file with lines: the ending of its name, and a regular expression for its first bytes.
PACKED = {".gz": re.compile(rb"\x1f\x8b"), ".zst": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")}
TAR_ENDINGS = (".tar.gz", ".tgz")
PACKED_ENDINGS = (*PACKED, *TAR_ENDINGS)

# Binary files that are not read as text: a regular expression for the first bytes, the name of the format, and advice
# what to do. The first expression that matches counts. Letters with which a text could begin only match together with
# bytes that no text contains.
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
START_BYTES = 512  # Number of bytes at the start of a file that are examined.


def binary_kind(start: bytes) -> str:
    """Recognize a binary file by its first bytes.

    Return a text that names the format and says what to do, or "" if the file may be text.
    """
    readable = [
        (each.start, each.name, f"rename it to end in {each.endings[0]}") for each in FORMATS if not each.has_lines
    ]
    for pattern, what, advice in (*readable, *_BINARY):
        if re.match(pattern, start[:START_BYTES], re.DOTALL):
            return f"it is {what} (it starts with {start[:4]!r}); {advice}"
    return ""


def format_of(location: str) -> FileFormat:
    """Return the format that the ending of a file's name says, which is text for an unknown ending."""
    name = file_name(location)
    ending, whole_ending = PurePosixPath(unpacked_name(name)).suffix, PurePosixPath(name).suffix
    for each in FORMATS:
        if (ending if each.has_lines else whole_ending) in (*each.endings, *each.unlisted_endings):
            return each
    return TEXT


def unpacked_name(name: str) -> str:
    """Return a file's name without the ending of its compression."""
    return name.removesuffix(PurePosixPath(name).suffix) if name.endswith(tuple(PACKED)) else name


def ending_of(start: bytes) -> str:
    """Guess the ending of a file's name from its first bytes, such as .gz, .parquet or .jsonl. Text ends in .txt."""
    packed = (ending for ending, pattern in PACKED.items() if pattern.match(start))
    tables = (each.endings[0] for each in FORMATS if each.matches(start))
    return [*packed, *tables, ".txt"][0]


def spread(items: Sequence[Item], most: int) -> Sequence[Item]:
    """Return at most `most` items, chosen at even distances from the first item to the last."""
    if len(items) <= most:
        return items
    return [items[place * (len(items) - 1) // max(most - 1, 1)] for place in range(most)]
