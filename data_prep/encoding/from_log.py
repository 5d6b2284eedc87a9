"""Read a log to score. It may lack the label, have other columns than the model, and keep some of them for output."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from data_prep.encoding.from_values import has_label
from data_prep.execution.pieces import Pieces
from data_prep.execution.pools import Pools
from data_prep.kernels.parsed import Chunk
from data_prep.options.executor import ExecutorChoice
from data_prep.options.kinds import FIELD_KINDS, Kind
from data_prep.options.log_format import FormatToScore, LogFormat
from data_prep.raw_log.formats import ending_of, format_of
from data_prep.raw_log.log_files import absolute, find_log
from data_prep.raw_log.reading import LogReading, column_names, file_of_log, first_chunks
from data_prep.raw_log.storage import LogFile

Result = TypeVar("Result")

__all__ = ["LogToScore", "ending_of"]

_SAMPLED_LINES = 100
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class LogToScore:
    """A log to score: its files, and its format, which is derived from the first file."""

    files: tuple[LogFile, ...]
    log_format: LogFormat

    @classmethod
    def of(cls, inputs: Sequence[str], log_format: LogFormat, keep: Sequence[str] = ()) -> LogToScore:
        """Find the log that `inputs` (files, folders, globs, URIs) name, for a model that was trained on `log_format`.

        If the log names its columns, they may be in any order. It may have further columns, and may lack the label and
        all other columns that do not affect scores. If columns are found by position, only the label may be missing.
        `keep` names columns whose cells are copied to the output. Raise ValueError if a column in `keep` is missing,
        and the errors of `find_log` and `open_reader`.
        """
        files = find_log(list(inputs))
        return cls(files, _format_to_score(files, log_format, keep))

    @property
    def has_labels(self) -> bool:
        return bool(self.log_format.columns_of_kind("label"))

    @property
    def identity(self) -> list[list[Any]]:
        """Location, size in bytes and modification time in ns of each file, as plain values."""
        return [[file.location, file.state.size, file.state.modified_ns] for file in self.files]

    def chunks(self) -> Generator[Chunk, None, None]:
        """Read the log in this process and yield its chunks in order. Raise the errors of `open_reader`."""
        return _chunks_of(self.files, self.log_format)

    def run(
        self,
        function: Callable[[Chunk], Result],
        consume: Callable[[Result], None],
        title: str,
        work_folder: Path,
        executor: ExecutorChoice,
        num_workers: int,
        chunk_bytes: int,
    ) -> None:
        """Call `function` on every chunk in the workers, and `consume` with each result in the order of the log.

        Results are stored in `work_folder` under `title`. After an interruption the same call continues with them.
        """
        pieces = Pieces(work_folder)
        pieces.clear_unfinished()
        is_local = executor.kind == "processes"  # Workers on other machines may have another working directory.
        files = self.files if is_local else tuple(map(absolute, self.files))
        with closing(Pools(executor)) as pools:
            LogReading(files, self.log_format, pools, num_workers, chunk_bytes, pieces).run(function, consume, title)


def _format_to_score(files: Sequence[LogFile], log_format: LogFormat, keep: Sequence[str]) -> LogFormat:
    has_names = log_format.header or format_of(files[0].location).is_table
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
    to_keep: dict[str, Kind] = {name: "ignored" for name in keep if name not in columns}
    other_columns = "ignored" if log_format.header else "refused"
    return FormatToScore.of(log_format, columns=columns | to_keep, others=other_columns, keep=tuple(keep))


def _has_labels(files: Sequence[LogFile], log_format: LogFormat) -> bool:
    labelled: list[bool] = []
    with closing(_chunks_of(files[:1], log_format)) as chunks:
        for chunk in chunks:
            lines = chunk.lines.split(b"\n")[: min(chunk.num_lines, _SAMPLED_LINES - len(labelled))]
            labelled += [has_label(line, log_format, chunk.is_bare) for line in lines]
            if len(labelled) == _SAMPLED_LINES:
                break
    return 2 * sum(labelled) >= len(labelled)  # The majority decides, because some lines may be bad.


def _chunks_of(files: Sequence[LogFile], log_format: LogFormat) -> Generator[Chunk, None, None]:
    num_lines = 0
    for place, file in enumerate(files):
        of_log = file_of_log(place, file.name if len(files) > 1 else "", num_lines, file, log_format)
        with closing(first_chunks(file, log_format, of_log, _CHUNK_BYTES)) as chunks:
            for _, task in chunks:
                num_lines += task.num_lines
                yield task.load()
