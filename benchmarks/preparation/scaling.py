"""Estimate the preparation of a log of any size from the measured costs of a row and of a distinct value.

    python -m benchmarks.preparation.scaling                          measure, then Criteo's 1 TB log on these cores
    python -m benchmarks.preparation.scaling --cores 32 --rows 45840617 --distinct 33762577
    python -m benchmarks.preparation.scaling --costs costs.json       from what was measured before
    python -m benchmarks.preparation.scaling --quick                  does everything work?

Each part runs alone on one core, in this process, on a synthetic log and this machine's disk. The estimate sums up:

    a reading  = rows * max(all its parts / cores, what only the main process does, what its thread that unpacks does)
    vocabulary = distinct values * (merging + writing), in the main process

The CPU time a row of real runs of `prepare`, over that of the parts, is shown beside it: trust the estimate no further.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.timing import machine
from benchmarks.preparation.prepare import first_rows
from common.number_text import Unit, number_text
from data_prep.encoding.fit import fit_vocabulary
from data_prep.execution.folder import WORK_FOLDER
from data_prep.execution.pieces import Pieces
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.count import ChunkCounter
from data_prep.pipeline.encode import REST, Encoder
from data_prep.pipeline.fit import numeric_fields
from data_prep.pipeline.prepare import prepare
from data_prep.pipeline.shuffle import WindowShuffle
from data_prep.pipeline.split import make_split
from data_prep.prepared.rows import Rows, concatenate
from data_prep.prepared.writer import MindRecordWriter
from data_prep.raw_log.chunks import open_log
from data_prep.raw_log.files import find_log
from data_prep.report.timing import read_timing
from data_prep.sources.synthetic import synthesize
from data_prep.statistics.statistics import LogStatistics
from data_prep.statistics.value_counts import ValueCounts

# Criteo's 1 TB log. Rows: days 0 to 23; distinct values: "over 800 million", both by Criteo's announcement (2015).
CRITEO_1TB_ROWS, CRITEO_1TB_DISTINCT = 4_373_472_329, 800_000_000
WORD_BYTES = 8  # a value and its count, on disk once counts outgrow the memory; again in every run that has it
_CHUNK_BYTES = 8 << 20
_ROUNDS = 3


@dataclass(frozen=True)
class Costs:
    """Costs on one core, in seconds and bytes; `parallel` parts run on all cores, `main` parts on one."""

    parallel_count: float  # a row: parse, count, put the counts on disk
    main_count: float  # a row: read the counts, add them up
    parallel_encode: float  # a row: parse, encode, put the rows on disk; read them, shuffle, write MindRecord
    main_encode: float  # a row: read what is beside the rows
    unpack: float  # a row of a .gz file, in each reading, by a thread of the main process
    main_distinct: float  # a distinct value: merge runs on disk, order, vocabulary.parquet and the search table
    log_bytes: float  # a row
    counts_bytes: float  # a row, on disk during the first pass
    rows_bytes: float  # a row, on disk from its encoding until its file is finished
    output_bytes: float  # a row
    lookup_bytes: float  # a value with an id, in memory during the second pass


@dataclass(frozen=True)
class Estimate:
    """Estimate of a whole preparation."""

    first_pass_seconds: float
    vocabulary_seconds: float
    second_pass_seconds: float
    output_bytes: float
    temporary_bytes: float
    lookup_bytes: float

    @property
    def seconds(self) -> float:
        """In all."""
        return self.first_pass_seconds + self.vocabulary_seconds + self.second_pass_seconds


@dataclass(frozen=True)
class Size:
    """Size of a log."""

    rows: int
    distinct: int  # values of all fields
    with_id: int  # of them, with an id of their own
    is_packed: bool


def estimate(costs: Costs, size: Size, cores: int) -> Estimate:
    """Estimate a log's preparation on `cores`."""
    rows, unpack = size.rows, costs.unpack * size.is_packed

    def reading(parallel: float, main: float) -> float:
        return rows * max((parallel + main + unpack) / cores, main, unpack)

    return Estimate(
        first_pass_seconds=reading(costs.parallel_count, costs.main_count),
        vocabulary_seconds=size.distinct * costs.main_distinct,
        second_pass_seconds=reading(costs.parallel_encode, costs.main_encode),
        output_bytes=rows * costs.output_bytes,
        temporary_bytes=rows * costs.counts_bytes + size.distinct * WORD_BYTES,
        lookup_bytes=size.with_id * costs.lookup_bytes,
    )


def measure(rows: int, distinct: int, folder: Path) -> tuple[Costs, float]:
    """The costs, and the CPU time of a real preparation of the same log over theirs."""
    log = synthesize(folder / "log.txt", rows, seed=1).log_path
    options = PrepareOptions(workers=1)
    chunks = [task.load() for task in _chunks(log, options)]
    pieces = Pieces(folder / WORK_FOLDER)
    pieces.folder.mkdir()
    split = make_split(options, lambda: rows, lambda _: [])
    counter = ChunkCounter(split, options)

    count_seconds, counted = _all(lambda: [counter.count(chunk) for chunk in chunks])
    count_write, count_read, counts_bytes = _pieces_cost(pieces, counted)
    add_seconds, statistics = _all(lambda: _add_all(LogStatistics(options, pieces.folder, 1 << 30), counted))
    fields = numeric_fields(options, statistics.numeric)
    vocabulary = fit_vocabulary(statistics, options, len(fields), folder)

    encoder = Encoder(fields, vocabulary.lookup, vocabulary.ids_dtype, split, options, counts=False)
    encode_seconds, encoded = _all(lambda: [encoder.encode(chunk) for chunk in chunks])
    rows_write, rows_read, rows_bytes = _pieces_cost(pieces, encoded)
    _, rest_read, _ = _pieces_cost(pieces, [chunk[REST] for chunk in encoded])
    parts = [part for chunk in encoded for part in chunk.values() if isinstance(part, Rows)]
    write_seconds, output_bytes = _write(folder, concatenate(parts), options)
    unpack_seconds = _unpack(chunks[0].lines, folder / "packed.gz", options)
    distinct_seconds, lookup_bytes = _distinct(distinct, folder, options)

    costs = Costs(
        parallel_count=(count_seconds + count_write) / rows,
        main_count=(add_seconds + count_read) / rows,
        parallel_encode=(encode_seconds + rows_write + rows_read + write_seconds) / rows,
        main_encode=rest_read / rows,
        unpack=unpack_seconds / chunks[0].num_lines,
        main_distinct=distinct_seconds / distinct,
        log_bytes=log.stat().st_size / rows,
        counts_bytes=counts_bytes / rows,
        rows_bytes=rows_bytes / rows,
        output_bytes=output_bytes / rows,
        lookup_bytes=lookup_bytes / distinct,
    )
    return costs, _ratio_to_real(log, rows, costs, folder)


def _unpack(text: bytes, path: Path, options: PrepareOptions) -> float:
    """Seconds to unpack a chunk's lines and cut them out of a file."""
    path.write_bytes(gzip.compress(text))
    seconds, _ = _all(lambda: [task.num_lines for task in _chunks(path, options)])
    return seconds


def _chunks(log: Path, options: PrepareOptions) -> Iterator[Any]:
    with open_log(find_log(log)[0], options.data) as reader:
        yield from (task for task, _ in reader.chunks(_CHUNK_BYTES))


def _all(work: Callable[[], Any]) -> tuple[float, Any]:
    """The fastest of some rounds, in CPU seconds of this process, and the last one's result."""
    seconds = []
    for _ in range(_ROUNDS):
        start = time.process_time()
        result = work()
        seconds.append(time.process_time() - start)
    return min(seconds), result


def _add_all(statistics: LogStatistics, counted: list[Any]) -> LogStatistics:
    for counts in counted:
        statistics.add(counts)
    return statistics


def _pieces_cost(pieces: Pieces, values: list[Any]) -> tuple[float, float, float]:
    """Seconds to write and to read the values as pieces, and their bytes."""
    names = [f"piece-{i}" for i in range(len(values))]

    def write_all() -> None:
        for name, value in zip(names, values, strict=True):
            pieces.write(name, value)

    write, _ = _all(write_all)
    read, _ = _all(lambda: [pieces.read(name) for name in names])
    size = sum((pieces.folder / name).stat().st_size for name in names)
    pieces.clear("piece-")
    return write, read, size


def _write(folder: Path, rows: Rows, options: PrepareOptions) -> tuple[float, float]:
    """Seconds to shuffle rows and write them as MindRecord, and the bytes."""
    target = folder / "written"

    def work() -> list[Any]:
        for old in target.glob("*"):
            old.unlink()
        target.mkdir(exist_ok=True)
        writer = MindRecordWriter(target / "train-00000.mindrecord", options.block_rows)
        shuffle = WindowShuffle(options.seed, options.shuffle_window_rows)
        for piece in (*shuffle.add(rows), *shuffle.finish()):
            writer.write(piece)
        return [writer.finish()]

    seconds, _ = _all(work)
    return seconds, sum(path.stat().st_size for path in target.iterdir())


def _distinct(distinct: int, folder: Path, options: PrepareOptions) -> tuple[float, float]:
    """Seconds for values of one field that all get an id, counted on disk; bytes of the search table."""
    random = np.random.default_rng(1)
    values = random.choice(2**32, distinct, replace=False).astype(np.uint64)
    words = [np.sort(part) << np.uint64(32) | np.uint64(3) for part in np.array_split(values, 16)]
    nothing = np.empty(0, np.uint64)
    start = time.process_time()
    statistics = LogStatistics(options, folder / WORK_FOLDER, 1 << 30)
    num_fields = len(options.categorical_columns)
    statistics.values = ValueCounts(num_fields, folder / WORK_FOLDER, distinct * 4)  # a quarter of what they need
    for part in words:
        statistics.values.add([part, *[nothing] * (num_fields - 1)])
    vocabulary = fit_vocabulary(statistics, PrepareOptions(min_count=1), 26, folder)
    return time.process_time() - start, vocabulary.lookup.size


def _ratio_to_real(log: Path, rows: int, costs: Costs, folder: Path) -> float:
    """CPU time a row of real preparations over that of the parts; what a run takes at any size is left out."""
    few = max(rows // 10, 1)
    first = first_rows(log, few, folder / "few.txt")
    more, less = (_cpu_seconds(path, folder / f"prepared-{path.stem}") for path in (log, first))
    parts = costs.parallel_count + costs.main_count + costs.parallel_encode + costs.main_encode
    return (more - less) / (rows - few) / parts


def _cpu_seconds(log: Path, output: Path) -> float:
    prepare(log, output, PrepareOptions(), report=True)
    timing = read_timing(output)
    assert timing is not None  # written a moment ago
    return timing.cpu_seconds


def show(costs: Costs, ratio: float, size: Size, cores: int) -> Estimate:
    """Print what was measured and what follows."""
    print("a row, one core:" + f"{'all cores share':>38} {'main process':>14}")
    print(f"  first pass     {1e6 * costs.parallel_count:33.2f} µs {1e6 * costs.main_count:11.2f} µs")
    print(f"  second pass    {1e6 * costs.parallel_encode:33.2f} µs {1e6 * costs.main_encode:11.2f} µs")
    print(f"  unpack .gz     {'(a thread)':>33} {1e6 * costs.unpack:14.2f} µs")
    print(f"a distinct value {'':33} {1e6 * costs.main_distinct:14.2f} µs")
    for name in ("log_bytes", "counts_bytes", "rows_bytes", "output_bytes", "lookup_bytes"):
        print(f"{name:17} {getattr(costs, name):33.1f} B")
    print(f"a real run takes {ratio:.2f} times the CPU time that these add up to\n")
    total = estimate(costs, size, cores)
    form = ".gz" if size.is_packed else "plain"
    print(
        f"{size.rows:,} rows ({form}), {size.distinct:,} distinct values, {size.with_id:,} with an id, {cores} cores:"
    )
    for name, value in {**asdict(total), "seconds": total.seconds}.items():
        unit: Unit = "bytes" if name.endswith("bytes") else "seconds"
        print(f"  {name:24} {number_text(value, unit)}")
    print(f"  {'seconds as a real run':24} {number_text(total.seconds * ratio, 'seconds')}")
    unpack = costs.unpack * size.is_packed
    slowest = max(costs.main_encode, unpack)
    fewest = (costs.parallel_encode + costs.main_encode + unpack) / slowest
    print(f"  more than {fewest:.1f} cores make the second pass no faster: one process unpacks and adds up")
    return total


def main() -> None:
    """Measure or read costs, estimate, print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", type=Path, help="a file with the JSON line of an earlier run")
    parser.add_argument("--rows", type=int, default=CRITEO_1TB_ROWS)
    parser.add_argument("--distinct", type=int, default=CRITEO_1TB_DISTINCT)
    parser.add_argument(
        "--with-id", type=int, help="distinct values with an id of their own; default: all (min_count 1)"
    )
    parser.add_argument("--plain", action="store_true", help="the log is not packed (.gz)")
    parser.add_argument("--cores", type=int, default=int(machine()["cores"]))
    parser.add_argument("--measured-rows", type=int, default=1_000_000)
    parser.add_argument("--measured-distinct", type=int, default=4_000_000)
    parser.add_argument("--folder", type=Path, help="where files go; default: a temporary one")
    parser.add_argument("--quick", action="store_true", help="measure 40,000 rows")
    command = parser.parse_args()
    if command.quick:
        command.measured_rows, command.measured_distinct = 40_000, 100_000
    if command.costs:
        content = json.loads(command.costs.read_text(encoding="utf-8").splitlines()[-1])
        costs, ratio = Costs(**content["costs"]), float(content["real_over_estimate"])
    else:
        with tempfile.TemporaryDirectory(dir=command.folder) as folder:
            costs, ratio = measure(command.measured_rows, command.measured_distinct, Path(folder))
    with_id = command.distinct if command.with_id is None else command.with_id
    size = Size(command.rows, command.distinct, with_id, not command.plain)
    total = show(costs, ratio, size, command.cores)
    result = {
        "benchmark": "scaling",
        **asdict(size),
        "cores": command.cores,
        "costs": asdict(costs),
        "real_over_estimate": ratio,
        "estimate": {**asdict(total), "seconds": total.seconds},
        "machine": machine(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
