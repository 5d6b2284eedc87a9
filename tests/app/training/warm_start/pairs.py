"""Draw two descriptions (`Side`) of the same log that differ in up to three settings, prepare the log by each, and
compute the logits of a model on each prepared folder in NumPy.
"""

import dataclasses
import random
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from app.checkpoint.manifest import Manifest
from app.checkpoint.write import ModelState, write_checkpoint
from app.config.config import Config, ModelOptions
from app.run.identity import data_identity
from app.tables.backends import fields_of_model, table_spec
from app.tables.initial import initial_rows
from app.tables.interface import DEEP, WIDE, TableState
from common import settings
from data_prep.encoding.from_values import lines_to_chunk
from data_prep.encoding.prepared_vocabulary import open_encoder
from data_prep.options.log_format import ListForm, LogFormat, VectorForm
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import read_schema
from tests.prepared_folders import field_options

NUMBERS = {"n1": "integer", "n2": "integer", "f1": "float"}
OTHERS = {"t1": "timestamp", "h1": "hex32", "h2": "hex32", "s1": "string", "s2": "string", "s3": "string"}
LISTS = {"l1": "list", "l2": "list"}
VECTORS = {"v1": 2, "v2": 3}  # Number of components by the name of the vector column.
KINDS = {**NUMBERS, **OTHERS, **LISTS, **dict.fromkeys(VECTORS, "vector")}
CROSSES = (("h1", "s1"), ("s1", "s2"), ("h1", "h2"), ("s1", "t1_hour"), ("n1_bucket", "s2"))
CROSSES += (("s1", "l1"), ("l1", "l2"), ("l2", "h1", "s2"))
SIZES = (1, 2, 3, 4, 6, 12)
DIM, HIDDEN, STEP = 2, 3, 5
TOWER = ("tower.numeric_rows", "tower.numeric_matrix", "tower.vector_matrix")
TOWER += ("tower.matrix_0", "tower.matrix_1", "tower.bias_0")


@dataclass(frozen=True)
class Side:
    """Settings with which one of the two sides prepares the log and makes its model.

    A setting is drawn without regard to the columns. `options` leaves out what does not fit the side's columns.
    """

    columns: tuple[str, ...]
    separator: str = ","
    # 0: text. 1: a Parquet file of texts and integers. 2: a Parquet file of more types, such as lists and floats.
    parquet: int = 0
    texts: tuple[str, ...] = ()  # Columns of hex values that this side reads as kind string.
    shares: dict[str, str] = field(default_factory=dict)
    max_length: dict[str, int] = field(default_factory=dict)
    pool: str = "mean"
    crosses: tuple[tuple[str, ...], ...] = ()
    hash_size: dict[str, int] = field(default_factory=dict)
    vocabulary: str = "counted"
    oov_buckets: int = 1
    min_count: int = 2
    seed: int = 1
    transform: str = "log1p"
    integer_buckets: bool = False
    scale: str = "standardize"
    model_seed: int = 1
    initial_scale: float = 0.1
    # A field that the wide part does not see, and one that the deep part does not see.
    unseen: tuple[str, str] = ("", "")
    fold_numeric: bool = True

    @cached_property
    def options(self) -> PrepareOptions:
        columns = [name for name in self.columns if self.fold_numeric or name not in LISTS]
        kinds = {name: "string" if name in self.texts else KINDS[name] for name in columns}
        texts = [name for name in columns if kinds[name] in ("string", "list")]
        shares = {name: of for name, of in self.shares.items() if {name, of} <= {*texts} and of not in self.shares}
        crossable = {*columns, *(f"{name}_hour" for name in columns)} - {*NUMBERS, *VECTORS, "t1"}
        crossable |= {f"{name}_bucket" for name in columns if KINDS[name] == "integer" and self.integer_buckets}
        lists = {name: ListForm("|", self.max_length.get(name, 3), self.pool) for name in columns if name in LISTS}
        vectors = {name: VectorForm(VECTORS[name], self.scale) for name in columns if name in VECTORS}
        crosses = tuple(parts for parts in self.crosses if {*parts} <= crossable)
        of_lists = {"*".join(parts) for parts in crosses if {*parts} & {*LISTS}}
        options = PrepareOptions(
            data=LogFormat({"click": "label", **kinds}, self.separator, shares=shares, lists=lists, vectors=vectors),
            vocabulary=self.vocabulary,
            min_count=self.min_count,
            oov_buckets=self.oov_buckets,
            seed=self.seed,
            numeric_transform=self.transform,
            integer_buckets=self.integer_buckets,
            crosses=crosses,
            workers=1,
        )
        known = [column.name for column in options.vocabularies]
        lengths = {name: length for name, length in self.max_length.items() if name in of_lists}
        hashed = {name: size for name, size in self.hash_size.items() if name in known}
        return dataclasses.replace(options, fields=field_options(max_length=lengths, hash_size=hashed))

    @property
    def config(self) -> Config:
        names = [column.name for column in self.options.categorical_columns]
        wide, deep = ([name for name in names if name != unseen] for unseen in self.unseen)
        if not self.fold_numeric:
            wide = deep = names  # Both parts of a model with looked-up numeric fields must see all fields.
        model = ModelOptions(
            embedding_dim=DIM,
            hidden_widths=(HIDDEN,),
            initial_row_scale=self.initial_scale,
            fold_numeric=self.fold_numeric,
            wide_fields=tuple(wide),
            deep_fields=tuple(deep),
        )
        config = Config(model=model)
        return dataclasses.replace(config, train=dataclasses.replace(config.train, seed=self.model_seed))

    def lines(self, rows) -> list[str]:
        return [self.separator.join(row[name] for name in self.options.data.columns) for row in rows]

    def write_log(self, rows, folder: Path) -> Path:
        if not self.parquet:
            path = folder / "log.txt"
            path.write_text("".join(f"{line}\n" for line in self.lines(rows)))
            return path
        path = folder / "log.parquet"
        columns = {name: self._arrow(name, [row[name] or None for row in rows]) for name in self.options.data.columns}
        pq.write_table(pa.table(columns), path)
        return path

    def _arrow(self, name: str, cells) -> pa.Array:
        kind, other = {"click": "integer", **KINDS}[name], self.parquet > 1
        if kind == "integer":
            return pa.array([cell and int(cell) for cell in cells], pa.int32() if other else pa.int64())
        if kind == "float" and other:
            return pa.array([cell and float(cell) for cell in cells], pa.float64())
        if kind == "timestamp":
            times = pa.array([cell and int(cell) for cell in cells], pa.int64())
            return times.cast(pa.timestamp("s")) if other else times
        if kind == "hex32" and name not in self.texts and other:
            return pa.array([cell and int(cell, 16) for cell in cells], pa.int64())
        if kind == "list" and other:
            return pa.array([cell and cell.split("|") for cell in cells], pa.list_(pa.string()))
        if kind == "vector" and other:
            return pa.array([cell and [float(part) for part in cell.split()] for cell in cells], pa.list_(pa.float32()))
        texts = pa.array(cells, pa.string())
        return texts.dictionary_encode() if other else texts


def make_rows(seed: int, num_rows: int = 40) -> list[dict[str, str]]:
    """Return rows with all columns, as mappings from names to texts. A few values are frequent and some occur once.
    About one cell in eight is missing.
    """
    random_ = random.Random(seed)

    def word() -> str:
        return "abcdefghijklmnop"[min(int(random_.expovariate(0.3)), 15)]

    def cell(name: str, kind: str) -> str:
        if random_.random() < 0.12:
            return ""
        match kind:
            case "integer":
                return random_.choice(["0", "1", "7", "-3", str(random_.randrange(100))])
            case "float":
                return random_.choice(["0.5", "2.25", "-8.125", "1024.0"])
            case "timestamp":
                return str(1_700_000_000 + random_.randrange(30) * 20_000)
            case "hex32":
                return f"{ord(word()) * 2654435761 % 2**32:08x}"
            case "list":
                return "|".join(word() for _ in range(random_.randint(1, 5)))
            case "vector":
                return " ".join(str(random_.randint(-9, 9) / 4) for _ in range(VECTORS[name]))
        return word()

    return [
        {"click": random_.choice("01"), **{name: cell(name, kind) for name, kind in KINDS.items()}}
        for _ in range(num_rows)
    ]


text_columns = ("s1", "s2", "s3", "l1", "l2")
subsets = st.lists(st.sampled_from([*KINDS]), unique=True, min_size=2, max_size=8).map(
    lambda names: tuple(names) if set(names) & {*OTHERS} else (*names, "s1")
)
shares = st.sampled_from([{}, {}, {"s2": "s1"}, {"s1": "s2"}, {"l1": "s1"}, {"s1": "l1", "s2": "l1"}, {"s3": "s2"}])
hash_sizes = st.dictionaries(
    st.sampled_from(["h1", "h2", *text_columns, "t1_hour", "h1*s1", "s1*s2", "s1*l1", "n1_bucket"]),
    st.sampled_from(SIZES),
    max_size=3,
)
# For each setting in which two sides may differ: the values from which it is drawn.
SETTINGS = {
    "columns": subsets,
    "separator": st.sampled_from(",\t;"),
    "parquet": st.integers(0, 2),
    "texts": st.sampled_from([(), ("h1",), ("h1", "h2")]),
    "shares": shares,
    "max_length": st.dictionaries(st.sampled_from([*LISTS, "s1*l1", "l1*l2"]), st.integers(1, 5)),
    "pool": st.sampled_from(["mean", "sum"]),
    "crosses": st.lists(st.sampled_from(CROSSES), unique=True, max_size=2).map(tuple),
    "hash_size": hash_sizes,
    "vocabulary": st.sampled_from(["counted", "hash"]),
    "oov_buckets": st.sampled_from(SIZES),
    "min_count": st.integers(1, 4),
    "seed": st.integers(1, 3),
    "transform": st.sampled_from(["log1p", "max", "standardize", "log1p_standardize", "quantile", "piecewise"]),
    "integer_buckets": st.booleans(),
    "scale": st.sampled_from(["standardize", "norm", "none"]),
    "model_seed": st.integers(1, 2),
    "initial_scale": st.sampled_from([0.1, 0.05]),
    "unseen": st.tuples(st.sampled_from(["", "s1", "h1"]), st.sampled_from(["", "s1", "h1", "h1*s1", "s1*l1", "l1"])),
}
# If sides differ in these settings alone, encoded rows have the same meaning, so a warm start must keep all scores.
SAME_ROWS = ("order", "separator", "parquet", "model_seed", "initial_scale")
sides = st.builds(Side, fold_numeric=st.sampled_from([True, True, True, False]), **SETTINGS)


@st.composite
def pairs(draw, names=(*SETTINGS, "order")):
    """Draw a side, a second side that differs from it in one to three settings, and the names of these settings."""
    before = draw(sides)
    changed = draw(st.lists(st.sampled_from(names), unique=True, min_size=1, max_size=3))
    after = before
    for name in changed:
        if name == "order":
            after = dataclasses.replace(after, columns=tuple(draw(st.permutations(after.columns))))
        else:
            after = dataclasses.replace(after, **{name: draw(SETTINGS[name])})
    return before, after, changed


@dataclass(frozen=True)
class Prepared:
    """The prepared folder of a side, with the shapes, random values and logits of a model on it."""

    side: Side
    folder: Path

    @cached_property
    def schema(self):
        return read_schema(self.folder)

    @cached_property
    def encoder(self):
        return open_encoder(self.folder)

    @cached_property
    def spec(self):
        numeric = () if self.side.fold_numeric else tuple(column.name for column in self.schema.numeric)
        return table_spec(self.side.config, self.schema, numeric)

    @cached_property
    def fields(self):
        return {field.name: field for field in fields_of_model(self.schema, self.side.config.model)}

    @cached_property
    def positions(self):
        """The slice of the columns of ids that belong to each field, by name."""
        ends = np.cumsum([field.max_length for field in self.schema.categorical])
        return {f.name: slice(end - f.max_length, end) for f, end in zip(self.schema.categorical, ends, strict=True)}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each dense parameter (outside the tables), by name."""
        num_numeric, deep = self.schema.num_numeric, max(1, sum(field.deep for field in self.fields.values()))
        shapes = {"wide.bias": (1,), "tower.bias_0": (HIDDEN,), "tower.matrix_1": (HIDDEN, 1)}
        if self.schema.vectors:
            shapes["tower.vector_matrix"] = (self.schema.vector_inputs, HIDDEN)
        if not self.side.fold_numeric:
            return shapes | {"tower.matrix_0": ((num_numeric + deep) * DIM, HIDDEN)}
        shapes["tower.matrix_0"] = (deep * DIM, HIDDEN)
        if num_numeric:
            shapes |= {"wide.numeric_weight": (num_numeric, 1), "tower.numeric_rows": (num_numeric, DIM)}
            shapes["tower.numeric_matrix"] = (num_numeric, DIM, HIDDEN)
        return shapes

    def random_dense(self, rng) -> dict[str, np.ndarray]:
        """Return random dense parameters by name, with Adam's first moments of those of the tower."""
        arrays = {name: rng.standard_normal(shape) for name, shape in self.shapes.items()}
        moments = {f"adam.{m}.{n}": a + 1 for n, a in arrays.items() if n in TOWER for m in ("first_moment",)}
        return {name: array.astype(np.float32) for name, array in (arrays | moments).items()}

    def random_tables(self, rng) -> dict[str, TableState]:
        """Return random states of the wide and the deep table. About 70 % of the rows that a table's part of the model
        sees are touched.
        """
        tables = {}
        for table in (WIDE, DEEP):
            ids = np.flatnonzero(self.is_seen(table) & (rng.random(self.schema.vocabulary_size) < 0.7))
            layout = self.spec.layout(table)
            arrays = {n: rng.random((ids.size, array.width)).astype(np.float32) + 0.1 for n, array in layout.items()}
            tables[table] = TableState(ids, arrays)
        return tables

    def is_seen(self, table: str) -> np.ndarray:
        """Return a mask [V] of the ids that the part of the model with this table (wide or deep) looks up."""
        mask = np.zeros(self.schema.vocabulary_size, bool)
        mask[: self.schema.num_numeric] = not self.side.fold_numeric
        for of_field in self.schema.categorical:
            for first, end in (of_field.oov_ids, *of_field.id_ranges):
                mask[first:end] |= getattr(self.fields[of_field.name], table)
        return mask

    def rows_of(self, table: str, state: TableState, array: str = "rows") -> np.ndarray:
        """Return all V rows of a table, [V, width]. Untouched rows have their initial values."""
        width, ids = state.arrays[array].shape[1], np.arange(self.schema.vocabulary_size)
        rows = np.zeros((ids.size, width), np.float32)
        if table == DEEP and array == "rows":
            rows = initial_rows(self.side.model_seed, ids, width, self.side.initial_scale)
        rows[state.row_ids] = state.arrays[array]
        return rows

    def encode(self, rows):
        """Encode raw rows, and check that none is rejected."""
        _, encoded = self.encoder.encode(lines_to_chunk(self.side.lines(rows), self.side.options.data))
        assert len(encoded.labels) == len(rows)
        return encoded

    def logits(self, dense, tables, rows) -> np.ndarray:
        """Return the logits of raw rows, computed in float64 from the model's formula."""
        exact = {name: array.astype(np.float64) for name, array in dense.items()}
        wide, deep = (self.rows_of(table, tables[table]).astype(np.float64) for table in (WIDE, DEEP))
        encoded, num_numeric = self.encode(rows), self.schema.num_numeric
        numbers = encoded.numeric.astype(np.float64)
        logits, inputs = np.full(len(rows), exact["wide.bias"][0]), []
        if not self.side.fold_numeric:
            logits += numbers @ wide[:num_numeric, 0]
            inputs += [numbers[:, place, None] * deep[place] for place in range(num_numeric)]
        for name, of_field in self.fields.items():
            ids = encoded.ids[:, self.positions[name]]
            weights = (ids >= 0).astype(np.float64)
            if of_field.mean:
                weights /= weights.sum(1, keepdims=True)
            if of_field.wide:
                logits += (weights * wide[ids, 0]).sum(1)
            if of_field.deep:
                inputs.append((weights[:, :, None] * deep[ids]).sum(1))
        inputs = inputs or [np.zeros((len(rows), DIM))]
        sums = np.concatenate(inputs, 1) @ exact["tower.matrix_0"] + exact["tower.bias_0"]
        if "tower.vector_matrix" in exact:
            sums += encoded.vectors @ exact["tower.vector_matrix"]
        if "tower.numeric_rows" in exact:
            sums += np.einsum("bn,nd,ndh->bh", numbers, exact["tower.numeric_rows"], exact["tower.numeric_matrix"])
            logits += numbers @ exact["wide.numeric_weight"][:, 0]
        return logits + np.maximum(sums, 0) @ exact["tower.matrix_1"][:, 0]

    def write(self, folder: Path, dense, tables) -> Path:
        """Write a checkpoint with these arrays into `folder`."""
        data, config = data_identity(self.schema), settings.as_dict(self.side.config)
        manifest = Manifest(STEP, 1, STEP, config, str(self.folder), data, {})
        return write_checkpoint(folder, ModelState(dense, tables), manifest, num_shards=2)


def prepared(side: Side, rows, folder: Path) -> Prepared:
    folder.mkdir()
    prepare(side.write_log(rows, folder), folder / "prepared", side.options)
    return Prepared(side, folder / "prepared")
