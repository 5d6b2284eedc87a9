"""Compare scoring by a bundle with the parts of it alone, and with a program of PyTorch and pandas as users write it.

    python -m benchmarks.scoring [--rows 200000]

Rates of one core are computed from processor time: `predict` has one process, onnxruntime one thread. Then `predict`
and the peer run as commands on all cores, from start to end, in turn, and are timed by the wall clock. Scoring of one
row is timed by its thread's processor time and by the wall clock. The weights are random, because the times do not
depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.checkpoint.write import ModelState
from app.config.config import Config
from app.scoring.batch_prediction import predict
from app.scoring.bundle_tables import lookup
from app.scoring.predictor import Predictor
from app.scoring.trained.write_bundle import ExportedModel, finish, write_model
from app.tables.interface import TableState
from benchmarks.harness.commands import run_command, work_folder
from benchmarks.harness.timing import in_turns, new_parser, peak_memory_mib, print_result, seconds_of, side_by_side
from common import yaml_settings
from common.packages import require
from data_prep.encoding.encoder import Chunk
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import Schema, read_schema
from data_prep.sources.synthetic import synthesize

LOG = "unlabelled.txt"
SETTINGS = ("model.embedding_dim=16", "model.hidden_widths=[400,400,400]")
CHUNK_ROWS = 10_000
ANCHORS = """Anchors: Intel's Wide&Deep FP32 on 28 cores 302k-577k records/s (20.6k/s a core), Neural Compressor
43k/s on 56 cores. The bundle opens in 1 s or less."""


def main() -> None:
    require("torch", "pandas")
    parser = new_parser(__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="keeps log and bundle for the next time")
    options = parser.parse_args()
    with work_folder(options.folder) as folder:
        make_bundle(folder, options.rows)
        figures = measure(folder, options.rounds)
        figures["all_cores"] = contest(folder, options.rounds)
    report(figures)
    print_result(options, **figures)


def make_bundle(folder: Path, num_rows: int) -> None:
    """Write a log, the same log without labels, and a bundle with random weights.

    The log without labels is scored, because intervals of metrics are not part of scoring.
    """
    if (folder / "bundle").exists():
        return
    synthesize(folder / "log.txt", num_rows, seed=1)
    prepare(folder / "log.txt", folder / "prepared", PrepareOptions(min_count=2))
    with (folder / "log.txt").open("rb") as log, (folder / LOG).open("wb") as unlabelled:
        unlabelled.writelines(line.partition(b"\t")[2] for line in log)
    schema = read_schema(folder / "prepared")
    config = yaml_settings.override(Config(), SETTINGS)
    write_bundle(folder / "bundle", folder / "prepared", config, random_state(schema, config))


def write_bundle(
    folder: Path, prepared: Path, config: Config, state: ModelState, parent: Predictor | None = None
) -> None:
    """Write a bundle with the random weights of a model that was never trained."""
    folder.mkdir()
    checkpoint = {"id": "", "step": 0, "epoch": 0}
    manifest = write_model(folder, ExportedModel(state, config, prepared, checkpoint), "float32", parent).manifest
    finish(folder, manifest, {}, folder.parent)


def random_state(schema: Schema, config: Config) -> ModelState:
    generator, width = np.random.default_rng(0), config.model.embedding_dim

    def draw(*shape: int) -> np.ndarray:
        return (generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    num_numeric, hidden = schema.num_numeric, config.model.hidden_widths
    widths = (schema.num_categorical * width, *hidden, 1)
    dense = {"wide.bias": draw(1), "wide.numeric_weight": draw(num_numeric, 1)}
    dense |= {
        "tower.numeric_rows": draw(num_numeric, width),
        "tower.numeric_matrix": draw(num_numeric, width, hidden[0]),
    }
    for i in range(len(hidden)):
        dense |= {f"tower.matrix_{i}": draw(widths[i], widths[i + 1]), f"tower.bias_{i}": draw(widths[i + 1])}
    dense[f"tower.matrix_{len(hidden)}"] = draw(*widths[-2:])
    ids = np.arange(schema.vocabulary_size)
    rows = {name: generator.standard_normal((len(ids), n), np.float32) for name, n in (("wide", 1), ("deep", width))}
    return ModelState(dense, {name: TableState(ids, {"rows": values}) for name, values in rows.items()})


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Measure the rows per second of `predict` and of its parts alone, in turns.

    Also measure the time to open a bundle and to score one row.
    """
    start = time.perf_counter()
    predictor = Predictor.open(folder / "bundle")
    open_seconds = time.perf_counter() - start
    lines = (folder / "log.txt").read_bytes().splitlines(keepends=True)
    starts = range(0, len(lines), CHUNK_ROWS)
    chunks = [Chunk(i, len(part := lines[i : i + CHUNK_ROWS]), b"".join(part)) for i in starts]
    words = folder / "bundle", [str(folder / LOG)], str(folder / "scores.csv")
    contenders = parts_alone(predictor, chunks) | {"predict": partial(predict, *words, overwrite=True)}
    timings = side_by_side(contenders, rounds, 1, time.process_time)
    rates = {name: len(lines) / timing.median for name, timing in timings.items()}
    bound = 1 / (1 / rates["tower"] + 1 / rates["encoding"])
    return {
        "rows_per_second": rates,
        "over_parts": rates["predict"] / bound,
        "one_row_ms": one_row(predictor, lines, time.perf_counter),
        "one_row_cpu_ms": one_row(predictor, lines, time.thread_time),
        "open_seconds": open_seconds,
        "peak_rss_mib": peak_memory_mib(),
    }


def parts_alone(predictor: Predictor, chunks: list[Chunk]) -> dict[str, Callable[[], object]]:
    """Return the parts of `predict` as functions: raw lines to ids, ids to embeddings, embeddings to logits."""
    encoder, tables, tower = predictor.encoder, predictor.tables, predictor._tower
    encoded = [encoder.encode(chunk)[1] for chunk in chunks]
    ids, numeric = encoded[0].ids[:1024], encoded[0].numeric[:1024]
    deep, wide = lookup(tables, ids)
    total, summed = sum(len(part) for part in encoded), wide.sum(axis=1)

    def look_up() -> None:
        for part in encoded:
            for start in range(0, len(part), 1024):
                lookup(tables, part.ids[start : start + 1024])

    def run_tower() -> None:
        for _ in range(0, total, 1024):
            tower(deep, summed, numeric)

    return {"encoding": lambda: [encoder.encode(chunk) for chunk in chunks], "lookup": look_up, "tower": run_tower}


def one_row(predictor: Predictor, lines: list[bytes], clock: Callable[[], float], count: int = 1000) -> float:
    """Return the median milliseconds in which `score` scores one raw line. Each call gets another line."""
    seconds = [seconds_of(lambda line=line: predictor.score([line]), clock) for line in lines[:count]]  # type: ignore[misc]
    return float(np.median(seconds) * 1e3)


def contest(folder: Path, rounds: int) -> dict[str, float]:
    """Return the median seconds of `predict` and of the peer, run as commands on all cores, in turns."""
    scores, log = str(folder / "scores.csv"), str(folder / LOG)
    ours = "app.cli.predict", str(folder / "bundle"), log, scores, "--overwrite"
    peer = "benchmarks.scoring.pytorch_pandas", log, str(folder / "prepared" / "vocabulary.parquet")

    def seconds(command: tuple[str, ...]) -> float:
        return seconds_of(lambda: run_command(*command, folder=folder))

    turns = in_turns({"ours": partial(seconds, ours), "peer": partial(seconds, peer)}, rounds)
    both = np.array([turns["ours"], turns["peer"]])
    of_ours, of_peer, ratio = np.median([*both, both[1] / both[0]], axis=1)
    return {"predict_seconds": float(of_ours), "peer_seconds": float(of_peer), "ratio": float(ratio)}


def report(found: dict[str, Any]) -> None:
    for name, rate in found["rows_per_second"].items():
        print(f"{name:10} {rate:10,.0f} rows/s of one core")
    print(f"predict over its parts alone (tower and encoding): {found['over_parts']:.2f}")
    both = found["all_cores"]
    print(
        f"as commands on all cores: predict {both['predict_seconds']:.1f} s, PyTorch + pandas "
        f"{both['peer_seconds']:.1f} s; {both['ratio']:.2f} times as fast"
    )
    print(
        f"one row {found['one_row_cpu_ms']:.3f} ms of its thread, {found['one_row_ms']:.3f} ms by the clock; "
        f"open {found['open_seconds']:.3f} s"
    )
    print(ANCHORS)


if __name__ == "__main__":
    main()
