"""Second reading: rows by split, those of train shuffled, into MindRecord files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_prep import schema
from data_prep.description import data_file
from data_prep.encode import EncodedChunk, EncodedRows, Encoder
from data_prep.log_reading import LogReading
from data_prep.mindrecord import MindRecordWriter, WrittenFile
from data_prep.options import PrepareOptions
from data_prep.output_folder import REJECTS_FILE
from data_prep.shuffle import WindowShuffle
from data_prep.statistics import LogStatistics


class _SplitOutput:
    """Where the rows of one split go."""

    def __init__(self, writer: MindRecordWriter, shuffle: WindowShuffle | None) -> None:
        self.clicks = 0
        self._membership = xxhash.xxh3_64()
        self._writer = writer
        self._shuffle = shuffle
        self._row_numbers: list[NDArray[np.int64]] = []

    def add(self, rows: EncodedRows) -> None:
        """Take rows in the log's order."""
        self.clicks += int(rows.labels.sum())
        self._membership.update(np.ascontiguousarray(rows.row_numbers).data)
        if self._shuffle is None:
            self._row_numbers.append(rows.row_numbers.copy())  # a part would keep all memory of a worker's result
            self._writer.write(rows)
            return
        for piece in self._shuffle.add(rows):
            self._writer.write(piece)

    @property
    def membership(self) -> str:
        """A checksum of the numbers of all rows, int64 in the log's order."""
        return f"xxh3:{self._membership.hexdigest()}"

    def finish(self) -> tuple[list[WrittenFile], NDArray[np.int64] | None]:
        """Write what waits; the files, and the row numbers in the order written if that is the log's."""
        if self._shuffle is None:
            return self._writer.finish(), np.concatenate(self._row_numbers)
        for piece in self._shuffle.finish():
            self._writer.write(piece)
        return self._writer.finish(), None


def write_splits(
    reading: LogReading,
    encoder: Encoder,
    options: PrepareOptions,
    statistics: LogStatistics,
    folder: Path,
    file_rows: int,
) -> dict[str, schema.Split]:
    """Second reading: the MindRecord files of all splits. Where it is the only one, statistics and rejects too."""
    outputs = {
        split: _SplitOutput(
            MindRecordWriter(folder, split, options.block_rows, file_rows),
            WindowShuffle(options.seed, options.shuffle_window_rows) if split == "train" else None,
        )
        for split in schema.SPLITS
    }

    with (folder / REJECTS_FILE).open("ab") as rejects:

        def consume(chunk: EncodedChunk) -> None:
            for split, rows in chunk.rows.items():
                outputs[split].add(rows)
            if chunk.counts is not None:
                statistics.add(chunk.counts)
                rejects.write(chunk.counts.rejects_tsv)

        reading.run(encoder.encode_chunk, consume, "encode")
    splits = {}
    for split, output in outputs.items():
        files, row_numbers = output.finish()
        if row_numbers is not None:
            np.save(folder / schema.row_numbers_file(split), row_numbers)
        data_files = tuple(data_file(folder, file.name, file.rows) for file in files)
        splits[split] = schema.Split(sum(file.rows for file in files), output.clicks, data_files, output.membership)
    return splits
