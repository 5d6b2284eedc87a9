"""Raw rows to scores by a bundle, in any process: no MindSpore, no prepared folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from app.evaluation.score_bins import sigmoid
from app.scoring.bundle_folder import GOLDEN, check_files, check_parent, read_chain, read_manifest
from app.scoring.bundle_model import BundleModel
from app.scoring.effects import VALUES, effects_of_rows
from app.scoring.explain import ORDERS, FieldEffect, effects, parts_of_logits
from common.packages import load
from data_prep.encoding.encoder import Chunk, ParsedRows
from data_prep.encoding.from_table import RawTable, chunk_of
from data_prep.encoding.from_values import bad_cell, lines_of, rejected

if TYPE_CHECKING:
    from typing import TypeAlias

    import pandas as pd
    import pyarrow as pa

    RawRows: TypeAlias = Sequence[str | bytes] | Sequence[Mapping[str, Any]] | pa.Table | pd.DataFrame


class Predictor(BundleModel):
    """A bundle that scores raw rows of any form."""

    @classmethod
    def open(cls, path: str | Path, num_threads: int = 1) -> Predictor:
        """Open a bundle, or a delta and the bundles that it needs, which lie beside it.

        Reads and checks all but the tables' rows, and all of a delta. Raises FileNotFoundError if it is none,
        ValueError if it is damaged or of another version, or if a bundle that it needs is not there.
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
        # It was exported anew (--overwrite) meanwhile: what was read may be of both.
        return cls.open(path, num_threads)

    def with_delta(self, path: str | Path) -> Predictor:
        """Return a predictor with the delta at `path`, which shares what is mapped here. This one stays as it is.

        Raises as `open`, and ValueError if the delta does not hold changes of just this version.
        """
        link = Path(path), read_manifest(Path(path))
        check_parent(*link, self.manifest)
        check_files(*link, every_byte=True)
        return Predictor([*self.chain, link], self._num_threads, self.tables)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the places of the bundle and its deltas alone. Another process maps the same files."""
        links = [(folder.absolute(), manifest.id) for folder, manifest in self.chain]
        return _reopen, (links, self._num_threads)

    def __copy__(self) -> Predictor:
        return self  # it never changes

    def __deepcopy__(self, _: dict[int, Any]) -> Predictor:
        return self

    def __repr__(self) -> str:
        return f"<Predictor {self.folder}: {len(self.log_format.fields)} columns, version {self.version}>"

    @property
    def version(self) -> str:
        """Name of the model: a checksum of all files of the bundle. A folded bundle has that of its deltas."""
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

    @cached_property
    def example(self) -> dict[str, Any]:
        """The first golden row by column. Read once, as the folder may be removed while this is open."""
        import pyarrow.parquet as pq

        row: dict[str, Any] = pq.read_table(self.folder / GOLDEN).slice(0, 1).to_pylist()[0]
        return {name: row[name] for name, _ in self.log_format.fields}

    def score(self, rows: RawRows) -> Any:
        """Return the click probabilities of raw rows, float32 [n], as a series for a table of pandas or polars.

        Rows are lines as in the log (a label is ignored, and may be left out), mappings from columns to values, or a
        table of pandas, polars or pyarrow. A pandas series has the table's index. Raises ValueError or TypeError,
        naming the first row, for what is no row.
        """
        return _as_series(rows, probabilities(self._logits(rows)), "score")

    def logits(self, rows: RawRows) -> Any:
        """Return the logits of raw rows, in the form and with the errors of `score`."""
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
        """Return raw rows as lines, or as columns if a table allows it. Raises as `score`."""
        return chunk_of(rows, self.log_format)

    @overload
    def explain(self, rows: str | bytes | Mapping[str, Any]) -> list[FieldEffect]: ...
    @overload
    def explain(self, rows: RawRows, orders: int = ORDERS) -> Any: ...
    def explain(self, rows: Any, orders: int = ORDERS) -> Any:
        """Return the effects of a row's columns, the largest change first, or a table of the parts for several rows.

        The table has a row for each of `rows`, and is of the same kind, of pandas for lines and mappings. Its columns
        are `(intercept)`, the logit of a blank row, and those of the log, float64: a row's sum is its logit. `orders`
        of the columns are averaged, see `app.scoring.explain`. Raises as `score`.
        """
        if isinstance(rows, str | bytes | Mapping):
            return effects(self, lines_of([rows], self.log_format))
        return _as_frame(rows, parts_of_logits(self.parsed(rows), self.log_format, self.logits_of_parsed, orders))

    def effects(self, rows: RawRows, values: int = VALUES) -> Any:
        """Return the effects of the columns over rows, as a table of the same kind with a line for each ColumnEffect.

        Of a column they are its mean change of the logit against a blank cell, as `explain` gives for a row, and the
        mean absolute one: over all rows, by range of a number, and of the `values` of a category with the largest mean.
        Raises as `score`.
        """
        table = effects_of_rows(self, self.parsed(rows), values)
        return _as_frame(() if hasattr(rows, "iloc") else rows, table.to_pydict())

    def parsed(self, rows: RawRows) -> ParsedRows:
        """Return raw rows parsed. Raises as `score`."""
        chunk = self.chunk_of(rows)
        if isinstance(chunk, RawTable):
            return chunk.rows
        parsed, _ = self.encoder.encode(chunk)
        self._check_all_good(chunk, rejected(chunk, parsed))
        return parsed.rows

    def verify(self) -> int:
        """Read and check every byte, score the golden rows and return their number.

        Raises ValueError naming the file that is damaged, or the first golden row that scores otherwise.
        """
        for entry, tables in zip(self.chain, self.tables, strict=True):
            check_files(*entry, every_byte=True)
            tables.check_all()
        return self.check_golden()


def _reopen(links: Sequence[tuple[Path, str]], num_threads: int) -> Predictor:
    """Open a pickled predictor's bundle and its deltas again. Raises ValueError if one is gone, another or damaged."""
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
    """Return values [n] of rows as a series of pandas (with the table's index) or polars, else as an array."""
    if hasattr(rows, "iloc"):
        return load("pandas").Series(values, index=rows.index, name=name)
    return load("polars").Series(name, values) if _is_of_polars(rows) else values


def _as_frame(rows: Any, columns: Mapping[str, Any]) -> Any:
    """Return columns of rows as a table of the same kind, with the index of a pandas table. Lines get a table of
    pandas.

    Raises ModuleNotFoundError if pandas is not there.
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
    """float32 [n]."""
    return sigmoid(logits.astype(np.float64)).astype(np.float32)
