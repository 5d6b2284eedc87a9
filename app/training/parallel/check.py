"""The tower's parallel modes checked against model, data and ranks, before anything starts."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.config.config import Config
from app.config.parallel import ParallelOptions, check_ranks
from app.distributed.process_group import largest_share
from app.training.parallel.pipeline.plan import PipelinePlan, plan_pipeline, record_of
from app.training.parallel.strategy_file import StrategyRecord, check_same_model, read_strategy
from app.training.parallel.tensor.plan import Shapes, TowerPlan, layer_names, plan_run, tower_shapes
from data_prep.prepared.schema import Schema


def read_strategies(config: Config, schema: Schema) -> Config:
    """The settings with what `parallel.strategy_file` holds in their place.

    Raises FileNotFoundError, or ValueError where the file is damaged or of another model.
    """
    if not config.parallel.strategy_file:
        return config
    path = Path(config.parallel.strategy_file)
    record = read_strategy(path)
    check_same_model(record, run_shapes(config, schema), path)
    brought: dict[str, Any] = {"tensor_parallel": record.tensor_parallel, "strategies": dict(record.strategies)}
    if record.pipeline:
        given, saved = config.parallel.micro_batches, record.pipeline.micro_batches
        if given not in (saved, ParallelOptions.micro_batches):
            raise ValueError(f"parallel.micro_batches={given}: {path} brings its own {saved}; leave one out")
        brought |= {"pipeline_stages": 2, "second_stage": record.pipeline.second_stage, "micro_batches": saved}
    parallel = dataclasses.replace(config.parallel, strategy_file="", **brought)
    return dataclasses.replace(config, parallel=parallel)


def check_run(config: Config, schema: Schema, num_ranks: int) -> TowerPlan | None:
    """Who holds what, where the tower is split. Raises ValueError where settings, ranks and shapes do not fit."""
    check_ranks(config.parallel, num_ranks)
    check_recompute(config)
    if config.checkpoint.sliced and not config.parallel.is_spread:
        raise ValueError("checkpoint.sliced=true is for a tower that is spread over ranks (section parallel)")
    check_pipeline(config, schema, num_ranks)
    if not config.parallel.is_sharded:
        return None
    if config.device.precision == "bfloat16":
        raise ValueError(
            "device.precision=bfloat16 does not go with a tower that is split over ranks (section parallel), whose "
            "products are float32; leave one out"
        )
    rows = largest_share(config.train.batch_size, num_ranks) * num_ranks  # short slices are filled up
    return plan_run(run_shapes(config, schema), config.parallel, rows, num_ranks)


def check_target(config: Config, target: str) -> None:
    """Raise ValueError for what a split tower does on a CPU alone; `target` is the device's name."""
    options = config.parallel
    split_by_mindspore = target != "CPU" and (options.is_sharded or options.search_mode != "none")
    if split_by_mindspore and config.model.dropout:
        raise ValueError(
            f"model.dropout={config.model.dropout} does not go with a tower that MindSpore splits over ranks (section "
            f"parallel) on {target}, where all of a step's inputs are cut by rows; leave one out"
        )


def check_recompute(config: Config) -> None:
    """Raise ValueError where layers are to be recomputed that do not exist, or cannot be."""
    runs = recomputed_runs(config.parallel.recompute, len(config.model.hidden_widths))
    if runs and config.parallel.is_sharded:
        raise ValueError("parallel.recompute does not go with a tower that is split over ranks; leave one out")
    if runs and config.model.batch_norm:
        raise ValueError(
            "parallel.recompute does not go with model.batch_norm=true, which notes each pass; leave one out"
        )


def check_pipeline(config: Config, schema: Schema, num_ranks: int) -> PipelinePlan | None:
    """The plan of a tower in two stages, if there are to be any. Raises ValueError where that does not go."""
    if config.parallel.pipeline_stages == 1:
        return None
    return plan_pipeline(config.parallel, run_shapes(config, schema), num_ranks)


def strategy_record(config: Config, schema: Schema, num_ranks: int) -> StrategyRecord:
    """What strategy.json says of a run."""
    options, shapes = config.parallel, run_shapes(config, schema)
    stages = check_pipeline(config, schema, num_ranks)
    return StrategyRecord(
        num_ranks,
        options.tensor_parallel,
        options.strategies,
        options.optimizer_shards,
        shapes,
        record_of(stages, shapes) if stages else None,
    )


def run_shapes(config: Config, schema: Schema) -> Shapes:
    """The shapes of the whole tower's parameters."""
    model = config.model
    return tower_shapes(schema.num_categorical, schema.num_numeric, model.embedding_dim, model.hidden_widths)


ALL = "all"

Run = tuple[int, int]  # the first layer, and the one after the last


def recomputed_runs(entries: Sequence[str], num_hidden: int) -> tuple[Run, ...]:
    """The runs of layers that `entries` name: `matrix_2`, `matrix_0:matrix_2`, or `all`, in runs of about √layers.

    Raises ValueError for what is no hidden layer, and for one that is named twice.
    """
    if ALL in entries:
        if len(entries) > 1:
            raise ValueError(f"parallel.recompute: {ALL} stands alone, found {list(entries)}")
        length = math.ceil(math.sqrt(num_hidden))
        return tuple((first, min(first + length, num_hidden)) for first in range(0, num_hidden, length))
    runs = sorted(_run(entry, num_hidden) for entry in entries)
    for before, after in itertools.pairwise(runs):
        if after[0] < before[1]:
            raise ValueError(f"parallel.recompute: matrix_{after[0]} is named twice in {list(entries)}")
    return tuple(runs)


def _run(entry: str, num_hidden: int) -> Run:
    names = layer_names([0] * num_hidden)[:-1]
    first, _, last = entry.partition(":")
    for name in (first, last or first):
        if name not in names:
            raise ValueError(
                f"parallel.recompute: there is no hidden layer {name!r}; they are {', '.join(names)}; a run of them is "
                f"written {names[0]}:{names[-1]}"
            )
    run = names.index(first), names.index(last or first) + 1
    if run[0] >= run[1]:
        raise ValueError(f"parallel.recompute: {entry} ends before it begins")
    return run
