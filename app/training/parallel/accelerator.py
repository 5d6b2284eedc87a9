"""The tower's parallel modes on Ascend and GPU: the settings of the section `parallel` as calls of MindSpore.

Never run: no such device was at hand, and on a CPU MindSpore 2.10 compiles no sharded graph. A test
(tests/app/training/parallel/test_accelerator.py) checks each call against the signature of the installed MindSpore. On
a CPU the rest of `app.training.parallel` implements these modes.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import mindspore as ms
from mindspore import Parameter, communication, nn
from mindspore.parallel.auto_parallel import AutoParallel

from app.config.device import init_communication
from app.config.parallel import ParallelOptions
from app.model.graph import DeviceGraph
from app.model.wide_deep import Tower, WideDeep
from app.training.parallel.placement import Arrays, TowerPlacement
from app.training.parallel.tensor.layout_plan import layer_names
from app.training.parallel.tensor.strategy import parse_all
from app.training.step.step import StepSettings

SHARD_THRESHOLD_KIB = 64  # with optimizer shards, smaller parameters stay whole


class AcceleratorPlacement(TowerPlacement):
    """The tower split by MindSpore. `model` is whole, each rank's inputs are its slice of the batch.

    MindSpore shares out the optimizer's state, and sums over ranks, itself. Nothing is loaded after the first step,
    until which parameters are whole.
    """

    def __init__(self, options: ParallelOptions, model: WideDeep, batch_rows: int) -> None:
        init_communication()
        super().__init__(model, batch_rows)
        self._options = options
        self._graph: AutoParallel | None = None
        self._named: dict[str, Parameter] = {}
        shard_products(model.tower, options, communication.get_group_size())

    def graph(self, settings: StepSettings) -> AutoParallel:
        """Make the step's graph. Sums over the batch in it are sums over all ranks."""
        self._named = settings.model.named_parameters() | settings.optimizers.named_state()
        self._graph = self._auto_parallel(DeviceGraph(settings.forward_backward(), settings.optimizers))
        if self._options.optimizer_shards:
            self._graph.hsdp(threshold=SHARD_THRESHOLD_KIB, optimizer_level=self._options.optimizer_level)
        self._graph.save_param_strategy_file(f"device_{communication.get_rank()}/strategy.ckpt")
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

    slices = gather

    def _auto_parallel(self, cell: nn.Cell) -> AutoParallel:
        mode = self._options.search_mode
        spread = AutoParallel(cell, parallel_mode="semi_auto" if mode == "none" else mode)
        spread.dataset_strategy("data_parallel")
        return spread


def shard_products(tower: Tower, options: ParallelOptions, num_ranks: int) -> None:
    """Give each layer's MatMul its strategy. If MindSpore searches, only layers that the settings name have one."""
    names = layer_names(len(tower.layers) + 1)
    strategies = parse_all(options.strategies, names, options.tensor_parallel)
    assert tower.output is not None
    products = [*(layer.matmul.product for layer in tower.layers), tower.output.product]
    for name, product in zip(names, products, strict=True):
        if options.search_mode == "none" or name in options.strategies:
            parts, groups = strategies[name], num_ranks // options.tensor_parallel
            product.shard(in_strategy=((groups * parts.batch, parts.inner), (parts.inner, parts.outer)))
