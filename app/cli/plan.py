"""`python -m app plan`: print the memory and the disk space that a training would take, and whether it fits this host.

Nothing is allocated, and MindSpore is not imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.config.config import Config, FirstLayer
from app.config.device import BFLOAT16_FLAGS, Precision, cpu_flags
from app.distributed.mpirun import check_num_processes
from app.training.auto.by_rows import resolve_by_rows
from app.training.auto.memory import MemoryPlan, Term, plan_to_fit, plan_training, processes_text, remedies, total
from app.training.step import first_layer
from app.training.validate import choose_backend
from common import yaml_settings
from common.arguments import add_shared
from common.process import available_memory
from common.text import number_text, show
from data_prep.options.options_file import RECIPE
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.schema import FORMAT_VERSION, CategoricalField, NumericField, Schema, Split, read_schema

# Largest vocabulary (in values) for which the number of occurrences of each value is read, to estimate how many
# distinct ids a batch has. Reading these numbers takes 0.2 s.
_MOST_COUNTS = 2_000_000
# Click rate that is assumed for a log that only --rows and --values describe. It is neither 0 nor 1, because the checks
# of settings need rows of both labels.
_CLICKS = 0.25


def add_parser(commands: Any) -> None:
    """Add the command `plan` with its arguments to the parser of `python -m app`."""
    parser = commands.add_parser("plan", help="tell the memory and disk space of a training, and if it fits this host")
    parser.add_argument("dataset", nargs="?", metavar="PREPARED", help="the prepared folder, or --rows and --values")
    add_shared(parser, "--rows", help="number of rows of a log in Criteo's form that is not prepared yet")
    parser.add_argument("--values", type=int, metavar="N", help="number of values that such a log has in all fields")
    add_shared(parser, "--config", default=RECIPE)
    add_shared(parser, "--ranks", help="number of processes that train (%(default)s)")
    add_shared(parser, "--servers", "settings")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command: print the memory and disk space that the training would take. Return the exit status: 0 if the
    training fits into this host's memory, otherwise 2.
    """
    words = [word for word in (arguments.dataset, *arguments.settings) if word is not None]
    # The prepared folder is the first word that is not a setting (`section.key=value`), or none if all are settings.
    folder = next((word for word in words if "=" not in word or Path(word).exists()), None)
    words = [word for word in words if word != folder]
    dataset = None if folder is None else Path(folder)
    check_num_processes(arguments.ranks, arguments.servers)
    num_local = arguments.ranks + arguments.servers
    schema = _schema(dataset, arguments, words)
    config = resolve_by_rows(lambda base: yaml_settings.resolve(Config, arguments.config, words, base), schema)

    def plan(config: Config) -> MemoryPlan:
        return _plan(config, schema, dataset, arguments.ranks, arguments.servers)

    planned, missing = plan_to_fit(config, num_local, plan)
    show(_title(config, schema, dataset))
    for name, terms in _parts(planned).items():
        show(f"{name:44}{_size(total(terms))}")
        for term in terms:
            show(f"  {term.name:42}{_size(term.num_bytes)}")
    if not missing:
        limit, taken = available_memory(), number_text(planned.host_bytes(num_local), "bytes")
        left = number_text(limit.free, "bytes")
        show(f"it fits: {processes_text(num_local)} would take {taken}, and {limit.name} leaves {left}")
        return 0
    show(f"it does not fit: {missing}")
    for line in remedies(config, num_local, lambda changed: plan_to_fit(changed, num_local, plan)[0]):
        show(f"  with {line}")
    return 2


def _plan(config: Config, schema: Schema, dataset: Path | None, num_ranks: int, num_servers: int) -> MemoryPlan:
    """Check the settings, complete them as a training would, and return the plan: the memory that the training would
    take.

    A training may first measure which way of computing is faster, such as that of the first layer of the tower. The
    plan assumes the way that takes the most memory.
    """
    if config.device.precision == "auto":
        precision: Precision = "bfloat16" if cpu_flags() & BFLOAT16_FLAGS else "float32"
        config = replace(config, device=replace(config.device, precision=precision))
    num_processes, backend = num_ranks + num_servers, choose_backend(config, schema, num_ranks, num_servers)
    place = dataset if schema.vocabulary_size <= _MOST_COUNTS else None
    asked = config.model.first_layer
    ways: list[FirstLayer] = ["direct"]
    if place or asked != "auto":
        ways = [first_layer.choose(asked, config, schema, place or Path(), backend, num_processes)[0]]
    elif first_layer.is_worth_asking(config) and not first_layer.obstacle(config, schema, backend, num_processes):
        ways = ["direct", "distinct"]
    configs = [replace(config, model=replace(config.model, first_layer=way)) for way in ways]
    plans = [plan_training(each, schema, backend, place, num_ranks, num_servers) for each in configs]
    return max(plans, key=lambda plan: plan.host_bytes(num_processes))


def _schema(dataset: Path | None, arguments: argparse.Namespace, words: Sequence[str]) -> Schema:
    """Return the schema of the prepared folder, or that of the log that --rows and --values describe."""
    sizes = {"--rows": arguments.rows, "--values": arguments.values}
    given = [name for name, value in sizes.items() if value is not None]
    if dataset and given:
        raise ValueError(
            f"found the prepared folder {dataset} and {' and '.join(given)}; give either a prepared folder, "
            "or --rows and --values"
        )
    if dataset:
        return read_schema(dataset)
    if len(given) < 2:
        raise ValueError(
            f"expected a prepared folder, or --rows and --values of a log that is not prepared yet; found "
            f"{given[0] if given else 'neither'}"
        )
    if arguments.rows < 1 or arguments.values < 1:
        raise ValueError(f"--rows and --values must be 1 or more, found {arguments.rows} and {arguments.values}")
    options = yaml_settings.resolve(Config, arguments.config, words).prepare
    return imagined_schema(options, arguments.rows, arguments.values)


def imagined_schema(options: PrepareOptions, num_rows: int, num_values: int) -> Schema:
    """Return a made-up schema, for a log that was not prepared yet: `num_values` distinct values are spread evenly over
    its categorical fields, and `num_rows` rows are divided into the splits.
    """
    columns, numeric = options.categorical_columns, options.data.numeric_fields
    # Each numeric field also has an indicator, a field that is 1 where the number is missing and otherwise 0.
    names = [*numeric, *(f"{name}_missing" for name in numeric)]
    first = len(names) + len(columns)
    cuts = [first + num_values * place // len(columns) for place in range(len(columns) + 1)]
    categorical = []
    for place, (column, ids) in enumerate(zip(columns, pairwise(cuts), strict=True), len(names)):
        unknown = place, place + 1
        categorical.append(CategoricalField(column.name, unknown, (ids,), column.cross, column.max_length, column.pool))
    fractions = {"train": options.train_fraction, "valid": options.valid_fraction, "test": options.test_fraction}
    rows = {name: round(num_rows * fraction) for name, fraction in fractions.items()}
    splits = {name: Split(count, round(count * _CLICKS), ()) for name, count in rows.items()}
    fields = tuple(NumericField(name, name, "log1p", {}) for name in names), tuple(categorical)
    dtype = "int32" if cuts[-1] < 2**31 else "int64"
    return Schema(FORMAT_VERSION, *fields, cuts[-1], dtype, options.block_rows, splits, 0, {}, {}, ())


def _title(config: Config, schema: Schema, dataset: Path | None) -> str:
    widths = "-".join(map(str, config.model.hidden_widths))
    return (
        f"{dataset or 'a log'}: {schema.splits['train'].rows:,} training rows, {schema.vocabulary_size:,} ids; D "
        f"{config.model.embedding_dim}, tower {widths}, batches of {config.train.batch_size:,} rows"
    )


def _parts(plan: MemoryPlan) -> dict[str, tuple[Term, ...]]:
    parts = {"memory of each rank": plan.rank, "memory of each server": plan.server}
    parts |= {"disk space": plan.disk, "memory of a service with the bundle": plan.service}
    return {name: terms for name, terms in parts.items() if terms}


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:12,.1f} MiB"
