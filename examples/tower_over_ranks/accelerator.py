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

SHARD_THRESHOLD_KIB = 64  # With optimizer shards, smaller parameters stay whole.


class MindSporeSplit(WholeTower):
    """The tower split by MindSpore. `model` is whole, and each rank's inputs are its slice of the batch.

    MindSpore splits the optimizer's state, and sums over ranks, itself. Nothing can be loaded after the first step,
    until which parameters are whole.
    """

    def __init__(self, config: Config, schema: Schema, group: MpiGroup, options: Options) -> None:
        init_communication()
        self._options = options
        self._graph: AutoParallel = None
        self._named: dict[str, Parameter] = {}
        super().__init__(config, schema, group, options)

    def make_model(self, config: Config, schema: Schema, options: Options) -> WideDeep:
        """Make the whole model. Give each layer's MatMul its strategy, in automatic mode only the named layers'."""
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
        """Make the step's graph. Sums over the batch in it are sums over all ranks."""
        self._named = settings.model.named_parameters() | settings.optimizers.named_state()
        self._graph = self._auto_parallel(DeviceGraph(settings.forward_backward(), settings.optimizers))
        if self._options.optimizer_shards:
            self._graph.hsdp(threshold=SHARD_THRESHOLD_KIB, optimizer_level="level1")
        self._graph.save_param_strategy_file(f"strategy_{communication.get_rank()}.ckpt")
        return self._graph

    def scorer(self) -> AutoParallel:
        return self._auto_parallel(self.model)

    def gather(self, arrays: Arrays) -> Arrays:
        """Join by MindSpore's integrated checkpoint."""
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
