"""Start a new run from a trained model: take over the rows of its tables, its tower, or both.

Some arrays of the dense model have a block of rows for each field. They are rearranged to fit a model with other
fields. A layout describes such an array. It lists the blocks in order, each with the field and the number of rows.

Servers that own rows use `take_rows`, so this module does not import MindSpore.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from app.checkpoint.read import PIECE_BYTES
from app.config.config import Config, ModelOptions
from app.config.optimizer_settings import FtrlOptions
from app.distributed.process_group import ProcessGroup
from app.tables.backends import are_seen, fields_of_model
from app.tables.fields import TableField
from app.tables.interface import DEEP, WIDE, PlaceRows, RowArray, TableSnapshot, TablesSpec, widened_layout
from app.tables.optimizers import LAST_RATE, LAST_STEP, MEAN, MEAN_STEP, ROWS, TableOptimizer, ftrl_arrays
from app.tables.rounding import nearest
from app.training.assemble import TrainingState, fold_numeric
from app.training.learning_rates import LearningRates
from app.training.warm_start.source import NONE, Source, open_source
from data_prep.prepared.data_files import union
from data_prep.prepared.schema import Schema

log = logging.getLogger(__name__)

# Names of the table arrays (such as a row's last step) that start anew in each run and are never taken from the trained
# model.
NEVER_TAKEN = LAST_STEP, MEAN, MEAN_STEP
# Names of table arrays that either the trained model (the source) or the new run may lack.
OPTIONAL_ARRAYS = LAST_RATE, MEAN, MEAN_STEP

# Maximum number of bytes of untrained rows that are copied. If the trained rows take more, their size is the limit.
UNTOUCHED_BYTES = 1 << 26

# Function from ids to a boolean mask. For the wide table, the mask is True for ids of fields that the wide part of both
# the trained and the new model sees. For the deep table, it is True for ids of fields that both deep parts see.
Seen = Callable[[np.ndarray], np.ndarray]
# Type of the method `Tables.loading`, which replaces rows. Several ranks replace only the rows that each of them owns.
Loading = Callable[[int], AbstractContextManager[PlaceRows]]

Key = tuple[str, str | None]  # Kind of a field (numeric, vector or categorical) and its name.
Layout = Sequence[tuple[Key, int]]  # The blocks of an array in order: the field and the number of rows of each.
Arrays = Mapping[str, np.ndarray]

NUMERIC, VECTOR, FIELD = "numeric", "vector", "field"
NUMERIC_PARAMETERS = ("wide.numeric_weight", "tower.numeric_rows", "tower.numeric_matrix")
FIELD_PARAMETERS = (*NUMERIC_PARAMETERS, "tower.vector_matrix", "tower.matrix_0")


def warm_start(training: TrainingState, config: Config, schema: Schema, dataset: Path, group: ProcessGroup) -> None:
    """Copy the part of the model at `train.init_from` that `train.init_take` names into a new run, before its first
    step.

    With `train.init_optimizer`, optimizer state is copied, too. Steps, and therefore learning-rate schedules, start
    from 0. Adam's bias corrections continue if its moments are taken over. Every rank must call this. Raise ValueError
    if the shapes of the models differ.
    """
    source = open_source(config, schema, dataset)
    if source.metrics:
        values = ", ".join(
            f"{name} {source.metrics[name]:.6f}" for name in ("auc", "log_loss") if name in source.metrics
        )
        log.info("%s: its run evaluated it as %s", source.where, values)
    _log_fields(source, schema, config)
    take = config.train.init_take
    if take in ("all", "tower"):
        _take_dense(training, source, schema, config)
    if take in ("all", "tables"):
        group.rpc("warm_start", dataset, config.train.init_from)
        tables = training.step.tables
        take_rows(tables.loading, tables.spec, training.learning_rates, config, schema, source)


def _take_dense(training: TrainingState, source: Source, schema: Schema, config: Config) -> None:
    if source.rescaled:
        log.warning(
            "warning: %s saw fields scaled otherwise than they are here: %s", source.where, ", ".join(source.rescaled)
        )
    expected = [*training.model.named_parameters(), *training.model.named_statistics()]
    memory = training.optimizers.named_state() if config.train.init_optimizer else {}
    # The running means of the dense weights (train.ema_decay) are not taken over, but start anew.
    memory = {name: state for name, state in memory.items() if not name.startswith(f"{MEAN}.")}
    dense = source.state.dense
    if config.model.fold_numeric and not source.folded:
        dense = fold_numeric(source.state, training.step.tables.spec, source.schema.num_numeric)
    source_layouts = dense_layouts(source.schema, source.fields, config.model)
    layouts = dense_layouts(schema, fields_of_model(schema, config.model), config.model)
    # Take all dense parameters of the trained model (the source), whose names begin with "wide." or "tower.". Take an
    # array of the source's optimizer state only if the new run's optimizer state, `memory`, has an array of the same
    # name. Such a name begins with the optimizer's name (`adam.first_moment.tower.bias_0`).
    arrays = {name: array for name, array in dense.items() if name in memory or name.startswith(("wide.", "tower."))}
    fresh = training.dense_values()
    arrays = move_dense(arrays, {name: fresh[name] for name in [*expected, *memory]}, source_layouts, layouts)
    training.check_dense(arrays, [*expected, *memory])
    training.write_dense({name: np.asarray(values, np.float32, order="C") for name, values in arrays.items()})
    rates = training.learning_rates.at(1)
    training.optimizers.start_from_weights(rates[WIDE], rates["tower"])
    log.info("%s: took %d dense arrays", source.where, len(arrays))


def _log_fields(source: Source, schema: Schema, config: Config) -> None:
    """Log the names of the fields that a part of the model sees in only one of the two models, source and new model."""
    source_fields, fields_here = (
        dict.fromkeys(
            [(NUMERIC, column.name) for column in of.numeric]
            + [(VECTOR, vector.name) for vector in of.vectors]
            + [(part, field.name) for field in fields for part in (WIDE, DEEP) if getattr(field, part)]
        )
        for of, fields in ((source.schema, source.fields), (schema, fields_of_model(schema, config.model)))
    )
    if new := dict.fromkeys(name for part, name in fields_here if (part, name) not in source_fields):
        log.info("%s: it has nothing for these fields, which begin anew: %s", source.where, ", ".join(new))
    if dropped := dict.fromkeys(name for part, name in source_fields if (part, name) not in fields_here):
        log.warning("warning: %s: what it learned of these fields is left out: %s", source.where, ", ".join(dropped))


def dense_layouts(schema: Schema, fields: Sequence[TableField], model: ModelOptions) -> dict[str, Layout]:
    """Return the layout of each parameter in `FIELD_PARAMETERS`, for a model with the looked-up fields `fields`.

    The layout of tower.matrix_0 begins with the numeric fields of `schema` if these fields have embedding rows
    (`fold_numeric` is False). If the deep part sees none of `fields`, the layout has one block for the tower's
    placeholder input of zeros.
    """
    numeric: list[Key] = [(NUMERIC, column.name) for column in schema.numeric]
    inputs: list[Key] = [(FIELD, field.name) for field in fields if field.deep] or [(FIELD, None)]
    folded = [(key, 1) for key in numeric if model.fold_numeric]
    if not model.fold_numeric:
        inputs = [*numeric, *inputs]
    layouts: dict[str, Layout] = dict.fromkeys(NUMERIC_PARAMETERS, folded)
    layouts["tower.vector_matrix"] = [((VECTOR, vector.name), vector.inputs) for vector in schema.vectors]
    return layouts | {"tower.matrix_0": [(key, model.embedding_dim) for key in inputs]}


def move_dense(
    source: Arrays, fresh: Arrays, source_layouts: Mapping[str, Layout], layouts: Mapping[str, Layout]
) -> dict[str, np.ndarray]:
    """Return the dense arrays of a trained model (`source`), with their rows arranged for a new model with the arrays
    `fresh`.

    All arrays are given and returned by name.

    `source_layouts` are the layouts of the arrays in `source` by parameter name, and `layouts` those of the arrays in
    `fresh`. Blocks that `source` lacks are taken from `fresh`. An array of `source` is left out if the new model has
    none of the array's fields. Optimizer state has the layout of its parameter. Raise ValueError for an array that does
    not fit its layout.
    """
    moved = {name: array for name, array in source.items() if name in fresh or _parameter(name) is None}
    for name, values in fresh.items():
        parameter = _parameter(name)
        if parameter is not None and (name in source or not source_layouts[parameter]):
            array = source.get(name, values[:0])
            expected = (sum(size for _, size in source_layouts[parameter]), *values.shape[1:])
            if array.shape != expected:
                raise ValueError(
                    f"the checkpoint is of another model: {name} has shape {list(array.shape)}, expected "
                    f"{list(expected)}"
                )
            moved[name] = move_blocks(array, source_layouts[parameter], layouts[parameter], values)
    return moved


def move_blocks(source: np.ndarray, source_layout: Layout, layout: Layout, fresh: np.ndarray) -> np.ndarray:
    """Return a copy of `fresh` in which each field's block of rows has the values of that field's block in `source`.

    Blocks of fields that `source` lacks stay as in `fresh`.

    Both arrays have shape [rows, …], and a field's blocks have the same number of rows in both. `source_layout` is the
    layout of `source`, and `layout` that of `fresh`.
    """
    source_slices, moved = _slices(source_layout), fresh.copy()
    for name, block in _slices(layout).items():
        if name in source_slices:
            moved[block] = source[source_slices[name]]
    return moved


def _slices(layout: Layout) -> dict[Key, slice]:
    ends = np.cumsum([0, *(size for _, size in layout)]).tolist()
    return {name: slice(first, first + size) for (name, size), first in zip(layout, ends, strict=False)}


def _parameter(name: str) -> str | None:
    """Return the parameter in `FIELD_PARAMETERS` that the array `name` holds, or whose optimizer state it holds.

    Return None for an array of any other parameter. Such an array has no blocks of rows for fields, so it need not be
    rearranged.
    """
    return next((parameter for parameter in FIELD_PARAMETERS if f".{name}".endswith(f".{parameter}")), None)


def take_rows(
    loading: Loading, spec: TablesSpec, rates: LearningRates, config: Config, schema: Schema, source: Source
) -> None:
    """Load the rows of the trained model `source`, and with `train.init_optimizer` their optimizer state, into empty
    tables.

    `loading` is the method `Tables.loading` of the empty tables, which accepts rows, and `spec` is their description.
    `rates` are the new run's learning rates. Untrained rows of the source are loaded, too, if their values differ from
    the initial values in the new run. Raise ValueError if the source's tables have other arrays than `spec` demands.
    """
    with_optimizer = config.train.init_optimizer
    _check_tables(source, spec, with_optimizer)
    rates.steps_before = source.steps if with_optimizer else 0
    with loading(0) as place:
        for table in (WIDE, DEEP):
            rows, seen = source.state.tables[table], _seen_by_both(table, config, schema, source)
            layout = spec.layout(table)
            new_ids, old_ids = _touched(rows.row_ids, source, seen)
            groups = [(rows, new_ids, np.searchsorted(rows.row_ids, old_ids))]
            if table == DEEP and source.untouched is not None:
                untouched, their_old_ids = _untouched(rows.row_ids, new_ids.size, spec, source, seen)
                groups.append((source.untouched(their_old_ids), untouched, np.arange(untouched.size)))
            for rows_there, ids, places in groups:
                write = place(table, ids)
                for name, start, values in _pieces(rows_there, places, spec.optimizer(table), with_optimizer):
                    try:
                        write(name, nearest(values, layout[name].dtype), start)
                    except ValueError as error:
                        raise ValueError(f"{source.where}: {error}") from error
            num_taken = sum(ids.size for _, ids, _ in groups)
            log.info(
                "%s: %s table: %s rows taken, %s of %s newly initialized, %s dropped",
                source.where,
                table,
                f"{num_taken:,}",
                f"{schema.vocabulary_size - num_taken:,}",
                f"{schema.vocabulary_size:,}",
                f"{rows.row_ids.size - union(old_ids).size:,}",
            )


def _seen_by_both(table: str, config: Config, schema: Schema, source: Source) -> Seen:
    """Return a function from ids to a boolean mask of these ids.

    `table` names the wide or the deep part of the model. The mask is True for ids of the fields that this part sees
    both in the new model and in the source.
    """
    # Numeric fields have the first ids. If their rows are parameters of the tower (`fold_numeric`), the tables take no
    # rows for these ids.
    first_id = schema.num_numeric if config.model.fold_numeric else 0
    there = {field.name: field for field in source.fields}
    fields = fields_of_model(schema, config.model)
    are_both = [getattr(field, table) and getattr(there.get(field.name, field), table) for field in fields]
    if all(are_both):
        return lambda ids: ids >= first_id
    return lambda ids: (ids >= first_id) & are_seen(ids, schema, are_both)


def _touched(row_ids: np.ndarray, source: Source, seen: Seen) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of the trained rows that the new run takes from the trained model (the source), as two arrays.

    The first array has the ids of these rows in the new run, and the second array their ids in the source. Both have
    one element for each row. `row_ids` are the ids of all trained rows of the source.
    """
    if source.origins is None:
        same_ids = row_ids[seen(row_ids)]
        return same_ids, same_ids
    new_ids = np.flatnonzero(np.isin(source.origins, row_ids, kind="table"))
    new_ids = new_ids[seen(new_ids)]
    return new_ids, source.origins[new_ids]


def _untouched(
    row_ids: np.ndarray, num_touched: int, spec: TablesSpec, source: Source, seen: Seen
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of untrained rows to take from the trained model (the source), because their values differ from
    the new run's initial values.

    The results are the ids in the new run and the ids in the source. `row_ids` are the source's ids of its trained
    rows, of which the new run takes `num_touched`. If there are too many untrained rows, as in a large hashed
    vocabulary, both results are empty: nothing was learned in these rows, so they are not worth the memory.
    """
    nothing = np.empty(0, np.int64)
    if source.origins is None and not source.own_initial:
        return nothing, nothing
    most = max(num_touched, UNTOUCHED_BYTES // (4 * spec.embedding_dim))
    count = spec.vocabulary_size - row_ids.size
    if source.origins is not None or count <= most:
        origins = np.arange(spec.vocabulary_size) if source.origins is None else source.origins
        new_ids = np.flatnonzero((origins != NONE) & np.isin(origins, row_ids, kind="table", invert=True))
        new_ids = new_ids[seen(new_ids) & (source.own_initial | (origins[new_ids] != new_ids))]
        count = new_ids.size
        if count <= most:
            return new_ids, origins[new_ids]
    log.warning(
        "warning: %s: %s deep rows that no step of it touched begin anew, as they take more memory than its %s others",
        source.where,
        f"{count:,}",
        f"{num_touched:,}",
    )
    return nothing, nothing


def _pieces(
    rows: TableSnapshot, places: np.ndarray, options: TableOptimizer, with_optimizer: bool
) -> Iterator[tuple[str, int, np.ndarray]]:
    """Yield the weights of table rows, and with `with_optimizer` also their optimizer state, in blocks.

    `places` [k] are the indices of these rows in `rows`. A block is (array name, index in `places` of the block's first
    row, values [n, width]) and has at most PIECE_BYTES bytes. FTRL computes its weights from its linear terms, so the
    linear terms are recomputed to yield the weights.
    """
    names = [name for name in rows.layout if name not in NEVER_TAKEN and (with_optimizer or name == ROWS)]
    count = max(1, PIECE_BYTES // (4 * rows.layout[ROWS].width))
    for start in range(0, places.size, count):
        piece = places[start : start + count]
        arrays = {name: rows.read(name, piece).copy() for name in names}
        if isinstance(options, FtrlOptions):
            arrays = ftrl_arrays(arrays, options)
        for name, values in arrays.items():
            yield name, start, values


def _check_tables(source: Source, spec: TablesSpec, with_optimizer: bool) -> None:
    for table, rows in source.state.tables.items():
        # The trained model's arrays are converted to float32, so the expected arrays are float32, too.
        layout_here = widened_layout(spec.layout(table))
        # Names of the arrays that only one of the two, source and new run, may have. LAST_RATE (FTRL's last learning
        # rate of each row) is not needed if the new run's FTRL has another schedule. LAST_STEP (the last step of each
        # row) is not needed if the new run updates only looked-up rows: the source's rows have already taken all steps
        # in which they were not looked up.
        unneeded = OPTIONAL_ARRAYS if LAST_STEP in layout_here else (*OPTIONAL_ARRAYS, LAST_STEP)
        actual, expected = (
            {name: array for name, array in layout.items() if name == ROWS or (with_optimizer and name not in unneeded)}
            for layout in (rows.layout, layout_here)
        )
        if actual != expected:
            advice = "; train.init_optimizer=false takes the rows alone" if with_optimizer else ""
            raise ValueError(
                f"{source.where}: {table} table has {_described(actual)}, expected {_described(expected)}{advice}"
            )


def _described(layout: dict[str, RowArray]) -> str:
    return ", ".join(f"{name} ({array.dtype}, {array.width} wide)" for name, array in layout.items())
