"""Score a whole log with a bundle. The output is CSV or Parquet and has one row for each line of the log.

Until the prediction is complete, the folder OUTPUT.partial keeps what is needed to resume it: run.json (which bundle,
log and settings were given), the lock file, and the scores of each finished chunk. The same command, run again, resumes
with the first chunk that is not finished.
"""

from __future__ import annotations

import functools
import json
import select
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from app.evaluation.metrics import MEASURED, MetricStream, confidence_intervals
from app.scoring.predictor import Predictor, probabilities
from common.files import LOCK_FILE, fill, lock_folder, parse_json, room_for, sync_folder, write_whole
from common.signals import check_stop
from data_prep.encoding.encoder import MOST_UNKNOWN, Chunk
from data_prep.encoding.from_values import add_label, split_line
from data_prep.encoding.rows_to_score import LogToScore, ending_of
from data_prep.options.executor import ExecutorChoice

STDIN = "-"
# Size in bytes of a chunk: consecutive lines of the log (some 10,000) that a worker process scores at a time.
CHUNK_BYTES = 2 << 20
STATE, WORK, RESULT, SPOOLED, FINISHED = "run.json", "work", "result", "stdin", "finished"
REPLICATES = 200
LEAST_ROWS = 20  # If fewer rows were scored, their out-of-vocabulary values may be chance and are not reported.
LINE, FILE, SCORE, REASON = "line", "file", "score", "reason"


@dataclass(frozen=True)
class ChunkScorer:
    """A function that scores one chunk (some lines) of a log in a worker process. Each process opens the bundle
    once.
    """

    bundle: str
    bundle_id: str
    columns: tuple[str, ...]  # Columns of the log. The header of a file may list them in another order.
    keep: tuple[str, ...]

    def __call__(self, chunk: Chunk) -> dict[str, Any]:
        """Score one chunk of n lines.

        Return a mapping with `file` (name of the log file), `line` [n] (line numbers in the file), `logits` [n] (NaN
        for a bad line), `labels` [n] (NaN for a line without one), `weights` [n] or None, `reasons` (why a line is bad,
        by its index in the chunk), `kept` (for each column in `keep`, its n cells) and `unknown` (see
        `RowEncoder.count_unknown`, 0 if no line is good).
        """
        predictor = _open(self.bundle, self.bundle_id)
        log_format = predictor.log_format
        cells_to_keep = self._cells_to_keep(chunk, predictor)
        labelled = log_format.label_column in self.columns
        scored = predictor.score_chunk(chunk if labelled else add_label(chunk, log_format))
        first = chunk.first_line_number
        logits, labels = (np.full(chunk.num_lines, np.nan, np.float32) for _ in range(2))
        logits[scored.places], labels[scored.places] = scored.logits, scored.labels
        weights = None
        if scored.encoded is not None and scored.encoded.weights is not None:
            weights = np.zeros(chunk.num_lines, np.float32)
            weights[scored.places] = scored.encoded.weights
        return {
            "file": chunk.file.name,
            "line": np.arange(first, first + chunk.num_lines),
            "logits": logits,
            "labels": labels,
            "weights": weights,
            "reasons": scored.rejected,
            "kept": cells_to_keep,
            "unknown": 0 if scored.encoded is None else predictor.encoder.count_unknown(scored.encoded.ids),
        }

    def _cells_to_keep(self, chunk: Chunk, predictor: Predictor) -> list[list[str]]:
        """Return a list for each column in `keep`, with the cells of the chunk's n lines. A line with too few cells
        gets "".
        """
        if not self.keep or chunk.kept:
            return list(chunk.kept)
        log_format = predictor.log_format
        names = chunk.file.columns or self.columns
        places = [names.index(name) for name in self.keep]
        lines = [split_line(line, log_format, chunk.is_bare) for line in chunk.lines.split(b"\n")[:-1]]
        return [[cells[place] if place < len(cells) else "" for cells in lines] for place in places]


@functools.lru_cache(maxsize=1)
def _open(bundle: str, bundle_id: str) -> Predictor:
    predictor = Predictor.open(bundle)
    if predictor.manifest.id != bundle_id:
        raise ValueError(f"{bundle} is another bundle than when the prediction began; begin anew with --restart")
    return predictor


def predict(
    bundle: Path,
    inputs: Sequence[str],
    output: str,
    keep: Sequence[str] = (),
    executor: ExecutorChoice | None = None,
    num_workers: int = 1,
    overwrite: bool = False,
    restart: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
    version: int | None = None,
) -> dict[str, Any]:
    """Score a log into `output`.

    Parameters: `inputs` are files, folders, globs or URIs, or - for standard input. `output` is a .csv or .parquet
    file, which is written atomically, or - for CSV on standard output. `keep` names columns of the log to copy into the
    output.

    Return the numbers of rows and of bad lines. If nearly all values of a field are out of vocabulary, `unknown_values`
    says so (see `_unknown_values`). For a log with labels, the result also has metrics, `weighted` (True if the rows'
    weights enter the metrics), their 95 % intervals, and in `trained_on` the names of files with rows that the model
    was trained on. For a model with fields that have the same value in all rows to score, `served_as` has these values.

    Raise FileExistsError if the output exists and `overwrite` is not set. Raise ValueError if the input is no log of
    the model's columns, or if OUTPUT.partial belongs to another prediction and `restart` is not set.
    """
    executor = executor or ExecutorChoice()
    predictor = Predictor.open(bundle)
    finished = Path(f"{output}.partial", FINISHED)
    # If an earlier run of this prediction was killed after it had moved the output to its final name, the file FINISHED
    # in its work folder shows that it has written the existing output. This output may be replaced without `overwrite`.
    _check_output(output, overwrite or (finished.exists() and not restart))
    for place, name in enumerate(keep):
        if name in (LINE, FILE, SCORE, REASON) or name in keep[:place]:
            raise ValueError(f"--keep {name}: the output has a column of that name already")
    from_stdin = list(inputs) == [STDIN]
    with _work_folder(output, can_resume=not from_stdin) as folder, room_for(Path(output)):
        earlier = None if restart else _saved(folder)
        log = LogToScore.of([_spool(folder)] if from_stdin else inputs, predictor.log_format, keep, version, earlier)
        identity = {
            "bundle": predictor.manifest.id,
            "files": log.identity,
            **log.table_version,
            "keep": list(keep),
            "chunk_bytes": chunk_bytes,
        }
        _begin_or_resume(folder, identity, earlier)
        score = ChunkScorer(str(bundle.absolute()), predictor.manifest.id, tuple(log.log_format.columns), tuple(keep))
        with _ScoreWriter(folder / RESULT, output, keep, len(log.files) > 1, log.has_labels) as writer:
            log.run(score, writer.add, "score", folder / WORK, executor, num_workers, chunk_bytes)
        if output != STDIN:
            finished.touch()
            # Sync the file, because otherwise a power cut could leave an empty file under the final name.
            sync_folder(folder / RESULT)
            (folder / RESULT).replace(output)
            sync_folder(Path(output).parent)
        summary = writer.summary(predictor)
        if served := predictor.log_format.serve_as:
            summary["served_as"] = served
        if "metrics" in summary and (names := log.files_among(predictor.schema.source.get("files", ()))):
            summary["trained_on"] = names
    return summary


def _check_output(output: str, overwrite: bool) -> None:
    path = Path(output)
    if output == STDIN:
        return
    if path.suffix not in (".csv", ".parquet"):
        raise ValueError(f"the output {output} must end in .csv or .parquet, or be - for CSV on standard output")
    if path.is_dir():
        raise FileExistsError(f"the output {output} is a folder; give a file")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{output} is there; replace it with --overwrite or give another output")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the output {output}: there is no folder {path.parent}; make it")


@contextmanager
def _work_folder(output: str, can_resume: bool) -> Iterator[Path]:
    """Lock and yield the work folder OUTPUT.partial, and remove it when the `with` block ends without an error.

    After an error, keep the folder, unless it is new and the prediction cannot resume from it. If the output is
    standard output, yield a temporary folder.
    """
    if output == STDIN:
        with tempfile.TemporaryDirectory(prefix="predict-") as temporary:
            yield Path(temporary)
        return
    folder = Path(f"{output}.partial")
    is_new = not folder.exists()
    if not is_new and not (folder / LOCK_FILE).exists():
        raise FileExistsError(f"{folder} is in the way: no prediction made it; remove it or give another output")
    with lock_folder(folder, mode=0o700):
        try:
            yield folder
        except BaseException as error:
            # The folder contains nothing to resume from after wrong input, or if the log came from standard input,
            # which cannot be read again.
            if is_new and (not can_resume or isinstance(error, ValueError | FileNotFoundError)):
                _remove(folder)
            raise
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a work folder, its lock file and its file FINISHED last: if this process is killed before the end, later
    runs of the same prediction recognize the folder by these two files.
    """
    for path in folder.iterdir():
        if path.name not in (LOCK_FILE, FINISHED):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(folder)


def _saved(folder: Path) -> dict[str, Any] | None:
    """Return the content of run.json in a work folder, which says what the unfinished prediction was started with
    (bundle, log and settings). Return {} if the file is damaged, and None if there is none.
    """
    try:
        return parse_json((folder / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}


def _begin_or_resume(folder: Path, identity: dict[str, Any], earlier: dict[str, Any] | None) -> None:
    """Write run.json with `identity` for a new prediction, which has no `earlier` content of run.json. Otherwise raise
    ValueError unless the two are equal.
    """
    if earlier is None:
        shutil.rmtree(folder / WORK, ignore_errors=True)
        (folder / WORK).mkdir()
        write_whole(folder / STATE, json.dumps(identity) + "\n")
    elif earlier != identity:
        raise ValueError(
            f"an unfinished prediction left {folder}, by another bundle, of another log or with other settings. "
            "Give the same again to resume it, or begin anew with --restart"
        )


def _spool(folder: Path) -> str:
    """Copy standard input, which is a log, to a file in the work folder, and return the file's path. Worker processes
    need a file, because each reads another part of the log. Raise StopSignal after SIGINT or SIGTERM.
    """
    stream: Any = sys.stdin.buffer

    def read(buffer: memoryview) -> int:
        _wait_for(stream)
        return int(stream.readinto1(buffer))

    block = memoryview(bytearray(1 << 20))
    size = fill(read, block)
    path = folder / f"{SPOOLED}{ending_of(bytes(block[:size]))}"
    with path.open("wb") as file:
        while size:
            file.write(block[:size])
            size = fill(read, block)
    return str(path)


def _wait_for(stream: Any) -> None:
    """Wait until a read from the stream would not block. Meanwhile, raise StopSignal if SIGINT or SIGTERM arrives,
    because a blocked read would ignore these signals.
    """
    check_stop()
    while not select.select([stream], [], [], 0.2)[0]:
        check_stop()


def _unknown_values(predictor: Predictor, counts: Any, num_rows: int) -> dict[str, dict[str, float]]:
    """Return the fields whose values are out of vocabulary in nearly all rows, although they were not in the rows on
    which the model was evaluated (the held-out rows).

    `counts` is the sum of the results of `RowEncoder.count_unknown` over `num_rows` rows.

    For each such field, return the number of rows with a value (`rows`), the number with an unknown value (`unknown`),
    and the share of unknown values in the held-out rows (`held_out_share`). The result leaves out crosses, because they
    follow the fields that they are made of, hashed fields, because they have no vocabulary, and fields that the model
    does not use, even as part of a cross.
    """
    held_out, fields = predictor.held_out_counts.get("values", np.zeros((0, 1))), predictor.schema.categorical
    if len(held_out) != len(fields) or num_rows < LEAST_ROWS:
        return {}
    unknown, missing = counts
    rows, shares = num_rows - missing, held_out[:, 0] / np.maximum(held_out.sum(axis=1), 1)
    is_other = (unknown > MOST_UNKNOWN * rows) & (unknown > 2 * shares * num_rows) & (rows >= LEAST_ROWS)
    seen = [field for field, of in zip(fields, predictor.fields, strict=True) if of.deep or of.wide]
    names = {name for field in seen for name in (field.name, *field.cross)}
    return {
        field.name: {"unknown": int(unknown[place]), "rows": int(rows[place]), "held_out_share": float(shares[place])}
        for place, field in enumerate(fields)
        if is_other[place] and field.name in names and field.num_values > 1 and not field.cross
    }


class _ScoreWriter:
    """Writes scored chunks (groups of lines) to the output, in the order of the log, and counts rows, bad lines, and
    the scores and labels from which metrics are computed.
    """

    def __init__(self, path: Path, output: str, keep: Sequence[str], has_files: bool, labelled: bool) -> None:
        self._names = [LINE, *([FILE] if has_files else []), *keep, SCORE, REASON]
        types = {LINE: pa.int64(), SCORE: pa.float32()}
        self._schema = pa.schema([(name, types.get(name, pa.string())) for name in self._names])
        self._metrics = MetricStream() if labelled else None
        self._keep = tuple(keep)
        self._num_rows = self._num_bad = self._num_labelled = 0
        self._unknown: Any = 0
        self._is_weighted = False
        open_writer: Callable[..., Any] = pq.ParquetWriter if output.endswith(".parquet") else pa_csv.CSVWriter
        self._writer = open_writer(sys.stdout.buffer if output == STDIN else path, self._schema)

    def __enter__(self) -> _ScoreWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()

    def add(self, scored: dict[str, Any]) -> None:
        """Write the scored rows of one chunk (some lines of the log), which are the result of `ChunkScorer`, and count
        them.
        """
        logits, num_rows = scored["logits"], len(scored["logits"])
        good = ~np.isnan(logits)
        reasons: list[str | None] = [None] * num_rows
        for place, reason in scored["reasons"].items():
            reasons[place] = reason
        columns = {
            LINE: pa.array(scored["line"], pa.int64()),
            FILE: pa.array([scored["file"]] * num_rows, pa.string()),
            SCORE: pa.array(probabilities(np.where(good, logits, 0)), pa.float32(), mask=~good),
            REASON: pa.array(reasons, pa.string()),
            **{name: pa.array(cells, pa.string()) for name, cells in zip(self._keep, scored["kept"], strict=True)},
        }
        self._writer.write_table(pa.table([columns[name] for name in self._names], schema=self._schema))
        self._num_rows += num_rows
        self._num_bad += int(num_rows - good.sum())
        # A resumed prediction may read results of chunks of lines that an earlier release scored. They have no counts
        # of unknown values.
        self._unknown = self._unknown + scored.get("unknown", 0)
        if self._metrics is not None:
            labelled = good & ~np.isnan(scored["labels"])
            self._num_labelled += int(labelled.sum())
            weights = None if scored["weights"] is None else scored["weights"][labelled]
            self._is_weighted |= weights is not None
            self._metrics.add(logits[labelled], scored["labels"][labelled], weights)

    def summary(self, predictor: Predictor) -> dict[str, Any]:
        """Return what `predict` returns, by name: the numbers of rows and of bad lines, the fields with mostly unknown
        values, and for a log with labels the metrics.
        """
        content: dict[str, Any] = {"rows": self._num_rows, "bad_lines": self._num_bad}
        if unknown := _unknown_values(predictor, self._unknown, self._num_rows - self._num_bad):
            content["unknown_values"] = unknown
        if self._metrics is not None and self._num_labelled:
            metrics, bins = self._metrics.result_and_bins()
            content["metrics"] = {name: getattr(metrics, name) for name in ("click_rate", *MEASURED)}
            content["weighted"] = self._is_weighted and bool(predictor.log_format.columns_of_kind("weight"))
            if not np.isnan(metrics.auc):
                content["intervals"] = confidence_intervals(bins, REPLICATES, seed=1)
        return content
