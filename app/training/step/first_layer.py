"""Choose `model.first_layer`: whether the tower's first layer multiplies the row of each position, or each distinct row
once.

Multiplying each distinct row once saves products of embedding rows and the layer's matrix, but needs two sums over all
positions. If a field has s times as many distinct rows as positions, it needs only the share s of the products, and the
two sums take as long as a share SUM_COST / D of all products (D is the embedding width). Multiplying distinct rows is
therefore faster for a field if s is below 1 - SUM_COST / D.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from app.config.config import Config, FirstLayer
from app.config.device import Precision
from app.model.native_tower import LIBRARY
from app.tables.backends import fields_of_model, is_plain
from common.arrays.pages import give_back_freed_memory
from data_prep.prepared.schema import Schema

# Multiplying each distinct row once needs two sums over all positions in addition. Together they take as long as
# multiplying this many of the D columns of every position's row. The values measured were 6 to 16 for float32 and 18
# for bfloat16 (Zen 4, 2 cores, see benchmarks/results/training.md). The constants are larger than that, so that fields
# near the limit do not become slower on other machines.
SUM_COST: dict[Precision, float] = {"float32": 20.0, "bfloat16": 24.0}
# Minimum share of the first layer's products that must be saved. A smaller gain does not justify that results are
# rounded differently.
LEAST_SAVING = 0.25
# Minimum batch size for multiplying distinct rows. In smaller batches the matrix products, one for each field, are too
# small to run as fast as a single product over all fields.
LEAST_BATCH = 1000


def most_distinct(config: Config) -> float:
    """Return the limit for the share of distinct rows among a field's positions.

    If the share is below this limit, multiplying each distinct row once is faster than multiplying the row of every
    position. If the limit is 0 or less, multiplying distinct rows is faster for no field.
    """
    return 1 - SUM_COST[config.device.precision] / config.model.embedding_dim


def is_worth_asking(config: Config) -> bool:
    """Return True if multiplying each distinct row once may be faster, so that it is worth reading how often each value
    occurs in the data.
    """
    return most_distinct(config) > 0 and config.train.batch_size >= LEAST_BATCH


def choose(
    asked: FirstLayer, config: Config, schema: Schema, dataset: Path, backend: str, num_processes: int
) -> tuple[FirstLayer, str]:
    """Return the way of computing the tower's first layer ("distinct" or "direct"), and a line for the log.

    The line is "" if the user chose, or if distinct rows would save nothing. `asked` is the value of
    `model.first_layer` that the user gave. If a run is resumed, `config.model.first_layer` is the way that this run
    has used so far. Raise ValueError if the user or the resumed run chose "distinct" and another setting rules it out.
    """
    running = config.model.first_layer
    why_not = obstacle(config, schema, backend, num_processes)
    if asked == "distinct" and why_not:
        raise ValueError(f"model.first_layer=distinct: {why_not}; choose auto or direct")
    if asked != "auto":
        return asked, ""
    if running == "distinct":
        return "distinct", _resume_distinct(config, schema, backend, num_processes)
    saving, direct_fields = expected_saving(config, schema, dataset)
    if not saving:
        return "direct", ""
    if running == "direct":
        why_not = "the run began so"
    elif not why_not and not LIBRARY.is_available():
        why_not = f"{LIBRARY.path} is not there"
    if why_not:
        return "direct", f"the first layer multiplies every position's row, as {why_not}; distinct rows once {saving}"
    exceptions = f"; position by position: {', '.join(direct_fields)}" if direct_fields else ""
    return "distinct", f"the first layer multiplies distinct rows once, which {saving}{exceptions}"


def _resume_distinct(config: Config, schema: Schema, backend: str, num_processes: int) -> str:
    """Check that a run can be resumed whose first layer multiplies each distinct row of a batch only once. Return a
    line for the log.

    The line is "" for one process. Several ranks (processes) may resume such a run, too. They multiply the row of each
    position (batch row and field) instead, and the line says so. Raise ValueError if another setting rules distinct
    rows out.
    """
    if why_not := obstacle(config, schema, backend, num_processes=1):
        raise ValueError(
            f"the run multiplies distinct rows once (model.first_layer=distinct), but now {why_not}; resume it without "
            "that, or begin anew with train.resume=never"
        )
    if num_processes > 1:
        return "several ranks multiply the first layer position by position, which rounds otherwise"
    return ""


def obstacle(config: Config, schema: Schema, backend: str, num_processes: int) -> str | None:
    """Return a text that says which setting forbids that the first layer multiplies each distinct row only once, or
    None if it is allowed.
    """
    if backend == "stock":
        return "tables.backend=stock looks its rows up inside the graph"
    if num_processes > 1:
        return "several ranks exchange the rows of their positions"
    if not is_plain(fields_of_model(schema, config.model)):
        return "the parts of the model see different fields, or a list"
    return None


def expected_saving(config: Config, schema: Schema, dataset: Path) -> tuple[str, list[str]]:
    """Estimate the work that the first layer saves by multiplying each distinct row once.

    Return a text that states the saving, and a list of the fields for which the layer still multiplies the row of every
    position. The text is "" if the saving is below LEAST_SAVING. The saving is estimated from the counts of values in
    the data.
    """
    if not is_worth_asking(config):
        return "", []
    limit = most_distinct(config)
    shares = expected_shares(schema, dataset, config.train.batch_size)
    saving = float(np.maximum(limit - shares, 0).mean())
    if saving < LEAST_SAVING:
        return "", []
    direct = [field.name for field, share in zip(schema.categorical, shares, strict=True) if share > limit]
    return f"should save {saving:.0%} of its work ({shares.mean():.1%} of a batch's positions are distinct)", direct


def expected_shares(schema: Schema, dataset: Path, batch_size: int) -> np.ndarray:
    """Return the expected share of distinct ids among the positions of each field in a batch, [C].

    vocabulary.parquet has no counts for out-of-vocabulary ids and for the ids of hashed fields. These ids are treated
    as equally frequent, which gives the largest share. The share of a list field is 1, because the pooled (for example
    averaged) rows of its lists are treated as all distinct.
    """
    import pyarrow as pa  # This import is slow.
    from pyarrow import parquet

    columns = ["id", "count"]
    table = pa.concat_tables(parquet.read_table(dataset / name, columns=columns) for name in schema.vocabulary_files)
    ids, counts = table["id"].to_numpy(), table["count"].to_numpy()
    order = np.argsort(ids, kind="stable")
    ids, counts, rows = ids[order], counts[order], schema.splits["train"].rows
    shares = []
    for field in schema.categorical:
        if field.max_length > 1:
            shares.append(1.0)
            continue
        in_ranges = [counts[slice(*np.searchsorted(ids, id_range))] for id_range in field.id_ranges]
        of_field = np.concatenate([*in_ranges, []])
        total, num_uncounted = max(rows, of_field.sum(), 1), max(field.oov_ids[1] - field.oov_ids[0], 1)
        uncounted = num_uncounted * float(_expected((total - of_field.sum()) / total / num_uncounted, batch_size))
        shares.append((_expected(of_field / total, batch_size).sum() + uncounted) / batch_size)
    del table, ids, counts, order
    give_back_freed_memory()  # The training begins, and needs the memory for other things.
    return np.array(shares)


def _expected(probabilities: np.ndarray | float, batch_size: int) -> np.ndarray:
    """Return the probability 1 - (1 - p)^B that an id of frequency p occurs in a batch of B rows."""
    return -np.expm1(batch_size * np.log1p(-np.minimum(probabilities, 1 - 1e-12)))
