"""What a strategy file brings into a run's settings, and what a split tower does on a CPU alone."""

import pytest

from app.training.parallel.check import check_target, read_strategies, strategy_record
from app.training.parallel.strategy_file import STRATEGY_FILE, write_strategy

STAGES = ("parallel.pipeline_stages=2", "parallel.second_stage=matrix_2", "parallel.micro_batches=3")


@pytest.fixture
def saved(tmp_path, tiny_config, tiny_schema):
    """The word that gives the strategy file of a run with some settings."""

    def write(*words, ranks=2):
        path = tmp_path / STRATEGY_FILE
        write_strategy(path, strategy_record(tiny_config(*words), tiny_schema, ranks))
        return f"parallel.strategy_file={path}"

    return write


def test_a_pipelines_stages_come_from_its_file(saved, tiny_config, tiny_schema):
    found = read_strategies(tiny_config(saved(*STAGES)), tiny_schema)
    assert found == tiny_config(*STAGES)


def test_a_splits_strategies_come_from_its_file(saved, tiny_config, tiny_schema):
    split = ("parallel.tensor_parallel=2", 'parallel.strategies={matrix_0: "((1, 2), (2, 1))"}')
    assert read_strategies(tiny_config(saved(*split)), tiny_schema) == tiny_config(*split)


def test_a_pipelines_file_goes_with_no_other_micro_batches_or_modes(saved, tiny_config, tiny_schema):
    word = saved(*STAGES)
    with pytest.raises(ValueError, match=r"micro_batches=8: .*strategy.json brings its own 3"):
        read_strategies(tiny_config(word, "parallel.micro_batches=8"), tiny_schema)
    with pytest.raises(ValueError, match="goes with none of"):
        read_strategies(tiny_config(word, "parallel.optimizer_shards=true"), tiny_schema)


def test_a_pipelines_file_of_another_model_is_refused(saved, tiny_config, tiny_schema):
    word = saved(*STAGES, "model.hidden_widths=[64, 32, 16]")
    with pytest.raises(ValueError, match="is of another model: bias_2"):
        read_strategies(tiny_config(word, "model.hidden_widths=[64, 32]"), tiny_schema)


@pytest.mark.parametrize("word", ["parallel.optimizer_shards=true", "parallel.search_mode=sharding_propagation"])
def test_dropout_where_mindspore_splits_the_tower_is_refused(tiny_config, word):
    check_target(tiny_config("model.dropout=0.1", word), "CPU")
    check_target(tiny_config("model.dropout=0.1", "parallel.pipeline_stages=2"), "Ascend")
    check_target(tiny_config("model.dropout=0", word), "Ascend")
    with pytest.raises(ValueError, match=r"model.dropout=0.1 does not go with .* on Ascend"):
        check_target(tiny_config("model.dropout=0.1", word), "Ascend")
