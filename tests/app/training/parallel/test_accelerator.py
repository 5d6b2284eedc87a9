"""Calls of MindSpore's parallel modes against the signatures of the installed MindSpore; none is run."""

from types import SimpleNamespace
from unittest.mock import create_autospec

import mindspore as ms
import numpy as np
import pytest
from mindspore import ops

from app.distributed.process_group import MpiGroup

SPLIT = ("parallel.tensor_parallel=2", 'parallel.strategies={matrix_0: "((1, 2), (2, 1))"}')


@pytest.fixture
def accelerator(cpu, monkeypatch):
    """The module with MindSpore's calls replaced by such as only check how they are called, for 4 ranks."""
    from app.training.parallel import accelerator as parallel

    auto_parallel = create_autospec(parallel.AutoParallel)
    communication = create_autospec(parallel.communication)
    communication.get_group_size.return_value, communication.get_rank.return_value = 4, 3
    monkeypatch.setattr(parallel, "AutoParallel", auto_parallel)
    monkeypatch.setattr(parallel, "communication", communication)
    monkeypatch.setattr(ms, "communication", communication)
    monkeypatch.setattr(ms, "save_checkpoint", create_autospec(ms.save_checkpoint))
    monkeypatch.setattr(ms, "load_checkpoint", create_autospec(ms.load_checkpoint))
    monkeypatch.setattr(ms, "get_current_device", lambda: SimpleNamespace(device_target="Ascend"))
    return SimpleNamespace(auto_parallel=auto_parallel, spread=auto_parallel.return_value, init=communication.init)


@pytest.fixture
def spread_run(accelerator, tiny_config, make_schema, make_parts):
    """The run of a tower of operators, as `assemble` asks for it, and the parts of its step."""
    from app.training.assemble import place_tower

    def make(*settings):
        schema = make_schema()
        parts = make_parts("reference", schema, "train.batch_size=8")
        group = create_autospec(MpiGroup, instance=True, size=4, rank=3, communicator=None)
        config = tiny_config("train.batch_size=8", *settings)
        return place_tower(config, schema, group), parts.step.settings

    return make


def strategies(model):
    products = [*(layer.matmul.product for layer in model.tower.layers), model.tower.output.product]
    return [getattr(product, "in_strategy", None) for product in products]


def test_plain_data_parallel_needs_none_of_it(spread_run, accelerator):
    from app.training.parallel.data_parallel import DataParallelPlacement

    assert isinstance(spread_run()[0], DataParallelPlacement)
    assert not accelerator.init.called


def test_strategies_and_optimizer_shards_become_calls_of_mindspore(spread_run, accelerator):
    run, parts = spread_run(*SPLIT, "parallel.optimizer_shards=true", "parallel.optimizer_level=level2")
    accelerator.init.assert_called_once_with()
    first, *others = strategies(run.model)
    assert first == ((2, 2), (2, 1))
    assert set(others) == {((4, 1), (1, 1))}
    assert run.graph(parts) is accelerator.spread
    (graph,) = accelerator.auto_parallel.call_args.args
    assert graph.forward_backward.parameters and graph.optimizers is parts.optimizers
    assert accelerator.auto_parallel.call_args.kwargs == {"parallel_mode": "semi_auto"}
    accelerator.spread.dataset_strategy.assert_called_once_with("data_parallel")
    accelerator.spread.hsdp.assert_called_once_with(threshold=64, optimizer_level="level2")
    accelerator.spread.save_param_strategy_file.assert_called_once_with("device_3/strategy.ckpt")
    assert run.scorer() is accelerator.spread


def test_a_pipeline_takes_a_device_a_rank_and_runs_nothing_that_is_for_a_cpu_alone(spread_run, accelerator):
    from app.training.parallel.pipeline.stage_step import PipelinePlacement

    run, _ = spread_run("parallel.pipeline_stages=2")
    assert isinstance(run, PipelinePlacement)
    accelerator.init.assert_called_once_with()
    assert not accelerator.auto_parallel.called
    cells = [cell for _, cell in run.cell.cells_and_names()]
    operators = [operator for cell in cells for operator in getattr(cell, "_primitives", {}).values()]
    assert operators and not any(isinstance(operator, ops.Custom) for operator in operators)


def test_a_search_leaves_the_other_layers_to_mindspore(spread_run, accelerator):
    run, parts = spread_run(*SPLIT, "parallel.search_mode=sharding_propagation")
    first, *others = strategies(run.model)
    assert first == ((2, 2), (2, 1))
    assert set(others) == {None}
    run.graph(parts)
    assert accelerator.auto_parallel.call_args.kwargs == {"parallel_mode": "sharding_propagation"}
    accelerator.spread.hsdp.assert_not_called()


def test_chosen_layers_are_recomputed_by_mindspores_own_call(spread_run, monkeypatch):
    from mindspore import nn

    from app.model.recompute import recompute_layers

    recompute = create_autospec(nn.Cell.recompute)
    monkeypatch.setattr(nn.Cell, "recompute", recompute)
    tower = spread_run(*SPLIT)[0].model.tower
    recompute_layers(tower.layers, [(1, len(tower.layers))])
    assert [call.args[0] for call in recompute.call_args_list] == list(tower.layers)[1:]


def test_a_checkpoint_is_joined_by_mindspores_integrated_save(spread_run, accelerator):
    run, parts = spread_run(*SPLIT)
    run.graph(parts)
    named = parts.model.named_parameters() | parts.optimizers.named_state()
    ms.load_checkpoint.return_value = {p.name: p for p in named.values()}
    whole = run.gather({name: p.asnumpy() for name, p in named.items()})
    assert ms.save_checkpoint.call_args.kwargs == {"integrated_save": True}
    np.testing.assert_array_equal(whole["tower.bias_0"], parts.model.tower.biases[0].asnumpy())
    assert len({p.name for p in named.values()}) == len(named)
