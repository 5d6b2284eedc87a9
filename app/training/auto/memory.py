"""Predict, before anything is allocated, the memory and the disk space of a training, and the memory of a process that
serves its model.

Sizes of arrays follow from their shapes. The memory of libraries is a constant, which was measured. The command
`python -m benchmarks --only plan` compares the predictions with the memory that trainings really take.

Shapes use B for the rows of a batch that one rank gets, D for the width of an embedding row, K for the tower's inputs
from embedding rows, P for the positions (ids) of a row, and U for the distinct ids of a batch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from app.config.config import Config
from app.distributed.process_group import ProcessGroup, local_processes
from app.model.dense_state import tower_shapes
from app.model.native_tower import has_native_layers, trains_natively
from app.tables.backends import TableBytes, num_deep_inputs, planned_bytes, table_spec
from app.tables.fields import TableField
from app.tables.interface import DEEP, TablesSpec
from app.tables.native.library import has_kernel
from app.tables.native.storage import AUTO, MEMORY, check_folder
from app.tables.native.tables import LIST_BYTES
from app.training.step.first_layer import expected_shares, is_worth_asking, most_distinct
from common import yaml_settings
from common.arrays.disk import BUFFER_BYTES, WRITES_ON_THEIR_WAY
from common.files import message_of
from common.process import available_memory
from common.text import number_text
from data_prep.prepared.batches import POOL_BLOCKS, num_batches
from data_prep.prepared.schema import Schema

log = logging.getLogger(__name__)

# Share of one core's time that a save in the background may use, so that it slows training little. docs/results.md has
# measurements on two training cores.
BACKGROUND_SHARE = 0.25
# Maximum number of values that are read from a table to compute the norm of its rows for metrics.jsonl.
SAMPLED_VALUES = 2**22
_MIB = 1 << 20
_FLOAT = 4
# Resident memory of Python and the libraries that every process of a training imports, and of MindSpore's reader of
# MindRecord files.
_PYTHON_BYTES, _READER_BYTES = 110 * _MIB, 125 * _MIB
# Additional memory if MindSpore is imported and compiles a graph, and if its profiler alone is imported.
_MINDSPORE_BYTES, _PROFILER_BYTES = 355 * _MIB, 235 * _MIB
# Memory of MPI in each process of a job that has several processes.
_MPI_BYTES = 24 * _MIB
# When a buffer is enlarged for a batch, it gets an eighth more room than the batch needs (`HugeBuffer`).
_ROOM = 9 / 8
# Memory of pyarrow, which reads how often values occur to choose `model.first_layer`.
_PYARROW_BYTES = 55 * _MIB
# Speeds that tell how many steps are taken while a checkpoint is written in the background: bytes that a thread writes
# if it does nothing else, operations of the tower, and the duration of a step with a small tower.
_SAVED_BYTES_A_SECOND, _OPERATIONS_A_SECOND, _LEAST_STEP_SECONDS = 2e9, 1e11, 3e-3
# Number of batches that exist at the same time: the one of the step, those that wait, and the one in preparation.
_BATCHES = 5
# With model.first_layer=distinct: factor by which the array of a batch's distinct rows is padded
# (`training.step.step.MARGINS`), and number of arrays of this size: the graph's input, its gradient, and buffers in
# the kernels of the first layer.
_PADDING, _DISTINCT_COPIES = 1.08, 4
# Number of arrays with a number for each row of a batch and hidden unit that MindSpore's operators for dropout and for
# batch normalization take on a CPU. Native layers compute dropout without any.
_DROPOUT_COPIES, _NORM_COPIES = 12, 3
FILE = "."  # Value of tables.storage in a plan for a training with "auto" that keeps its rows in a file.
# Share of the predicted memory that must be free in addition, because some predictions are a few percent too low.
_SPARE = 0.05
# Changes of settings that may save memory, each with a function that says if the settings allow the change. Changes
# that save equally much are suggested in this order.
_REMEDIES = (
    ("tables.storage=auto", lambda config: config.tables.storage == MEMORY),
    ("tables.dtype=bfloat16", lambda config: config.tables.dtype == "float32"),
    ("deep_optimizer.name=partial_rowwise_adam", lambda config: config.deep_optimizer.name in ("adam", "lazy_adam")),
    ("train.ema_decay=0", lambda config: config.train.ema_decay > 0),
)
# Bytes that a bundle (the exported model) needs for each value of the vocabulary, and memory of a process that serves a
# model, without the bundle.
_VALUE_BYTES, _SERVICE_BYTES = 12, 150 * _MIB


@dataclass(frozen=True)
class Term:
    """One named part of the predicted memory or disk space of a training, such as "batch buffers", in bytes."""

    name: str
    num_bytes: int


@dataclass(frozen=True)
class MemoryPlan:
    """The predicted peak memory of each training rank (`rank`) and of each server (`server`, empty without servers),
    the disk space in the run folder and for a bundle, the exported model (`disk`), and the memory of a process that
    serves the bundle (`service`). Each of them is a tuple of terms.
    """

    rank: tuple[Term, ...]
    server: tuple[Term, ...]
    disk: tuple[Term, ...]
    service: tuple[Term, ...]
    num_ranks: int
    num_servers: int
    backend: str

    def host_bytes(self, num_processes: int) -> int:
        """Return the memory of the largest `num_processes` processes of the job together."""
        sizes = [total(self.rank)] * self.num_ranks + [total(self.server)] * self.num_servers
        return sum(sorted(sizes, reverse=True)[:num_processes])

    @property
    def largest(self) -> Term:
        """The largest term of the largest process."""
        return max((*self.rank, *self.server), key=lambda term: term.num_bytes)

    def summary(self) -> str:
        """Return one line for the log: the memory of each process, and its largest terms."""
        parts = []
        for name, count, terms in (("rank", self.num_ranks, self.rank), ("server", self.num_servers, self.server)):
            if terms:
                largest = sorted(terms, key=lambda term: -term.num_bytes)[:3]
                shown = ", ".join(f"{term.name} {number_text(term.num_bytes, 'bytes')}" for term in largest)
                each = f"each of {count} {name}s" if count > 1 else f"the {name}"
                parts.append(f"{number_text(total(terms), 'bytes')} of {each} ({shown}, …)")
        return f"memory expected: {'; '.join(parts)}"


def total(terms: Sequence[Term]) -> int:
    """Return the sum of terms in bytes."""
    return sum(term.num_bytes for term in terms)


def shortage(plan: MemoryPlan, config: Config, num_local: int) -> str:
    """Return "" if the training fits into the memory of this host, which runs `num_local` of its processes.

    Otherwise return a sentence that says how much memory the training needs, how much there is, and which term of the
    plan is the largest. The setting tables.memory_limit is for one process. All processes share the memory that the
    machine or a cgroup leaves.
    """
    limit, largest = available_memory(), plan.largest
    for who, num_bytes, most, name in (
        ("a process", plan.host_bytes(1), config.tables.memory_limit_bytes, "tables.memory_limit"),
        (processes_text(num_local), plan.host_bytes(num_local), limit.free, f"what {limit.name} leaves"),
    ):
        needed = round(num_bytes * (1 + _SPARE))
        if most and needed > most:
            return (
                f"{who} would take {number_text(needed, 'bytes')}, and {name} is {number_text(most, 'bytes')}; the "
                f"largest part is: {largest.name}, {number_text(largest.num_bytes, 'bytes')} of one process"
            )
    return ""


def plan_to_fit(config: Config, num_local: int, plan_of: Callable[[Config], MemoryPlan]) -> tuple[MemoryPlan, str]:
    """Return the memory plan of a training, and a sentence that says how much more memory it needs than this host has,
    or "" if the host has enough (`shortage`).

    `num_local` is the number of the training's processes on this host. With tables.storage=auto, the plan keeps the
    table rows in a file if they do not fit into memory. `plan_of` returns the plan of a training with given settings.
    """
    plan = plan_of(config)
    missing = shortage(plan, config, num_local)
    if missing and config.tables.storage == AUTO and plan.backend == "native":
        plan = plan_of(replace(config, tables=replace(config.tables, storage=FILE)))
        missing = shortage(plan, config, num_local)
    return plan, missing


def with_storage(
    spec: TablesSpec, config: Config, schema: Schema, backend: str, group: ProcessGroup, folder: Path | None
) -> TablesSpec:
    """Return a copy of `spec` for tables whose rows are where the setting tables.storage asks for: in memory, or in a
    scratch file in the folder that the attribute `storage` names.

    With "auto", the rows are in a file in `folder`, the run folder, if the processes of `group` would take more memory
    than their hosts have. If `folder` is None, "auto" means memory. Backends other than native always keep their rows
    in memory.
    """
    setting, spec = config.tables.storage, replace(spec, memory_limit=config.tables.memory_limit_bytes)
    if setting == MEMORY or backend != "native":
        return spec
    if setting != AUTO:
        return replace(spec, storage=Path(setting).absolute())
    if folder is None:
        return spec
    num_servers = group.num_owners if group.sharded and group.num_owners != group.size else 0
    plan = plan_training(config, schema, backend, None, group.size, num_servers)
    missing = shortage(plan, config, local_processes(group.size + num_servers))
    if not missing:
        return spec
    try:
        check_folder(folder)
    except (ValueError, FileNotFoundError) as error:
        log.warning("warning: %s, and no file can hold the rows: %s", missing, message_of(error))
        return spec
    log.info("%s: the rows are kept in a file in %s (tables.storage)", missing, folder)
    return replace(spec, storage=folder.absolute())


def processes_text(number: int) -> str:
    """Return the subject of a sentence about the `number` processes of a training on one host."""
    return f"{number} processes on this host" if number > 1 else "the training"


def remedies(config: Config, num_local: int, replan: Callable[[Config], MemoryPlan]) -> list[str]:
    """Return the three changes of settings that save the most memory, each with the memory that this host then needs.

    `replan` returns the plan of a training with other settings. It raises ValueError if these contradict each other.
    """
    model, batch = config.model, config.train.batch_size
    changes = [word for word, is_open in _REMEDIES if is_open(config)]
    changes += [f"model.embedding_dim={model.embedding_dim // 2}"] * (model.embedding_dim > 1)
    changes += [f"train.batch_size={batch // 2}"] * (batch > 1)
    changes += [f"model.hidden_widths={[-(-width // 2) for width in model.hidden_widths]}".replace(" ", "")]
    sizes: dict[str, int] = {}
    for change in changes:
        with suppress(ValueError):
            sizes[change] = replan(yaml_settings.override(config, [change])).host_bytes(num_local)
    best = sorted(sizes, key=lambda change: sizes[change])[:3]
    return [f"{change}: {number_text(sizes[change] * (1 + _SPARE), 'bytes')}" for change in best]


def plan_training(
    config: Config, schema: Schema, backend: str, dataset: Path | None, num_ranks: int = 1, num_servers: int = 0
) -> MemoryPlan:
    """Predict the memory and the disk space of a training with `num_ranks` training ranks and `num_servers` servers.

    `backend` is the name of the implementation of the tables: native, reference or stock (`pick_backend`). `dataset` is
    the prepared folder, whose counts of values tell how many distinct ids a batch has. They are read only if
    model.first_layer is "distinct", because other plans hardly depend on them. If they are not read, or `dataset` is
    None, a field is taken to have as many distinct ids in a batch as positions, or all ids of its vocabulary if these
    are fewer.
    """
    shares: Sequence[float] = ()
    if dataset is not None and config.model.first_layer == "distinct":
        shares = expected_shares(schema, dataset, config.train.batch_size).tolist()
    sizes = _Sizes(config, schema, backend, shares, num_ranks, num_servers)
    server = _server_terms(sizes) if num_servers else ()
    return MemoryPlan(
        _rank_terms(sizes), server, _disk_terms(sizes), _service_terms(sizes), num_ranks, num_servers, backend
    )


@dataclass(frozen=True)
class _Sizes:
    """The settings and numbers from which all terms of a `MemoryPlan` are computed.

    `shares` [C] are the expected distinct ids of each field divided by its positions in a batch, or empty if they are
    unknown (`first_layer.expected_shares`).
    """

    config: Config
    schema: Schema
    backend: str
    shares: Sequence[float]
    num_ranks: int
    num_servers: int

    @cached_property
    def spec(self) -> TablesSpec:
        numeric = () if self.config.model.fold_numeric else tuple(field.name for field in self.schema.numeric)
        return table_spec(self.config, self.schema, numeric)

    @property
    def rows(self) -> int:
        """B, the number of rows of a batch that one rank gets."""
        return -(-self.config.train.batch_size // self.num_ranks)

    @property
    def inputs(self) -> int:
        """K, the number of the tower's inputs from embedding rows."""
        return num_deep_inputs(self.spec.fields) * self.spec.embedding_dim

    @cached_property
    def distinct(self) -> int:
        """U, the number of distinct ids of the rows that one rank gets."""
        # `shares` are those of the whole batch. One rank gets only a part of the batch's rows, but these may have
        # nearly as many distinct ids.
        batch, shares = self.config.train.batch_size, self.shares or [1.0] * len(self.spec.fields)
        return sum(
            min(self.rows * field.length, _num_ids(self.schema, [field]), math.ceil(share * batch * field.length))
            for field, share in zip(self.spec.fields, shares, strict=True)
        )

    @cached_property
    def touched(self) -> list[tuple[TablesSpec, int]]:
        """The settings of each pair of tables (wide and deep), and the number of rows that the training updates in it.

        There are two pairs if the wide and the deep part of the model see different fields.
        """
        train, spec = self.config.train, self.spec
        num_steps = train.epochs * num_batches(self.schema, "train", train.batch_size)
        most = min(train.steps or num_steps, num_steps) * train.batch_size
        parts = [spec.part(table) for table in spec.tables] if spec.has_parts else [spec]
        return [(part, min(_num_ids(self.schema, part.fields), most * part.num_positions)) for part in parts]

    @property
    def num_touched(self) -> int:
        """Number of table rows that one owner of rows stores. Owners are the servers, or else the training ranks."""
        return -(-sum(count for _, count in self.touched) // self.num_owners)

    @property
    def num_owners(self) -> int:
        return self.num_servers or self.num_ranks

    @property
    def tower_values(self) -> int:
        """Number of parameters of the tower."""
        model, schema = self.config.model, self.schema
        numeric = schema.num_numeric if model.fold_numeric else 0
        fields = num_deep_inputs(self.spec.fields)
        shapes = tower_shapes(fields, numeric, model.embedding_dim, model.hidden_widths, schema.vector_inputs)
        return sum(map(math.prod, shapes.values()))

    @property
    def has_file(self) -> bool:
        """True if the table rows are in a scratch file. The plan then does not count the pages of this file that are in
        memory, because the system frees them as needed.
        """
        return self.backend == "native" and self.config.tables.storage not in (MEMORY, AUTO)

    @property
    def is_alone(self) -> bool:
        return self.num_ranks + self.num_servers == 1

    def tables(self) -> TableBytes:
        """Return the memory of the tables of one owner of rows (a server, or without servers a training rank)."""
        sizes = [planned_bytes(self.backend, part, -(-count // self.num_owners)) for part, count in self.touched]
        return TableBytes(*map(sum, zip(*sizes, strict=True)))


def _num_ids(schema: Schema, fields: Sequence[TableField]) -> int:
    """Return the number of different ids that `fields` have together. Ids that several fields share count once."""
    names = {field.name for field in fields}
    ranges = {ids for field in schema.categorical if field.name in names for ids in (field.oov_ids, *field.id_ranges)}
    return sum(end - first for first, end in ranges)


def _row_bytes(schema: Schema) -> int:
    """Return the bytes of a prepared row in memory: ids, numbers, vectors, label, weight, and the columns of kind id
    (`Schema.keys`).
    """
    values = schema.num_numeric + schema.vector_inputs + 1 + bool(schema.weight)
    id_bytes = 8 if schema.ids_dtype == "int64" else 4
    return schema.num_positions * id_bytes + values * _FLOAT + 8 * len(schema.keys)


def _rank_terms(sizes: _Sizes) -> tuple[Term, ...]:
    schema = sizes.schema
    terms = [Term("Python and libraries", _PYTHON_BYTES), Term("MindRecord reader", _READER_BYTES)]
    if is_worth_asking(sizes.config):
        terms.append(Term("pyarrow", _PYARROW_BYTES))
    if sizes.backend == "stock" or not trains_natively(sizes.config):
        terms.append(Term("MindSpore", _MINDSPORE_BYTES))
    elif sizes.config.train.profile:
        terms.append(Term("MindSpore's profiler", _PROFILER_BYTES))
    if not sizes.is_alone:
        terms.append(Term("MPI", _MPI_BYTES))
    if not sizes.num_servers:
        terms += _table_terms(sizes)
    terms.append(Term("tower, its gradients and optimizer", _dense_bytes(sizes)))
    pool_rows = min(POOL_BLOCKS * schema.block_rows, schema.splits["train"].rows)
    num_pools = 1 if pool_rows == schema.splits["train"].rows else 2
    pools = Term("rows read ahead", num_pools * pool_rows * _row_bytes(schema))
    return *terms, pools, Term("batch buffers", _batch_bytes(sizes))


def _table_terms(sizes: _Sizes) -> list[Term]:
    tables = sizes.tables()
    in_memory = [] if sizes.has_file else [Term("table rows with optimizer state", tables.rows)]
    return [
        *in_memory,
        Term("index of the rows", tables.row_index),
        Term("checkpoint being written", _snapshot_bytes(sizes)),
    ]


def _snapshot_bytes(sizes: _Sizes) -> int:
    """Return the memory that writing a checkpoint takes: the list of the rows to save, write buffers, values for
    statistics, and copies of rows that change while the checkpoint is written in the background.
    """
    width, row_bytes = sizes.spec.embedding_dim, sizes.spec.row_bytes()
    options, train = sizes.config.checkpoint, sizes.config.train
    num_bytes = sizes.num_touched * LIST_BYTES + (WRITES_ON_THEIR_WAY + 1) * BUFFER_BYTES
    num_bytes += min(sizes.num_touched * width, SAMPLED_VALUES) * 12
    goes_on = options.every_steps or options.every_minutes or train.epochs > 1 or sizes.config.eval.every_steps
    if options.background and goes_on and sizes.is_alone and not sizes.has_file:
        seconds = sizes.num_touched * row_bytes / (_SAVED_BYTES_A_SECOND * BACKGROUND_SHARE)
        step_seconds = _LEAST_STEP_SECONDS + 6 * sizes.rows * sizes.tower_values / _OPERATIONS_A_SECOND
        num_bytes += min(sizes.num_touched, round(seconds / step_seconds * sizes.distinct)) * row_bytes
    return num_bytes


def _dense_bytes(sizes: _Sizes) -> int:
    state = _dense_states(sizes.config)
    copies = 1 + state  # While a checkpoint is written, there are copies of weights and optimizer states.
    gradients = 1 + (0 if sizes.num_ranks == 1 else 2)
    return sizes.tower_values * _FLOAT * (1 + state + gradients + copies)


def _dense_states(config: Config) -> int:
    """Return the number of values that the tower's optimizer and running mean keep for each weight."""
    states = {"adam": 2, "adamw": 2, "adagrad": 1, "sgd": 0}[config.tower_optimizer.name]
    return states + bool(config.train.ema_decay)


def _batch_bytes(sizes: _Sizes) -> int:
    """Return the memory of the batches that exist at the same time, and of the buffers of a step on one rank."""
    config, spec, distinct = sizes.config, sizes.spec, sizes.distinct
    model, batch = config.model, config.train.batch_size
    units = sum(model.hidden_widths)
    lists = 8 if spec.has_lists else 0
    # Arrays that describe the ids of a batch. Each position has the index of its distinct id, and its place in the
    # order of ids. Each distinct id has its id and its count.
    ids = sizes.rows * spec.num_positions * (8 + lists) + distinct * 12
    num_bytes = _BATCHES * (batch * _row_bytes(sizes.schema) + ids)
    if model.dropout and not has_native_layers(model):
        num_bytes += _DROPOUT_COPIES * sizes.rows * units * _FLOAT
    if model.batch_norm:
        num_bytes += _NORM_COPIES * sizes.rows * units * _FLOAT
    is_half = config.device.precision == "bfloat16"
    numbers = sizes.schema.num_numeric + sizes.schema.vector_inputs + 2
    num_bytes += sizes.rows * (units * (_FLOAT + (2 if is_half else _FLOAT)) + numbers * _FLOAT)
    if is_half:
        num_bytes += 2 * (sizes.rows * (sizes.inputs + units) + sizes.tower_values)
    if sizes.is_alone:
        rows_of_tables, exchanged = distinct, 0
    else:
        # A rank receives each distinct row once and expands it to all its positions. It sums the gradients of each
        # distinct row before it sends them. So both exchanged arrays have one row for each distinct id.
        rows_of_tables = 0 if sizes.num_servers else distinct
        exchanged = 2 * distinct
    num_bytes += _owner_buffers(sizes, rows_of_tables, is_sharded=not sizes.is_alone)
    row_bytes = spec.embedding_dim * _FLOAT
    if config.model.first_layer == "distinct":
        num_direct = sum(share > most_distinct(config) for share in sizes.shares)
        direct = num_direct * sizes.rows * row_bytes
        return num_bytes + round(_PADDING * distinct * row_bytes) * _DISTINCT_COPIES + 2 * direct
    deep = sizes.rows * sizes.inputs * _FLOAT
    means = (deep + distinct * row_bytes) if spec.ema_decay else 0
    return num_bytes + round(_ROOM * (3 * deep + exchanged * row_bytes)) + means


def _owner_buffers(sizes: _Sizes, num_rows: int, is_sharded: bool) -> int:
    """Return the bytes of the buffers in which the tables of one owner look up and update `num_rows` distinct rows of a
    batch.

    With `is_sharded`, the tables serve several ranks: they copy the distinct rows and receive a gradient for each.
    Other tables copy a row for each position, and `_batch_bytes` counts these copies.
    """
    spec = sizes.spec
    computed = 3 if spec.deep_optimizer.name == "adam" else int(spec.has_lists and not is_sharded)
    copies = 3 if is_sharded or sizes.config.model.first_layer == "distinct" else 0
    if not has_kernel(spec, DEEP):
        # An optimizer without a native kernel runs in NumPy: it reads all state arrays of the rows, converts them to
        # float32, and needs arrays for the gradient and for the change of the rows.
        copies += 2 * len(spec.state_arrays(DEEP)) + 3
    return round(_ROOM * num_rows * (computed + copies) * spec.embedding_dim * _FLOAT)


def _server_terms(sizes: _Sizes) -> tuple[Term, ...]:
    requested = sizes.num_ranks * sizes.distinct // sizes.num_servers
    return (
        Term("Python and libraries", _PYTHON_BYTES),
        Term("MPI", _MPI_BYTES),
        *_table_terms(sizes),
        Term("rows and gradients of a step", _owner_buffers(sizes, requested, is_sharded=True)),
    )


def _disk_terms(sizes: _Sizes) -> tuple[Term, ...]:
    config, options = sizes.config, sizes.config.checkpoint
    # Each table stores the ids of its rows.
    rows = sum(count * (part.row_bytes() + 8 * len(part.tables)) for part, count in sizes.touched)
    checkpoint = rows + sizes.tower_values * _FLOAT * (1 + _dense_states(config))
    num_steps = num_batches(sizes.schema, "train", config.train.batch_size)
    within = [-(-num_steps // every) for every in (options.every_steps, config.eval.every_steps) if every]
    num_saved = config.train.epochs * max(within, default=1)
    # A new checkpoint is complete before an old one is removed.
    kept = min(num_saved, options.keep_last + options.keep_best + 1) if options.keep_last else num_saved
    scratch = [Term("scratch file of the rows", sizes.num_owners * sizes.tables().rows)] if sizes.has_file else []
    checkpoints = Term(f"{kept:,} checkpoints" if kept > 1 else "checkpoint", kept * checkpoint)
    return (*scratch, checkpoints, Term("bundle", _bundle_bytes(sizes)))


def _bundle_bytes(sizes: _Sizes) -> int:
    """Return the size of a bundle with rows as float32: its tables, the values of the vocabulary, and the tower."""
    num_ids = sizes.schema.vocabulary_size
    tables = sizes.num_touched * sizes.num_owners * (sizes.spec.embedding_dim + 1) * _FLOAT + num_ids // 64 * 16
    return tables + num_ids * _VALUE_BYTES + sizes.tower_values * _FLOAT


def _service_terms(sizes: _Sizes) -> tuple[Term, ...]:
    return Term("Python and libraries", _SERVICE_BYTES), Term("bundle", _bundle_bytes(sizes))
