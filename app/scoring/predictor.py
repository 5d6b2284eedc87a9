"""Raw rows to scores by a bundle, in any process: no MindSpore, no prepared folder.

Letters: n rows, B rows of one lookup, C fields, D width, N numeric columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from app.evaluation.score_bins import sigmoid
from app.scoring.bundle_folder import (
    GOLDEN,
    GOLDEN_TOLERANCE,
    TOLERANCE,
    ChainEntry,
    check_files,
    check_parent,
    read_chain,
    read_manifest,
    reexport_advice,
)
from app.scoring.bundle_tables import BundleTables, BundleTablesSpec, lookup
from app.scoring.distribution import Distribution, read_distribution
from app.scoring.explain import ORDERS, parts_of_logits
from app.scoring.onnx_tower import MANY, TOWER, Tower
from app.tables.fields import TableField, columns_of, field_of_position
from app.tables.pooling import pool, position_weights, sum_over_positions
from common.frames import as_frame, as_series
from data_prep.encoding.encoder import Chunk, Examples, ParsedRows, open_lookup, options_of
from data_prep.encoding.from_table import RawTable, arrow_table, table_to_chunk, table_to_rows
from data_prep.encoding.from_values import (
    cells_of_line,
    cells_to_chunk,
    chunk_to_mapping,
    lines_to_chunk,
    mappings_to_chunk,
    rejected,
)
from data_prep.options.kinds import FIELD_KINDS
from data_prep.options.log_format import TIME_FEATURES, LogFormat
from data_prep.prepared.schema import Schema, read_schema

if TYPE_CHECKING:
    from typing import TypeAlias

    import pandas as pd
    import pyarrow as pa

    RawRows: TypeAlias = Sequence[str | bytes] | Sequence[Mapping[str, Any]] | pa.Table | pd.DataFrame

ROWS_AT_ONCE = MANY  # looked up and scored: their embeddings stay near the core


@dataclass(frozen=True)
class Scored:
    """The good lines of a chunk, and the reasons of the others by their place in the chunk."""

    places: np.ndarray  # [n] of good lines in the chunk
    logits: np.ndarray  # [n] float32
    labels: np.ndarray  # [n] float32; NaN where a row has none, or weight 0
    rejected: dict[int, str]
    encoded: Examples | None = None  # ids and numbers of the good lines; None where there are no lines


@dataclass(frozen=True)
class FieldEffect:
    """Effect of one column of a row: its wide weight, and the change of the logit against a blank cell."""

    field: str
    value: str | None
    in_vocabulary: bool | None  # None of numbers
    wide: float
    change: float


class Predictor:
    """A bundle that is open. Every method may be called from several threads."""

    def __init__(
        self, chain: Sequence[ChainEntry], num_threads: int = 1, opened: tuple[BundleTables, ...] = ()
    ) -> None:
        """Open a bundle and the deltas of it, oldest first, whose files were checked; see `open`.

        The tables of the first ones may be `opened` already.
        """
        self.chain, self._num_threads = tuple(chain), num_threads
        self.folder, self.manifest = self.chain[-1]
        folder = self.folder
        try:
            self.schema: Schema = read_schema(folder)
            self._options = options_of(self.schema, folder)
            more = (BundleTables(path, BundleTablesSpec(**link.rows)) for path, link in self.chain[len(opened) :])
            self.tables = (*opened, *more)
            vocabularies = [(path, link.vocabulary) for path, link in self.chain]
            self._encoder = open_lookup(vocabularies, self.schema, self._options)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"the bundle {folder} is of another version ({error!r}); {reexport_advice(folder)}"
            ) from error
        num_ids = self.tables[-1].spec.num_ids
        if num_ids != self.schema.vocabulary_size:
            raise ValueError(
                f"the bundle {folder} has tables of {num_ids:,} ids and a vocabulary of "
                f"{self.schema.vocabulary_size:,}; {reexport_advice(folder)}"
            )
        given = self.manifest.model.get("fields")
        self._fields = tuple(
            TableField(**each) for each in given or [{"name": f.name} for f in self.schema.categorical]
        )
        self._is_plain = given is None
        self._tower = Tower(folder / TOWER, num_threads)

    @classmethod
    def open(cls, path: str | Path, num_threads: int = 1) -> Predictor:
        """Open a bundle, or a delta and the bundles that it needs, which lie beside it.

        All but the tables' rows is read and checked, and all of a delta. Raises FileNotFoundError where it is none,
        ValueError where it is damaged or of another version, or where a bundle that it needs is not there.
        """
        chain = read_chain(Path(path))
        for link in chain:
            check_files(*link, every_byte=link[1].parent is not None)
        return cls(chain, num_threads)

    def with_delta(self, path: str | Path) -> Predictor:
        """Return a predictor with the delta at `path`, which shares what is mapped here; this one stays as it is.

        Raises as `open`, and ValueError where the delta does not hold changes of just this version.
        """
        link = Path(path), read_manifest(Path(path))
        check_parent(*link, self.manifest)
        check_files(*link, every_byte=True)
        return Predictor([*self.chain, link], self._num_threads, self.tables)

    def __repr__(self) -> str:
        return f"<Predictor {self.folder}: {len(self.log_format.fields)} columns, version {self.version}>"

    @property
    def version(self) -> str:
        """Name of what scores here: a checksum of all files of the bundle; a folded one has that of its deltas."""
        return self.manifest.version

    @property
    def generation(self) -> int:
        """Number of the deltas since the first bundle, those that were folded too."""
        return self.manifest.generation

    @property
    def changed_share(self) -> float:
        """Rows of deltas as a share of the whole bundle's: by it one decides when to fold."""
        base, *deltas = (tables.spec for tables in self.tables)
        return sum(spec.num_rows + spec.num_deleted for spec in deltas) / max(base.num_rows, 1)

    @property
    def log_format(self) -> LogFormat:
        return self._encoder.log_format

    @cached_property
    def example(self) -> dict[str, Any]:
        """The first golden row by column; read once, as the folder may be removed while this is open."""
        import pyarrow.parquet as pq

        row: dict[str, Any] = pq.read_table(self.folder / GOLDEN).slice(0, 1).to_pylist()[0]
        return {name: row[name] for name, _ in self.log_format.fields}

    @cached_property
    def held_out(self) -> Distribution | None:
        """The counts of the held-out rows, None where the bundle has none; read once, as `example`."""
        return read_distribution(self.folder, self.schema)

    def score(self, rows: RawRows) -> Any:
        """Return the click probabilities of raw rows, float32 [n], as a series for a table of pandas or polars.

        Rows are lines as in the log (a label is ignored, and may be left out), mappings from columns to values, or a
        table of pandas, polars or pyarrow. A pandas series has the table's index. Raises ValueError or TypeError,
        naming the first row, for what is no row.
        """
        return as_series(rows, probabilities(self._logits(rows)), "score")

    def logits(self, rows: RawRows) -> Any:
        """Return the logits of raw rows, in the form and with the errors of `score`."""
        return as_series(rows, self._logits(rows), "logit")

    def _logits(self, rows: RawRows) -> np.ndarray:
        chunk = self.chunk_of(rows)
        scored = self.score_chunk(chunk)
        self._check_all_good(chunk, scored.rejected)
        return scored.logits

    def _check_all_good(self, chunk: Chunk | RawTable, rejected: Mapping[int, str]) -> None:
        if rejected and isinstance(chunk, Chunk):
            place, reason = min(rejected.items())
            raise ValueError(
                f"row {place} cannot be scored: {reason}: {self.bad_cell(chunk, place)} ({len(rejected):,} such rows)"
            )

    def bad_cell(self, chunk: Chunk, row: int) -> str:
        """Return what is wrong with a rejected row of lines that have labels: its column and the cell."""
        log_format = self.log_format
        cells = cells_of_line(chunk, row, log_format)
        if len(cells) != len(log_format.columns):
            return (
                f"found {len(cells)} cells, expected {len(log_format.columns)} columns, "
                f"{', '.join(log_format.columns)}, between {log_format.separator!r}; the label may be left out"
            )
        for name, cell in zip(log_format.columns, cells, strict=True):
            kind = log_format.columns[name]
            alone, _ = self._encoder.encode(cells_to_chunk({name: cell}, log_format))
            if alone.rejects_tsv:
                return f"column {name!r} of kind {kind}, found {cell!r}"
        return "the line"

    def chunk_of(self, rows: Any) -> Chunk | RawTable:
        """Return raw rows as lines, or as columns where a table allows it. Raises as `score`."""
        table = arrow_table(rows, self.log_format)
        if table is None:
            return self.lines_of(rows)
        return table_to_rows(table, self.log_format) or table_to_chunk(table, self.log_format)

    def lines_of(self, rows: Any) -> Chunk:
        """Return raw lines or mappings as lines. Raises as `score`."""
        if isinstance(rows, str | bytes | Mapping):
            raise TypeError(f"rows must be a sequence or a table; for one row give [row], found {type(rows).__name__}")
        if len(rows) and isinstance(rows[0], Mapping):
            return mappings_to_chunk(rows, self.log_format)
        return lines_to_chunk(rows, self.log_format)

    def score_chunk(self, chunk: Chunk | RawTable) -> Scored:
        """Score rows, or the good lines of a chunk, whose lines have labels."""
        if isinstance(chunk, RawTable):
            rows = self._encoder.encode_rows(chunk.rows)
            logits = self.logits_of_ids(rows.ids, rows.numeric)
            return Scored(chunk.rows.row_numbers, logits, np.full(len(logits), np.nan, np.float32), {}, rows)
        if not chunk.num_lines:
            empty = np.zeros(0, np.float32)
            return Scored(np.zeros(0, np.int64), empty, empty, {})
        parsed, rows = self._encoder.encode(chunk)
        reasons = rejected(chunk, parsed) if parsed.rejects_tsv else {}
        places = parsed.rows.row_numbers - chunk.first_line
        labels = rows.labels if rows.weights is None else np.where(rows.weights > 0, rows.labels, np.float32(np.nan))
        return Scored(places, self.logits_of_ids(rows.ids, rows.numeric), labels, reasons, rows)

    def logits_of_ids(self, ids: np.ndarray, numeric: np.ndarray) -> np.ndarray:
        """Return the logits of encoded rows: `ids` [n, C], `numeric` [n, N] -> float32 [n]."""
        logits = np.empty(len(ids), np.float32)
        for start in range(0, len(ids), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            deep, wide = self.tower_inputs(ids[part])
            logits[part] = self._tower(deep, wide, numeric[part])
        return logits

    def tower_inputs(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return deep rows [B, inputs · D] and the sum of wide rows [B] of `ids`, each part's over its own fields."""
        if self._is_plain:
            deep, wide = lookup(self.tables, ids)
            return deep, _sum_over_fields(wide)
        deep, wide = lookup(self.tables, np.maximum(ids, 0))
        weights = position_weights(ids, self._fields)
        of_wide, of_deep = columns_of(self._fields, "wide"), columns_of(self._fields, "deep")
        rows = deep.reshape(*ids.shape, -1)
        pooled = pool(rows[:, of_deep], weights[:, of_deep], [field for field in self._fields if field.deep])
        if not of_deep:
            pooled = np.zeros((len(ids), 1, rows.shape[2]), np.float32)  # as in training
        return pooled.reshape(len(ids), -1), sum_over_positions(wide[:, of_wide], weights[:, of_wide])

    @overload
    def explain(self, rows: str | bytes | Mapping[str, Any]) -> list[FieldEffect]: ...
    @overload
    def explain(self, rows: RawRows, orders: int = ORDERS) -> Any: ...
    def explain(self, rows: Any, orders: int = ORDERS) -> Any:
        """Return the effects of a row's columns, the largest change first; of several rows a table of their parts.

        The table has a row for each of `rows`, and is of the same kind, of pandas for lines and mappings. Its columns
        are `(intercept)`, the logit of a blank row, and those of the log, float64: a row's sum is its logit. `orders`
        of the columns are averaged, see `app.scoring.explain`. Raises as `score`.
        """
        if isinstance(rows, str | bytes | Mapping):
            return self._effects(rows)
        return as_frame(rows, parts_of_logits(self._parsed(rows), self.log_format, self._logits_of_parsed, orders))

    def _effects(self, row: str | bytes | Mapping[str, Any]) -> list[FieldEffect]:
        chunk = self.lines_of([row])
        parsed, encoded = self._encoder.encode(chunk)
        if parsed.rejects_tsv:
            raise ValueError(f"the row cannot be explained: {rejected(chunk, parsed)[0]}")
        cells = chunk_to_mapping(chunk, self.log_format)
        columns = [name for name, kind in self.log_format.columns.items() if kind in FIELD_KINDS]
        # The row, then the same with each of its cells blanked.
        lines = [cells, *({**cells, name: None} for name in columns)]
        logits = self.logits(lines)
        _, wide = lookup(self.tables, np.maximum(encoded.ids, 0))
        wide = wide * position_weights(encoded.ids, self._fields)
        field_of = field_of_position(self._fields)
        numeric = encoded.numeric[0] * self.manifest.model["numeric_weights"]
        slope = self.manifest.model.get("calibration", {}).get("slope", 1)
        effects = []
        for place, name in enumerate(columns):
            made = [name, *(f"{name}{ending}" for ending in ("_bucket", *TIME_FEATURES.values()))]
            fields = [i for i, field in enumerate(self._fields) if field.name in made]
            positions = np.flatnonzero(np.isin(field_of, [i for i in fields if self._fields[i].wide]))
            of_numbers = [i for i, field in enumerate(self.schema.numeric) if field.source == name]
            weight, known = slope * float(wide[0, positions].sum() + numeric[of_numbers].sum()), None
            if name in self.log_format.categorical_fields:
                first, end = self.schema.categorical[fields[0]].oov_ids
                known = not first <= encoded.ids[0, np.searchsorted(field_of, fields[0])] < end
            effects.append(FieldEffect(name, cells[name], known, weight, float(logits[0] - logits[place + 1])))
        return sorted(effects, key=lambda effect: -abs(effect.change))

    def _parsed(self, rows: RawRows) -> ParsedRows:
        chunk = self.chunk_of(rows)
        if isinstance(chunk, RawTable):
            return chunk.rows
        parsed, _ = self._encoder.encode(chunk)
        self._check_all_good(chunk, rejected(chunk, parsed) if parsed.rejects_tsv else {})
        return parsed.rows

    def _logits_of_parsed(self, rows: ParsedRows) -> np.ndarray:
        encoded = self._encoder.encode_rows(rows)
        return self.logits_of_ids(encoded.ids, encoded.numeric)

    def verify(self) -> int:
        """Read and check every byte, score the golden rows and return their number.

        Raises ValueError naming the file that is damaged, or the first golden row that scores otherwise.
        """
        for link, tables in zip(self.chain, self.tables, strict=True):
            check_files(*link, every_byte=True)
            tables.check_all()
        return self.check_golden()

    def check_golden(self) -> int:
        """Score the golden rows and return their number; raise ValueError naming the first that scores otherwise."""
        import pyarrow.parquet as pq

        golden = pq.read_table(self.folder / GOLDEN)
        expected = golden["logit"].to_numpy()
        found = self.logits(golden.select([name for name, _ in self.log_format.fields]))
        # Older bundles have no column of tolerances.
        tolerances = golden[TOLERANCE].to_numpy() if TOLERANCE in golden.column_names else GOLDEN_TOLERANCE
        bad = np.flatnonzero(are_apart(found, expected, tolerances))
        if bad.size:
            raise ValueError(
                f"row {bad[0]} of {self.folder / GOLDEN} has logit {found[bad[0]]} here, expected {expected[bad[0]]}; "
                f"the packages here are {json.dumps(self.manifest.versions)} in the bundle: install requirements.txt"
            )
        return len(expected)


def probabilities(logits: np.ndarray) -> np.ndarray:
    """float32 [n]."""
    return sigmoid(logits.astype(np.float64)).astype(np.float32)


def are_apart(found: np.ndarray, expected: np.ndarray, tolerances: np.ndarray | float) -> np.ndarray:
    """Return which of two evaluations of logits [n] differ by more than `tolerances`; bool [n].

    What float32 cannot hold has no difference.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        same = (found == expected) | (np.abs(found - expected) <= tolerances)
    return ~(same | (np.asarray(tolerances) > np.finfo(np.float32).max))


def _sum_over_fields(wide: np.ndarray) -> np.ndarray:
    """[B, C] -> [B], field by field, as training adds them (`sum` adds pairwise)."""
    total: np.ndarray = np.add.accumulate(wide, axis=1)[:, -1]
    return total
