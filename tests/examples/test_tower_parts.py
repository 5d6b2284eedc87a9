"""Parts of examples/tower_over_ranks in one process: recomputed layers, shards, stages, and MindSpore's own calls."""

from types import SimpleNamespace
from unittest.mock import create_autospec

import mindspore as ms
import numpy as np
import pytest

from app.config.optimizer_settings import AdagradOptions, AdamOptions, AdamWOptions, SgdOptions
from app.distributed.process_group import MpiGroup
from tests.app.model.tensors import variable

pytestmark = pytest.mark.slow


@pytest.fixture
def train(cpu, tiny_config, tiny_dataset):
    """Trains an epoch with a mode in this process. Returns the losses and the dense arrays."""

    def run(mode, *settings, **options):
        from examples.tower_over_ranks.training import Training, mode_class
        from examples.tower_over_ranks.whole_tower import Options

        config = tiny_config("device.threads=1", *settings)
        training = Training(config, tiny_dataset, mode_class(mode, "CPU"), Options(**options))
        return training.train_epoch(1), training.gather()

    return run


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_recomputed_layers_give_the_same_bits(train, activation):
    settings = ("model.hidden_widths=[8, 8, 4, 4]", f"model.activation={activation}")
    losses, arrays = train("data", *settings)
    found, found_arrays = train("recompute", *settings, recompute=("matrix_3", "matrix_0:matrix_1"))
    assert found == losses
    for name, array in arrays.items():
        np.testing.assert_array_equal(found_arrays[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("entries", "num_hidden", "runs"),
    [
        (("all",), 4, ((0, 2), (2, 4))),
        (("all",), 5, ((0, 3), (3, 5))),
        (("all",), 1, ((0, 1),)),
        (("matrix_2", "matrix_0:matrix_1"), 4, ((0, 2), (2, 3))),
    ],
)
def test_runs_of_layers(cpu, entries, num_hidden, runs):
    from examples.tower_over_ranks.recompute import runs_of_layers

    assert runs_of_layers(entries, num_hidden) == runs


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (("matrix_2",), "no hidden layer 'matrix_2'; they are matrix_0, matrix_1"),
        (("matrix_1:matrix_0",), "ends before it begins"),
        (("matrix_0:matrix_1", "matrix_1"), "a layer is named twice"),
        (("all", "matrix_0"), "no hidden layer 'all'"),
    ],
)
def test_what_is_no_run_is_refused(cpu, entries, message):
    from examples.tower_over_ranks.recompute import runs_of_layers

    with pytest.raises(ValueError, match=message):
        runs_of_layers(entries, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model.dropout=0.1",), r"model\.dropout=0\.1 is not in this example"),
        (("loss.tower_clip_norm=1",), r"loss\.tower_clip_norm=1\.0 is not in this example"),
        (("device.precision=bfloat16",), r"device\.precision=bfloat16 is not in this example"),
    ],
)
def test_a_setting_that_is_left_out_is_refused(train, words, message):
    with pytest.raises(ValueError, match=message):
        train("split", *words)


@pytest.mark.parametrize("options", [AdamOptions(), AdamWOptions(weight_decay=0.1), AdagradOptions(), SgdOptions()])
def test_one_rank_with_shards_steps_as_the_whole_optimizer(cpu, options):
    from mindspore import Parameter, Tensor
    from mpi4py import MPI

    from app.model.tower_optimizers import make_optimizer
    from examples.tower_over_ranks.optimizer_shards import OptimizerShards, share_of

    rng = np.random.default_rng(1)
    shapes = {"weight": (3, 5), "bias": (5,)}
    first = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    whole, sharded = ({name: Parameter(Tensor(array), name=name) for name, array in first.items()} for _ in range(2))
    optimizer = make_optimizer(whole, options, 4.0)
    shards = OptimizerShards(
        sharded, dict.fromkeys(shapes, MPI.COMM_SELF), lambda weights: make_optimizer(weights, options, 4.0)
    )
    for _ in range(3):
        gradients = [rng.standard_normal(shape).astype(np.float32) for shape in shapes.values()]
        optimizer(variable(gradients))
        shards(variable(share_of(gradient, MPI.COMM_SELF) for gradient in gradients))
        for name, array in first.items():
            stepped = whole[name].asnumpy()
            assert (stepped != array).all()
            np.testing.assert_allclose(sharded[name].asnumpy(), stepped, rtol=1e-6)


@pytest.mark.parametrize("num_rows", [0, 1, 5, 96])
def test_first_ranks_of_pairs_share_the_rows(cpu, num_rows):
    from examples.tower_over_ranks.pipeline import PairGroup

    group = PairGroup.__new__(PairGroup)
    group.rank, group.size = 4, 6
    rows = [group.rows_of(num_rows, rank) for rank in range(6)]
    assert [row for part in rows[:3] for row in range(part.start, part.stop)] == list(range(num_rows))
    assert [(last.start, last.stop) for last in rows[3:]] == [(first.start, first.start) for first in rows[:3]]
    assert group.rows_of(num_rows) == rows[4]


def test_a_missing_or_wrong_file_is_reported(cpu, tmp_path):
    from examples.tower_over_ranks.saving import load, read_strategies

    (tmp_path / "strategy.json").write_text('{"mode": "pipeline"}')
    with pytest.raises(ValueError, match=r"strategy\.json is no strategy file, which is JSON with a strategy a layer"):
        read_strategies(tmp_path / "strategy.json")
    with pytest.raises(FileNotFoundError, match=r"has no checkpoint step-\*; save one there with --save"):
        load(tmp_path, None)


@pytest.fixture
def accelerator(cpu, monkeypatch):
    """MindSpore's calls in the module replaced by such as only check how they are called, for rank 3 of 4."""
    from examples.tower_over_ranks import accelerator as module

    auto_parallel = create_autospec(module.AutoParallel)
    communication = create_autospec(module.communication)
    communication.get_group_size.return_value, communication.get_rank.return_value = 4, 3
    monkeypatch.setattr(module, "AutoParallel", auto_parallel)
    monkeypatch.setattr(module, "communication", communication)
    monkeypatch.setattr(ms, "communication", communication)
    monkeypatch.setattr(ms, "save_checkpoint", create_autospec(ms.save_checkpoint))
    monkeypatch.setattr(ms, "load_checkpoint", create_autospec(ms.load_checkpoint))
    return SimpleNamespace(auto_parallel=auto_parallel, spread=auto_parallel.return_value, init=communication.init)


@pytest.fixture
def on_accelerator(accelerator, tiny_schema, tiny_config):
    """Makes the tower that MindSpore splits, of operators alone, and the settings of its step."""

    def make(**options):
        from app.training.assemble import assemble
        from examples.tower_over_ranks.accelerator import MindSporeSplit
        from examples.tower_over_ranks.whole_tower import Options

        config = tiny_config("tables.backend=reference", "model.activation=gelu")
        settings = assemble(config, tiny_schema, "reference").step.settings
        group = create_autospec(MpiGroup, instance=True, size=4, rank=3)
        options = Options({"matrix_0": "((2, 2), (2, 1))"}, **options)
        return MindSporeSplit(config, tiny_schema, group, options), settings

    return make


def strategies(model):
    products = [*(layer.matmul.product for layer in model.tower.layers), model.tower.output.product]
    return [getattr(product, "in_strategy", None) for product in products]


@pytest.mark.parametrize(
    ("automatic", "others", "mode"), [(False, {((4, 1), (1, 1))}, "semi_auto"), (True, {None}, "sharding_propagation")]
)
def test_strategies_become_calls_of_mindspore(on_accelerator, accelerator, automatic, others, mode):
    tower, settings = on_accelerator(automatic=automatic, optimizer_shards=True)
    accelerator.init.assert_called_once_with()
    first, *rest = strategies(tower.model)
    assert (first, set(rest)) == (((2, 2), (2, 1)), others)
    assert tower.graph(settings) is accelerator.spread
    (graph,) = accelerator.auto_parallel.call_args.args
    assert graph.forward_backward.parameters and graph.optimizers is settings.optimizers
    assert accelerator.auto_parallel.call_args.kwargs == {"parallel_mode": mode}
    accelerator.spread.dataset_strategy.assert_called_once_with("data_parallel")
    accelerator.spread.hsdp.assert_called_once_with(threshold=64, optimizer_level="level1")
    accelerator.spread.save_param_strategy_file.assert_called_once_with("strategy_3.ckpt")
    assert tower.scorer() is accelerator.spread


def test_mindspore_joins_a_checkpoint_by_its_integrated_save(on_accelerator, accelerator):
    tower, settings = on_accelerator()
    tower.graph(settings)
    accelerator.spread.hsdp.assert_not_called()
    named = settings.model.named_parameters() | settings.optimizers.named_state()
    ms.load_checkpoint.return_value = {p.name: p for p in named.values()}
    whole = tower.gather({name: p.asnumpy() for name, p in named.items()})
    assert ms.save_checkpoint.call_args.kwargs == {"integrated_save": True}
    np.testing.assert_array_equal(whole["tower.bias_0"], settings.model.tower.biases[0].asnumpy())
    assert len({p.name for p in named.values()}) == len(named)
