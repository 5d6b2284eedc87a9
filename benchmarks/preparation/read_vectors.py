"""Compare how fast the preparation reads vectors from Parquet with pyarrow alone.

    python -m benchmarks.preparation.read_vectors              1 M rows with a vector of width 64
    python -m benchmarks.preparation.read_vectors --quick      does everything work?

The log has a label and a column of float32 lists. Three contenders take turns:

- pyarrow reads the column of vectors, in batches of as many rows as the preparation takes, and makes NumPy arrays.
- read is the reading of the preparation in one process: label and vectors of all rows, checked and parsed, as each of
  the two passes over the log needs them.
- prepare is the whole command in this process, from the log to the prepared folder: two passes, the statistics, the
  scaling, the shuffle and the files.

Bytes per second are the bytes of all vectors, 4 * width * rows, by the seconds of a contender.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness.timing import new_parser, print_result, side_by_side
from data_prep.kernels.native import choose_kernels
from data_prep.options.log_format import LogFormat, VectorForm
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.parquet import open_reader

CHUNK_BYTES = 4 << 20
GROUP_ROWS = 100_000


def write_log(path: Path, rows: int, width: int) -> None:
    """Write a Parquet log of random clicks and vectors."""
    random = np.random.default_rng(1)
    with pq.ParquetWriter(path, pa.schema({"click": pa.int8(), "item": pa.list_(pa.float32())})) as writer:
        for first in range(0, rows, GROUP_ROWS):
            num_rows = min(GROUP_ROWS, rows - first)
            values = random.standard_normal(num_rows * width, np.float32)
            lists = pa.ListArray.from_arrays(np.arange(0, len(values) + 1, width, dtype=np.int32), values)
            clicks = pa.array(random.random(num_rows) < 0.2).cast(pa.int8())
            writer.write_table(pa.table([clicks, lists], schema=writer.schema))


def read_chunks(path: Path, log_format: LogFormat) -> Iterator[np.ndarray]:
    """Read the log as the preparation does. Yield the vectors of each chunk."""
    parse_chunk = choose_kernels("auto").parse_chunk
    (file,) = find_log(path)
    with open_reader(file, log_format) as reader:
        for task, _ in reader.chunks(CHUNK_BYTES):
            yield parse_chunk(task.load(), log_format).rows.columns["item"].values


def measure(path: Path, rows: int, width: int, rounds: int) -> dict[str, dict[str, Any]]:
    log_format = LogFormat({"click": "label", "item": "vector"}, vectors={"item": VectorForm(width)})
    options = PrepareOptions(data=log_format)
    output = path.with_name("prepared")
    sizes = [len(vectors) for vectors in read_chunks(path, log_format)]

    def by_pyarrow() -> None:
        with pq.ParquetFile(path) as table:
            batches = table.iter_batches(sizes[0], columns=["item"])
            assert rows == sum(len(batch["item"].flatten().to_numpy()) // width for batch in batches)

    def by_prepare() -> None:
        prepare(path, output, options)
        shutil.rmtree(output)

    contenders = {
        "pyarrow": by_pyarrow,
        "read": lambda: sum(len(vectors) for vectors in read_chunks(path, log_format)),
        "prepare": by_prepare,
    }
    size = 4 * width * rows
    return {
        name: {"seconds": timing.median, "lower": timing.lower, "upper": timing.upper, "bytes/s": size / timing.median}
        for name, timing in side_by_side(contenders, rounds, warm_up=1).items()
    }


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="20,000 rows, one round")
    command = parser.parse_args()
    if command.quick:
        command.rows, command.rounds = 20_000, 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        write_log(path, command.rows, command.width)
        found = measure(path, command.rows, command.width, command.rounds)
    for name, figures in found.items():
        figures["of_pyarrow"] = figures["bytes/s"] / found["pyarrow"]["bytes/s"]
        spread = f"[{figures['lower']:.3f} … {figures['upper']:.3f}]"
        print(
            f"{name:8} {figures['seconds']:8.3f} s {spread} {figures['bytes/s'] / 1e6:8,.0f} MB/s  "
            f"{figures['of_pyarrow']:.3f} of pyarrow"
        )
    print_result(command, contenders=found)


if __name__ == "__main__":
    main()
