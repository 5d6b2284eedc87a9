"""Data parallelism, and the base of the other modes: the whole tower on every rank, which computes its rows alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from mindspore import nn

from app.checkpoint.read import join
from app.config.config import Config
from app.distributed.process_group import MpiGroup
from app.model.graph import DeviceGraph
from app.model.tower_optimizers import DenseOptimizers
from app.model.wide_deep import WideDeep, make_model
from app.training.step.rank_graphs import SummedGraph
from app.training.step.step import Graph, StepSettings
from data_prep.prepared.schema import Schema

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Options:
    """The options of the command line that depend on the mode. Each mode reads some of them."""

    strategies: Mapping[str, str] = field(default_factory=dict)
    automatic: bool = False  # True if layers without a strategy get the one that sends the fewest numbers.
    optimizer_shards: bool = False
    # The first layer of the pipeline's second stage. "" means that it is chosen to halve the work.
    second_stage: str = ""
    micro_batches: int = 4
    recompute: tuple[str, ...] = ("all",)


class WholeTower:
    """The dense part of the model with the whole tower on this rank. It is the base class of the other modes.

    `model` is this rank's part of the model, and `batch_rows` the maximum number of rows that the rank contributes to a
    step. Arrays have the names of the whole model. All ranks call each method together.
    """

    group_class = MpiGroup

    def __init__(self, config: Config, schema: Schema, group: MpiGroup, options: Options) -> None:
        self.group, self.batch_rows = group, group.batch_rows(config.train.batch_size)
        self.model = self.make_model(config, schema, options)

    def make_model(self, config: Config, schema: Schema, options: Options) -> WideDeep:
        """Return this rank's part of the model, with initial values."""
        return make_model(config, schema)

    def adapt(self, optimizers: DenseOptimizers) -> None:
        """Replace those optimizers of `model` whose state this mode divides among the ranks.

        By default, change nothing.
        """

    def graph(self, settings: StepSettings) -> Graph:
        """Return the graph of a training step: forward and backward pass, sums over ranks, and dense optimizers."""
        if self.group.size > 1:
            return SummedGraph(settings, self.group)
        return DeviceGraph(settings.forward_backward(), settings.optimizers)

    def scorer(self) -> nn.Cell:
        """Return the graph that computes the logits of this rank's rows."""
        return self.model

    def slices(self, arrays: Arrays) -> Arrays:
        """Return the parts of `arrays` that this rank saves, under names that say where in the whole array they belong.

        Each value is saved by only one rank.
        """
        return arrays if self.group.rank == 0 else {}

    def gather(self, arrays: Arrays) -> Arrays:
        """Return the whole arrays, joined from the parts of all ranks, on every rank."""
        return join(part for rank_slices in self.group.gather(self.slices(arrays)) for part in rank_slices.items())

    def parts(self, whole: Arrays) -> Arrays:
        """Return the parts of the whole arrays `whole` that this rank holds."""
        return whole

    def describe(self) -> dict[str, dict[str, str]]:
        """Return what this mode writes to the strategy file: a strategy, or a stage, for each layer."""
        return {}
