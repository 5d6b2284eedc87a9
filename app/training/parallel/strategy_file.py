"""`strategy.json` in the run folder: how the tower is spread over ranks, and the shapes of its whole parameters.

Another run of the same model can take the strategies from it (`parallel.strategy_file`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from app.config.config import Config
from app.config.parallel import ParallelOptions
from app.training.parallel.pipeline.stage_plan import plan_pipeline
from app.training.parallel.tensor.layout_plan import run_shapes
from common.files import check_format_version, parse_json, write_whole
from data_prep.prepared.schema import Schema

STRATEGY_FILE = "strategy.json"
FORMAT_VERSION = 2


@dataclass(frozen=True)
class PipelineRecord:
    """A tower in two stages: the stage of each layer, and the pairs (rank of stage 0, rank of stage 1)."""

    micro_batches: int
    stages: Mapping[str, int]
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class StrategyRecord:
    """Content of the file: `strategies` by layer, in MindSpore's notation, `shapes` of the whole parameters."""

    num_ranks: int
    tensor_parallel: int
    strategies: Mapping[str, str]
    optimizer_shards: bool
    shapes: Mapping[str, tuple[int, ...]]
    pipeline: PipelineRecord | None = None


def strategy_record(config: Config, schema: Schema, num_ranks: int) -> StrategyRecord:
    """Return the content of a run's strategy.json."""
    options, shapes = config.parallel, run_shapes(config, schema)
    pipeline = None
    if options.pipeline_stages > 1:
        plan = plan_pipeline(options, shapes, num_ranks)
        layers = [name for name in shapes if name.startswith("matrix_")]
        stages = {name: plan.layer_stage(i) for i, name in enumerate(layers)}
        pairs = tuple((rank, plan.partner(rank)) for rank in range(plan.num_pairs))
        pipeline = PipelineRecord(plan.micro_batches, stages, pairs)
    return StrategyRecord(
        num_ranks, options.tensor_parallel, options.strategies, options.optimizer_shards, shapes, pipeline
    )


def write_strategy(path: Path, record: StrategyRecord) -> None:
    """Write the file atomically."""
    write_whole(path, json.dumps({"format_version": FORMAT_VERSION, **asdict(record)}, indent=1) + "\n")


def read_strategy(path: Path) -> StrategyRecord:
    """Read the file. Raise FileNotFoundError, or ValueError if it is damaged or of another version."""
    if not path.is_file():
        raise FileNotFoundError(
            f"no strategy file {path}; a run whose tower is spread over ranks has one, device_0/{STRATEGY_FILE}"
        )
    try:
        content: dict[str, Any] = parse_json(path.read_text())
        version = content.pop("format_version")
        check_format_version(path, version, FORMAT_VERSION, "leave parallel.strategy_file out and give the strategies")
        shapes = {name: tuple(shape) for name, shape in content.pop("shapes").items()}
        pipeline = _pipeline(content.pop("pipeline"), shapes)
        return StrategyRecord(**content, shapes=shapes, pipeline=pipeline)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); it was written as JSON with a strategy a layer") from error


def read_strategies(config: Config, schema: Schema) -> Config:
    """Return the settings with the strategies of `parallel.strategy_file`.

    Raises FileNotFoundError, or ValueError if the file is damaged or of another model.
    """
    if not config.parallel.strategy_file:
        return config
    path = Path(config.parallel.strategy_file)
    record = read_strategy(path)
    check_same_model(record, run_shapes(config, schema), path)
    options: dict[str, Any] = {"tensor_parallel": record.tensor_parallel, "strategies": dict(record.strategies)}
    if record.pipeline:
        of_config, of_file = config.parallel.micro_batches, record.pipeline.micro_batches
        if of_config not in (of_file, ParallelOptions.micro_batches):
            raise ValueError(f"parallel.micro_batches={of_config}: {path} brings its own {of_file}; leave one out")
        second = next(layer for layer, stage in record.pipeline.stages.items() if stage == 1)
        options |= {"pipeline_stages": 2, "second_stage": second, "micro_batches": of_file}
    parallel = replace(config.parallel, strategy_file="", **options)
    return replace(config, parallel=parallel)


def check_same_model(record: StrategyRecord, shapes: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """Raise ValueError, naming the first difference, unless the record is of a tower with these parameters."""
    for name in sorted({*record.shapes, *shapes}):
        there, here = (str(list(each[name])) if name in each else "missing" for each in (record.shapes, shapes))
        if there != here:
            raise ValueError(f"{where} is of another model: {name} is {there} there and {here} here")


def _pipeline(content: dict[str, Any] | None, shapes: Mapping[str, tuple[int, ...]]) -> PipelineRecord | None:
    """Parse the stages. Raise KeyError or TypeError unless each layer has one, first 0 and then 1."""
    if content is None:
        return None
    stages = {layer: content["stages"][layer] for layer in shapes if layer.startswith("matrix_")}
    stage_order = list(stages.values())
    if stage_order != sorted(stage_order) or set(stage_order) != {0, 1} or len(stage_order) != len(content["stages"]):
        raise KeyError(f"stages {content['stages']}")
    pairs = tuple((first, last) for first, last in content["pairs"])
    return PipelineRecord(content["micro_batches"], stages, pairs)
