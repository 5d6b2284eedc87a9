"""A pass over a log to score. It may lack the label, have other columns, and have some that are copied."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from data_prep.execution.pieces import Pieces
from data_prep.execution.pools import ExecutorChoice, Pools
from data_prep.kernels.parsed import Chunk
from data_prep.options.kinds import FIELD_KINDS, Kind
from data_prep.options.log_format import FormatToScore, LogFormat
from data_prep.raw_log.line_cells import has_label
from data_prep.raw_log.log_files import LogFile, is_parquet
from data_prep.raw_log.reading import LogReading, column_names, file_of_log, first_chunks

Result = TypeVar("Result")

_SAMPLED_LINES = 100
_CHUNK_BYTES = 1 << 20


def format_to_score(files: Sequence[LogFile], log_format: LogFormat, keep: Sequence[str]) -> LogFormat:
    """Return the format of a log to score, as its first file shows it.

    If columns are found by name, it may have other ones than the description, in any order, and lack the label and
    whatever else changes no score. It has the columns to `keep`. If columns are found by their place, it may lack the
    label. Raises ValueError for a column to keep that is not there, and as `open_reader`.
    """
    has_names = log_format.header or is_parquet(files[0].location)
    columns = dict(log_format.columns)
    if not has_names and not _has_labels(files, log_format):
        del columns[log_format.label_column]
    names = column_names(files[0], log_format) if has_names else tuple(columns)
    for name in keep:
        if name not in names:
            raise ValueError(f"--keep {name}: {files[0].location} has no such column; it has {', '.join(names)}")
    if not has_names:
        return FormatToScore.of(log_format, columns=columns)
    columns = {
        name: kind
        for name, kind in log_format.columns.items()
        if kind in FIELD_KINDS or (name in names and kind != "ignored")
    }
    kept: dict[str, Kind] = {name: "ignored" for name in keep if name not in columns}
    others = "ignored" if log_format.header else "refused"
    return FormatToScore.of(log_format, columns=columns | kept, others=others, keep=tuple(keep))


def _has_labels(files: Sequence[LogFile], log_format: LogFormat) -> bool:
    found = list[bool]()
    with closing(chunks_of(files[:1], log_format)) as chunks:
        for chunk in chunks:
            lines = chunk.lines.split(b"\n")[: min(chunk.num_lines, _SAMPLED_LINES - len(found))]
            found += [has_label(line, log_format, chunk.is_bare) for line in lines]
            if len(found) == _SAMPLED_LINES:
                break
    return 2 * sum(found) >= len(found)  # some lines may be bad


def chunks_of(files: Sequence[LogFile], log_format: LogFormat) -> Generator[Chunk, None, None]:
    """Yield the chunks of a log in its order, read in this process. Raises as `open_reader`."""
    num_lines = 0
    for place, file in enumerate(files):
        of_log = file_of_log(place, file.name if len(files) > 1 else "", num_lines, file, log_format)
        with closing(first_chunks(file, log_format, of_log, _CHUNK_BYTES)) as chunks:
            for _, task in chunks:
                num_lines += task.num_lines
                yield task.load()


def read_log(
    files: Sequence[LogFile],
    log_format: LogFormat,
    function: Callable[[Chunk], Result],
    consume: Callable[[Result], None],
    title: str,
    work_folder: Path,
    executor: ExecutorChoice,
    num_workers: int,
    chunk_bytes: int,
) -> None:
    """Call `function` on each chunk of a log on the workers, and `consume` with the results in the log's order.

    Results stay in `work_folder`. After a stop the same pass finds them there.
    """
    pieces = Pieces(work_folder)
    pieces.clear_unfinished()
    with closing(Pools(executor)) as pools:
        LogReading(files, log_format, pools, num_workers, chunk_bytes, pieces).run(function, consume, title)
