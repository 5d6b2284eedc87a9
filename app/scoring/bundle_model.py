"""Open a bundle, run its ONNX model (the hidden layers, and the sum with the wide part) in onnxruntime, compute logits
of raw rows, and check the installation with the bundle's golden rows.

app/scoring/trained/write_tower.py builds the ONNX model. Golden rows are made-up rows that a bundle contains together
with their logits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.scoring.bundle_folder import GOLDEN, TOLERANCE, ChainEntry, opening, reexport_advice
from app.scoring.bundle_tables import BundleTables, BundleTablesSpec, lookup
from app.tables.fields import TableField, columns_of, pool, position_weights, sum_in_order, sum_over_positions
from common.files import parse_json
from data_prep.encoding.encoder import Chunk, Examples, ParsedRows, open_lookup
from data_prep.encoding.from_values import rejected
from data_prep.encoding.rows_to_score import RawTable, table_to_chunk
from data_prep.options.log_format import LogFormat
from data_prep.prepared.schema import Schema, read_schema

TOWER = "tower.onnx"
# Batch sizes in which the model is run. The bits of a matrix product may depend on its number of rows, so other sizes
# are padded to one of these. `OnnxTower` checks if the batch sizes ONE and FEW give the same bits as MANY, and does not
# use a size that gives other bits.
ONE, FEW, MANY = 1, 8, 256
# For the batch sizes ONE and FEW: up to how many rows it is faster to run the model several times with this batch size
# than once with the next larger batch size.
MOST_ROWS = {ONE: 2, FEW: 96}


class OnnxTower:
    """A bundle's tower.onnx in onnxruntime. It scores any number of rows, and the bits of a row's logit do not depend
    on the other rows.
    """

    def __init__(self, path: Path, num_threads: int) -> None:
        """Load the ONNX model at `path`. Raise ValueError if onnxruntime cannot read it."""
        # Import onnxruntime late: it takes a third of a second, and every command of `app` imports this file.
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = num_threads, 1
        # Do not use onnxruntime's memory arena, because it never gives memory back: it would keep as much as the
        # largest run needed.
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        # Catch all exceptions, because onnxruntime's errors have no common base class.
        except Exception as error:
            raise ValueError(
                f"{path} cannot be used by onnxruntime {onnxruntime.__version__}: {error}; install the version of the "
                "bundle's requirements.txt"
            ) from error
        self._names = [value.name for value in self._session.get_inputs()]
        self._widths = [value.shape[1:] for value in self._session.get_inputs()]
        self._sizes = [*self._sizes_that_agree(), MANY]

    def _sizes_that_agree(self) -> Iterator[int]:
        """Yield each batch size in MOST_ROWS with which random rows get exactly the same logits as in one batch of MANY
        rows.
        """
        generator = np.random.default_rng(0)
        inputs = [generator.standard_normal((MANY, *width), np.float32) for width in self._widths]
        expected = self._run(inputs)
        for size in MOST_ROWS:
            parts = [self._run([values[i : i + size] for values in inputs]) for i in range(0, MANY, size)]
            if np.array_equal(np.concatenate(parts), expected):
                yield size

    def __call__(self, deep_rows: np.ndarray, wide_rows: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
        """Return the logits, float32 [n], of n rows: their deep rows side by side [n, C * D], the sums of their wide
        rows [n] and, as `numbers`, their numeric columns [n, N] and their vectors [n, K]. If the model has no vectors,
        they may be left out.
        """
        values = [deep_rows, wide_rows, *numbers][: len(self._names)]
        if len(wide_rows) in self._sizes:
            return self._run(values)
        logits = np.empty(len(wide_rows), np.float32)
        start = 0
        while start < len(logits):
            remaining = len(logits) - start
            size = next(size for size in self._sizes if remaining <= MOST_ROWS.get(size, remaining))
            inputs = [_padded(each[start : start + size], size) for each in values]
            logits[start : start + size] = self._run(inputs)[:remaining]
            start += size
        return logits

    def _run(self, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(self._session.run(["logits"], dict(zip(self._names, inputs, strict=True)))[0])


def _padded(values: np.ndarray, size: int) -> np.ndarray:
    if len(values) == size:
        return values
    padded = np.zeros((size, *values.shape[1:]), np.float32)
    padded[: len(values)] = values
    return padded


DISTRIBUTION = "distribution.json"
# Number of log rows whose embedding rows are looked up and scored at a time, so that the embedding rows are still in
# the CPU cache when they are scored.
ROWS_AT_ONCE = MANY


@dataclass(frozen=True)
class Scored:
    """Result of scoring a chunk (some lines of a log, or rows of a table): logits of the n good lines, and the reasons
    why the other lines were rejected.
    """

    places: np.ndarray  # Indices [n] of the lines of the chunk that were not rejected as bad (the good lines).
    # Logits [n] of the good lines, float32.
    logits: np.ndarray
    # Reason for each line that was rejected as bad, by the line's index within the chunk.
    rejected: dict[int, str]
    # The good lines in encoded form: ids, numbers, labels and weights. None if the chunk has no lines.
    encoded: Examples | None = None

    @property
    def labels(self) -> np.ndarray:
        """Labels of the n good lines, float32. NaN for a line without a label or with weight 0."""
        rows = self.encoded
        if rows is None or rows.weights is None:
            return np.zeros(0, np.float32) if rows is None else rows.labels
        return np.where(rows.weights > 0, rows.labels, np.float32(np.nan))


class BundleModel:
    """An opened bundle: the encoder of raw rows, the embedding tables and the tower. All methods are thread-safe."""

    def __init__(
        self, chain: Sequence[ChainEntry], num_threads: int = 1, opened: tuple[BundleTables, ...] = ()
    ) -> None:
        """Open the bundles of `chain`: a whole bundle followed by its deltas, oldest first. The caller has checked
        their files.

        `opened` contains the tables of the chain's first bundles if another model has already opened them. The new
        model shares these tables instead of opening them again.
        """
        self.chain, self._num_threads = tuple(chain), num_threads
        self.folder, self.manifest = self.chain[-1]
        folder = self.folder
        with opening(folder):
            self.schema: Schema = read_schema(folder)
            more = (BundleTables(path, BundleTablesSpec(**link.rows)) for path, link in self.chain[len(opened) :])
            self.tables = (*opened, *more)
            vocabularies = [(path, link.vocabulary) for path, link in self.chain]
            self.encoder = open_lookup(vocabularies, self.schema)
            num_ids = self.tables[-1].spec.num_ids
            if num_ids != self.schema.vocabulary_size:
                raise ValueError(
                    f"the bundle {folder} has tables of {num_ids:,} ids and a vocabulary of "
                    f"{self.schema.vocabulary_size:,}; {reexport_advice(folder)}"
                )
            described = self.manifest.model.get("fields") or [{"name": field.name} for field in self.schema.categorical]
            self.fields = tuple(TableField(**field) for field in described)
            of_deep, of_wide = (columns_of(self.fields, part) for part in ("deep", "wide"))
            # Embedding rows are not looked up for fields that neither the deep nor the wide part of the model uses. For
            # example, a model may leave out the fields made of buckets (ranges) of integer columns.
            used = sorted({*of_deep, *of_wide})
            self._used_fields = [field for field in self.fields if field.deep or field.wide]
            positions = range(sum(field.length for field in self.fields))
            self._visible_fields, self._of_deep, self._of_wide = (
                slice(None) if len(part) == len(whole) else np.searchsorted(whole, part)
                for part, whole in ((used, positions), (of_deep, used), (of_wide, used))
            )
            self._has_lists, self._has_deep = len(used) > len(self._used_fields), bool(of_deep)
            self._tower = OnnxTower(folder / TOWER, num_threads)

    @property
    def log_format(self) -> LogFormat:
        """Format of the log that the bundle's model was trained on."""
        return self.encoder.log_format

    @cached_property
    def held_out_counts(self) -> dict[str, np.ndarray]:
        """Counts of the rows on which the bundle was evaluated (the held-out rows), by the names of the arrays of
        `distribution.Distribution`. {} if the bundle has no distribution.json.

        The file is read once and its content kept, because the bundle's folder may be removed while the model is in
        use.
        """
        path = self.folder / DISTRIBUTION
        content = parse_json(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return {name: np.array(counts) for name, counts in content.items()}

    def score_chunk(self, chunk: Chunk | RawTable) -> Scored:
        """Score a table of raw rows, or the good lines of a chunk of a log. Return their logits, and the reasons why
        other lines were rejected. The lines of a chunk must have a label column.
        """
        if isinstance(chunk, RawTable):
            rows = self.encoder.encode_rows(chunk.rows)
            logits = self.logits_of_encoded(rows)
            return Scored(chunk.rows.row_numbers, logits, {}, rows)
        if not chunk.num_lines:
            return Scored(np.zeros(0, np.int64), np.zeros(0, np.float32), {})
        parsed, rows = self.encoder.encode(chunk)
        reasons = rejected(chunk, parsed)
        places = parsed.rows.row_numbers - chunk.first_line
        return Scored(places, self.logits_of_encoded(rows), reasons, rows)

    def logits_of_encoded(self, rows: Examples) -> np.ndarray:
        """Return the logits, float32 [n], of n rows whose cells are already encoded as ids and numbers."""
        slices = [slice(start, start + ROWS_AT_ONCE) for start in range(0, len(rows), ROWS_AT_ONCE)]
        parts = [
            self._tower(*self.tower_inputs(rows.ids[part]), rows.numeric[part], rows.vectors[part]) for part in slices
        ]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.float32), *parts])

    def logits_of_parsed(self, rows: ParsedRows) -> np.ndarray:
        """Return the logits, float32 [n], of rows whose cells are parsed (typed columns) but not yet encoded as ids."""
        return self.logits_of_encoded(self.encoder.encode_rows(rows))

    def tower_inputs(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look up `ids` [B, P] of a batch, and return the tower's inputs. For each batch row, they are the embedding
        rows of its deep fields side by side, float32 [B, deep fields · D], and the sum of its weights in the wide
        table, float32 [B].

        The deep and the wide part may use different fields. The embedding rows of a list field (a field with several
        values per row, such as tags) are pooled into one row.
        """
        ids = ids[:, self._visible_fields]
        deep, wide = lookup(self.tables, np.maximum(ids, 0) if self._has_lists else ids)
        rows, wide = deep.reshape(*ids.shape, self.tables[0].spec.width)[:, self._of_deep], wide[:, self._of_wide]
        if not self._has_deep:
            # If the model has no deep fields, the input of its tower is one embedding row of zeros, as in training.
            rows = np.zeros((len(ids), 1, rows.shape[2]), np.float32)
        if not self._has_lists:
            return rows.reshape(len(ids), -1), sum_in_order(wide)
        weights = position_weights(ids, self._used_fields)
        if self._has_deep:
            rows = pool(rows, weights[:, self._of_deep], [field for field in self._used_fields if field.deep])
        return rows.reshape(len(ids), -1), sum_over_positions(wide, weights[:, self._of_wide])

    def check_golden(self) -> int:
        """Score the golden rows, the made-up rows of golden.parquet, and return their number. Raise ValueError, naming
        the first such row, if a logit differs from the stored one by more than the row's tolerance.
        """
        with opening(self.folder):
            golden = pq.read_table(self.folder / GOLDEN)
            expected = golden["logit"].to_numpy()
            logits = self.score_chunk(table_to_chunk(golden_rows(self), self.log_format)).logits
        bad = np.flatnonzero(are_apart(logits, expected, golden[TOLERANCE].to_numpy()))
        if bad.size:
            raise ValueError(
                f"row {bad[0]} of {self.folder / GOLDEN} has logit {logits[bad[0]]} here, expected {expected[bad[0]]}; "
                f"the packages here are {json.dumps(self.manifest.versions)} in the bundle: install requirements.txt"
            )
        return len(expected)


def golden_rows(model: BundleModel) -> pa.Table:
    """Return the raw columns of the bundle's golden rows (made-up rows with known logits), without label, logits,
    scores and tolerances.
    """
    return pq.read_table(model.folder / GOLDEN, columns=[name for name, _ in model.log_format.fields])


def are_apart(logits: np.ndarray, expected: np.ndarray, tolerances: np.ndarray | float) -> np.ndarray:
    """Return a mask, bool [n], of the `logits` [n] that differ from `expected` [n] by more than `tolerances`.

    A logit whose tolerance is beyond the range of float32 never counts as different, not even if it is NaN or infinite.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        same = (logits == expected) | (np.abs(logits - expected) <= tolerances)
    return ~(same | (np.asarray(tolerances) > np.finfo(np.float32).max))
