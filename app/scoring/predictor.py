"""Score raw rows with a bundle in any process. Neither MindSpore nor a prepared folder is needed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from app.evaluation.metrics import sigmoid
from app.scoring.bundle_folder import check_files, check_parent, read_chain, read_manifest
from app.scoring.bundle_model import BundleModel, golden_rows
from app.scoring.explain import ORDERS, VALUES, FieldEffect, effects, effects_of_rows, parts_of_logits
from common.packages import load
from data_prep.encoding.encoder import Chunk, ParsedRows
from data_prep.encoding.from_values import bad_cell, lines_of, rejected
from data_prep.encoding.rows_to_score import RawTable, chunk_of

if TYPE_CHECKING:
    from typing import TypeAlias

    import pandas as pd
    import pyarrow as pa

    RawRows: TypeAlias = Sequence[str | bytes] | Sequence[Mapping[str, Any]] | pa.Table | pd.DataFrame


class Predictor(BundleModel):
    """A bundle that scores raw rows in any form: lines, mappings, or tables of pandas, polars or pyarrow."""

    @classmethod
    def open(cls, path: str | Path, num_threads: int = 1) -> Predictor:
        """Open and return the bundle at `path`. If it is a delta, open the bundles that it needs as well. All these
        bundles must lie beside each other, in the same folder.

        Every file is read and checked, except that the tables of a whole bundle are checked later, when their rows are
        first used. Raise FileNotFoundError if there is no bundle, ValueError if it is damaged, has another format
        version, or needs a bundle that is missing.
        """
        chain = read_chain(Path(path))
        try:
            for link in chain:
                check_files(*link, every_byte=link[1].parent is not None)
            opened = cls(chain, num_threads)
        except (OSError, ValueError):
            if read_chain(Path(path)) == chain:
                raise
        else:
            if read_chain(Path(path)) == chain:
                return opened
        # The bundle was replaced (export --overwrite) while it was read, so some files may be from the old and some
        # from the new version. Read it again.
        return cls.open(path, num_threads)

    def with_delta(self, path: str | Path) -> Predictor:
        """Return a new predictor that also contains the delta at `path`. The predictor itself is not changed, and both
        share the memory of the tables.

        Raise the errors of `open`, and ValueError if the delta's parent is not exactly the version of this predictor.
        """
        link = Path(path), read_manifest(Path(path))
        check_parent(*link, self.manifest)
        check_files(*link, every_byte=True)
        return Predictor([*self.chain, link], self._num_threads, self.tables)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the paths and ids of the bundle and its deltas. A process that unpickles the predictor opens the
        same files again.
        """
        links = [(folder.absolute(), manifest.id) for folder, manifest in self.chain]
        return _reopen, (links, self._num_threads)

    def __copy__(self) -> Predictor:
        # Return the object itself as its copy, because a predictor never changes.
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Predictor:
        return self

    def __repr__(self) -> str:
        return f"<Predictor {self.folder}: {len(self.log_format.fields)} columns, version {self.version}>"

    @property
    def version(self) -> str:
        """Name of the model's version: a checksum over all files of the bundle. A bundle that `fold` made by merging
        deltas has the version of the newest delta.
        """
        return self.manifest.version

    @property
    def generation(self) -> int:
        """Number of deltas (bundles with changed rows only) between the first exported whole bundle and this version,
        including those that `fold` has merged since.
        """
        return self.manifest.generation

    @property
    def changed_share(self) -> float:
        """Number of rows that the deltas store or delete, divided by the number of rows of the whole bundle. The larger
        this share is, the more is gained by merging the deltas with `fold`.
        """
        base, *deltas = (tables.spec for tables in self.tables)
        return sum(spec.num_rows + spec.num_deleted for spec in deltas) / max(base.num_rows, 1)

    @cached_property
    def example(self) -> dict[str, Any]:
        """An example of a raw row, by column: the first golden row of the bundle (made-up rows with known scores).

        golden.parquet is read once and the row kept, because the bundle's folder may be removed while the predictor is
        in use.
        """
        row: dict[str, Any] = golden_rows(self).slice(0, 1).to_pylist()[0]
        return row

    def score(self, rows: RawRows) -> Any:
        """Return the click probabilities of n raw rows: a series for a table of pandas or polars, otherwise an array,
        float32 [n].

        Rows are lines as in the log (a label is ignored and may be left out), mappings from columns to values, or a
        table of pandas, polars or pyarrow. A pandas series has the same index as the table. Raise ValueError or
        TypeError, naming the first bad row, for rows that cannot be scored.
        """
        return _as_series(rows, probabilities(self._logits(rows)), "score")

    def logits(self, rows: RawRows) -> Any:
        """Return the logits of raw rows, before the sigmoid. `rows`, the form of the result and the errors are those of
        `score`.
        """
        return _as_series(rows, self._logits(rows), "logit")

    def _logits(self, rows: RawRows) -> np.ndarray:
        chunk = self.chunk_of(rows)
        scored = self.score_chunk(chunk)
        self._check_all_good(chunk, scored.rejected)
        return scored.logits

    def _check_all_good(self, chunk: Chunk | RawTable, rejected: Mapping[int, str]) -> None:
        if rejected and isinstance(chunk, Chunk):
            place, reason = min(rejected.items())
            what = bad_cell(chunk, place, self.log_format, reason)
            raise ValueError(f"row {place} cannot be scored: {reason}: {what} ({len(rejected):,} such rows)")

    def chunk_of(self, rows: Any) -> Chunk | RawTable:
        """Return the raw rows `rows` in the form that the method `score_chunk` takes: a `RawTable` for a table whose
        columns can be read as they are, otherwise a `Chunk` of text lines. Raise ValueError or TypeError, naming the
        first bad row, for rows that cannot be scored.
        """
        return chunk_of(rows, self.log_format)

    @overload
    def explain(self, rows: str | bytes | Mapping[str, Any]) -> list[FieldEffect]: ...
    @overload
    def explain(self, rows: RawRows, orders: int = ORDERS) -> Any: ...
    def explain(self, rows: Any, orders: int = ORDERS) -> Any:
        """Explain the logit of one row by the effect of each column, or split the logits of several rows into one part
        for each column.

        For one row (a line or a mapping), return a list with one `FieldEffect` for each column, the largest change
        first.

        For several rows, return a table with the same number of rows. It is a table of polars, pyarrow or pandas like
        `rows`, and a pandas table if `rows` are lines or mappings. Its columns are `(intercept)`, the logit of a blank
        row, and each column of the log with its part of the logit, float64. The sum of a table row is the logit. The
        parts are averages over `orders` random orders of the columns, see `app.scoring.explain`. Raise ValueError or
        TypeError, naming the first bad row, for rows that cannot be scored.
        """
        if isinstance(rows, str | bytes | Mapping):
            return effects(self, lines_of([rows], self.log_format))
        return _as_frame(rows, parts_of_logits(self.parsed(rows), self.log_format, self.logits_of_parsed, orders))

    def effects(self, rows: RawRows, values: int = VALUES) -> Any:
        """Return the effects of the columns, averaged over rows: a table of the same kind as `rows` with a line for
        each `ColumnEffect`.

        Each line holds the mean change and the mean absolute change of the logit compared with a blank cell. A column
        has one line for all rows, one for rows in which it is missing, and more for the ranges of its numbers, or for
        the `values` categorical values with the largest mean changes. Raise ValueError or TypeError for rows that
        cannot be scored.
        """
        table = effects_of_rows(self, self.parsed(rows), values)
        return _as_frame(() if hasattr(rows, "iloc") else rows, table.to_pydict())

    def parsed(self, rows: RawRows) -> ParsedRows:
        """Return raw rows with their cells parsed into typed columns but not yet encoded as ids. Raise ValueError or
        TypeError, naming the first bad row, for rows that cannot be scored.
        """
        chunk = self.chunk_of(rows)
        if isinstance(chunk, RawTable):
            return chunk.rows
        parsed, _ = self.encoder.encode(chunk)
        self._check_all_good(chunk, rejected(chunk, parsed))
        return parsed.rows

    def verify(self) -> int:
        """Read and check every byte of the bundle, score its golden rows (made-up rows with known logits), and return
        the number of these rows.

        Raise ValueError, naming the damaged file, or the first golden row whose logit differs from the stored one by
        more than its tolerance.
        """
        for entry, tables in zip(self.chain, self.tables, strict=True):
            check_files(*entry, every_byte=True)
            tables.check_all()
        return self.check_golden()


def _reopen(links: Sequence[tuple[Path, str]], num_threads: int) -> Predictor:
    """Open the bundle and the deltas of a pickled predictor again, and return the predictor.

    Raise ValueError if one of these bundles is missing, was replaced or is damaged.
    """
    chain = []
    for folder, expected in links:
        try:
            manifest = read_manifest(folder)
            if manifest.id != expected:
                raise ValueError(f"it has the id {manifest.id} now")
            check_files(folder, manifest, every_byte=manifest.parent is not None)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"a pickled Predictor opens its bundle again and needs {folder} with the id {expected}: {error}; copy "
                "it there, or pickle a Predictor of a bundle that this process can read"
            ) from error
        chain.append((folder, manifest))
    return Predictor(chain, num_threads)


def _as_series(rows: Any, values: np.ndarray, name: str) -> Any:
    """Return `values` [n] as a series `name` of pandas (with the index of `rows`) or of polars if `rows` is such a
    table, otherwise unchanged.
    """
    if hasattr(rows, "iloc"):
        return load("pandas").Series(values, index=rows.index, name=name)
    return load("polars").Series(name, values) if _is_of_polars(rows) else values


def _as_frame(rows: Any, columns: Mapping[str, Any]) -> Any:
    """Return `columns` as a table of polars or pyarrow if `rows` is one, otherwise of pandas. If `rows` is a pandas
    table, the result has its index.

    Raise ModuleNotFoundError if pandas is needed and not installed.
    """
    if _is_of_polars(rows):
        return load("polars").DataFrame(dict(columns))
    if hasattr(rows, "schema"):
        import pyarrow as pa

        return pa.table(dict(columns))
    return load("pandas").DataFrame(dict(columns), index=rows.index if hasattr(rows, "iloc") else None)


def _is_of_polars(rows: Any) -> bool:
    return type(rows).__module__.partition(".")[0] == "polars"


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Return the click probabilities (the sigmoid) of `logits` [n], float32 [n]."""
    return sigmoid(logits.astype(np.float64)).astype(np.float32)


class ScoringModel:
    """A bundle with the interface of MLflow's model flavor python_function: `mlflow models serve -m BUNDLE` calls
    `predict`.
    """

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> list[float]:
        """Return the click probability of each row.

        MLflow's server passes a table for `dataframe_split` and `dataframe_records`, and columns or rows for `inputs`
        and `instances`. If MLflow calls this method, rows that cannot be scored raise MLflow's own error. MLflow's
        server answers this error with status 400 and the message, but any other error with a stack trace. MLflow passes
        `params`, which has no effect.
        """
        try:
            return [float(score) for score in self._predictor.score(_rows_of(model_input))]
        except (ValueError, TypeError) as error:
            exceptions = sys.modules.get("mlflow.exceptions")
            if exceptions is None:
                raise
            raise exceptions.MlflowException.invalid_parameter_value(str(error)) from None


def _rows_of(model_input: Any) -> Any:
    """Convert an input of MLflow to rows that `Predictor.score` accepts, and return these rows. Raise TypeError if the
    input has no column names.
    """
    if isinstance(model_input, list):
        return [dict(zip(row, _plain(list(row.values())), strict=True)) if isinstance(row, Mapping) else row
                for row in model_input]  # fmt: skip
    if isinstance(model_input, Mapping):  # Cells by column.
        columns = _plain(list(model_input.values()))
        if not all(isinstance(cells, list) for cells in columns) or len({*map(len, columns)}) > 1:
            raise TypeError("expected a list of cells for each column, all of the same length")
        return [dict(zip(model_input, cells, strict=True)) for cells in zip(*columns, strict=True)]
    if hasattr(model_input, "columns"):
        return model_input
    raise TypeError('expected columns with names, as in {"dataframe_records": [{column: value …} …]}')


def _plain(value: Any) -> Any:
    """Convert NumPy arrays, also within lists, to lists and plain values. MLflow makes arrays of lists and even of
    single cells.
    """
    value = value.tolist() if isinstance(value, np.ndarray) else value
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _load_pyfunc(path: str) -> ScoringModel:
    """Open and return the bundle at `path` for MLflow, which calls this function because a bundle's file MLmodel names
    this module.
    """
    return ScoringModel(Predictor.open(path))
