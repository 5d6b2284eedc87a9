"""Data parallelism, and the base of the other modes: the whole tower on every rank, which computes its rows alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from mindspore import nn

from app.checkpoint.tower_slices import join
from app.config.config import Config
from app.distributed.process_group import MpiGroup
from app.model.graph import DeviceGraph
from app.model.tower_optimizers import DenseOptimizers
from app.model.wide_deep import WideDeep, make_model
from app.training.parallel.data_parallel import SummedGraph
from app.training.step.step import Graph, StepSettings
from data_prep.prepared.schema import Schema

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Options:
    """What the command line says of a mode. Each mode reads its own part."""

    strategies: Mapping[str, str] = field(default_factory=dict)
    automatic: bool = False  # Layers without a strategy get the one that sends the fewest numbers.
    optimizer_shards: bool = False
    second_stage: str = ""  # The first layer of the pipeline's second stage. If empty, it is chosen to halve the work.
    micro_batches: int = 4
    recompute: tuple[str, ...] = ("all",)


class WholeTower:
    """The whole dense model on this rank.

    `model` is this rank's part of the model, and `batch_rows` the most rows that it brings to a step. Arrays have the
    names of the whole model. All ranks call each method together.
    """

    group_class = MpiGroup

    def __init__(self, config: Config, schema: Schema, group: MpiGroup, options: Options) -> None:
        self.group, self.batch_rows = group, group.batch_rows(config.train.batch_size)
        self.model = self.make_model(config, schema, options)

    def make_model(self, config: Config, schema: Schema, options: Options) -> WideDeep:
        """Return this rank's part of the model at its initial values."""
        return make_model(config, schema)

    def adapt(self, optimizers: DenseOptimizers) -> None:
        """Change the optimizers of `model` to what this mode keeps of their state."""

    def graph(self, settings: StepSettings) -> Graph:
        """Return the step's graph: forward, backward, sums over the ranks, and the dense optimizers."""
        if self.group.size > 1:
            return SummedGraph(settings, self.group)
        return DeviceGraph(settings.forward_backward(), settings.optimizers)

    def scorer(self) -> nn.Cell:
        """Return the graph that maps a rank's rows to their logits."""
        return self.model

    def slices(self, arrays: Arrays) -> Arrays:
        """Return what this rank saves. Each value is saved by one rank, under a name that says where it belongs."""
        return arrays if self.group.rank == 0 else {}

    def gather(self, arrays: Arrays) -> Arrays:
        """Join the ranks' parts to the whole arrays, on every rank."""
        return join(part for rank_slices in self.group.gather(self.slices(arrays)) for part in rank_slices.items())

    def parts(self, whole: Arrays) -> Arrays:
        """Return this rank's parts of whole arrays."""
        return whole

    def describe(self) -> dict[str, dict[str, str]]:
        """Return what the strategy file says of this mode: a strategy, or a stage, for each layer."""
        return {}
