"""The split tower on Ascend and GPU: the same options as calls of MindSpore's parallelism.

Never run: no such device was at hand, and on a CPU MindSpore 2.10 compiles no sharded graph. A test checks each call
against the signature of the installed MindSpore.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import mindspore as ms
from mindspore import Parameter, communication, nn
from mindspore.parallel.auto_parallel import AutoParallel

from app.config.config import Config
from app.config.device import init_communication
from app.distributed.process_group import MpiGroup
from app.model.graph import DeviceGraph
from app.model.wide_deep import WideDeep, make_model
from app.training.step.step import StepSettings
from data_prep.prepared.schema import Schema
from examples.tower_over_ranks.layouts import Strategy, parse_all
from examples.tower_over_ranks.whole_tower import Arrays, Options, WholeTower

SHARD_THRESHOLD_KIB = 64  # If the optimizer's state is split, the state of parameters below this size stays whole.


class MindSporeSplit(WholeTower):
    """The tower split over the ranks by MindSpore. `model` is the whole model.

    Each rank's inputs are its slice of the batch. MindSpore itself splits the state of the optimizers and sums over
    ranks. Weights can only be loaded before the first step, because parameters are whole until then.
    """

    def __init__(self, config: Config, schema: Schema, group: MpiGroup, options: Options) -> None:
        init_communication()
        self._options = options
        self._graph: AutoParallel = None
        self._named: dict[str, Parameter] = {}
        super().__init__(config, schema, group, options)

    def make_model(self, config: Config, schema: Schema, options: Options) -> WideDeep:
        """Return the whole model, with a strategy for the MatMul of each layer.

        In automatic mode only the layers that the options name get one.
        """
        model = make_model(config, schema)
        tower, num_ranks = model.tower, communication.get_group_size()
        names = [f"matrix_{i}" for i in range(len(tower.layers) + 1)]
        strategies = parse_all(options.strategies, names)
        for name, matmul in zip(names, [*(layer.matmul for layer in tower.layers), tower.output], strict=True):
            if name in strategies or not options.automatic:
                parts = strategies.get(name, Strategy(batch=num_ranks))
                matmul.product.shard(in_strategy=((parts.batch, parts.inner), (parts.inner, parts.outer)))
        return model

    def graph(self, settings: StepSettings) -> AutoParallel:
        """Return the graph of a training step. Sums over the batch in it are sums over all ranks."""
        self._named = settings.model.named_parameters() | settings.optimizers.named_state()
        self._graph = self._auto_parallel(DeviceGraph(settings.forward_backward(), settings.optimizers))
        if self._options.optimizer_shards:
            self._graph.hsdp(threshold=SHARD_THRESHOLD_KIB, optimizer_level="level1")
        self._graph.save_param_strategy_file(f"strategy_{communication.get_rank()}.ckpt")
        return self._graph

    def scorer(self) -> AutoParallel:
        return self._auto_parallel(self.model)

    def gather(self, arrays: Arrays) -> Arrays:
        """Return the whole arrays, joined from the ranks' parts by MindSpore's integrated checkpoint."""
        with TemporaryDirectory() as folder:
            path = str(Path(folder) / "whole.ckpt")
            ms.save_checkpoint(self._graph, path, integrated_save=True)
            saved = ms.load_checkpoint(path)
        return {name: saved[self._named[name].name].asnumpy() for name in arrays}

    def _auto_parallel(self, cell: nn.Cell) -> AutoParallel:
        mode = "sharding_propagation" if self._options.automatic else "semi_auto"
        spread = AutoParallel(cell, parallel_mode=mode)
        spread.dataset_strategy("data_parallel")
        return spread
