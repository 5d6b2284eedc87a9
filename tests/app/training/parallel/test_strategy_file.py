import json

import pytest

from app.training.parallel.strategy_file import (
    STRATEGY_FILE,
    PipelineRecord,
    StrategyRecord,
    check_same_model,
    read_strategies,
    read_strategy,
    strategy_record,
    write_strategy,
)

LAYERS = {"matrix_0": (32, 16), "matrix_1": (16, 8), "matrix_2": (8, 1)}
STAGES = {"matrix_0": 0, "matrix_1": 1, "matrix_2": 1}
PIPELINE = StrategyRecord(4, 1, {}, False, LAYERS, PipelineRecord(3, STAGES, ((0, 2), (1, 3))))
RECORD = StrategyRecord(8, 4, {"matrix_0": "((1, 2), (2, 2))"}, True, {"matrix_0": (32, 16), "bias_0": (16,)})


@pytest.mark.parametrize("record", [RECORD, PIPELINE])
def test_what_is_written_is_read(tmp_path, record):
    write_strategy(tmp_path / STRATEGY_FILE, record)
    assert read_strategy(tmp_path / STRATEGY_FILE) == record
    assert [path.name for path in tmp_path.iterdir()] == [STRATEGY_FILE]


@pytest.mark.parametrize(
    "stages", [{**STAGES, "matrix_0": 1}, {**STAGES, "matrix_2": 0}, {"matrix_0": 0}, {**STAGES, "matrix_9": 1}, 3]
)
def test_stages_that_are_not_the_layers_are_refused(tmp_path, stages):
    path = tmp_path / STRATEGY_FILE
    write_strategy(path, PIPELINE)
    content = json.loads(path.read_text())
    content["pipeline"]["stages"] = stages
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is damaged"):
        read_strategy(path)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no strategy file .*strategy\.json"):
        read_strategy(tmp_path / STRATEGY_FILE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 9}, "has format version 9, this program reads 2"),
        ({"unheard_of": 1}, "is damaged"),
        ({"shapes": 3}, "is damaged"),
        ({"pipeline": {"micro_batches": 4}}, "is damaged"),
    ],
)
def test_another_version_and_damage_are_refused(tmp_path, change, message):
    write_strategy(tmp_path / STRATEGY_FILE, RECORD)
    path = tmp_path / STRATEGY_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        read_strategy(tmp_path / STRATEGY_FILE)


def test_half_a_file_is_refused(tmp_path):
    (tmp_path / STRATEGY_FILE).write_text('{"format_version": 2, "num')
    with pytest.raises(ValueError, match="is damaged"):
        read_strategy(tmp_path / STRATEGY_FILE)


def test_another_model_is_refused(tmp_path):
    check_same_model(RECORD, RECORD.shapes, tmp_path)
    with pytest.raises(ValueError, match=r"another model: bias_0 is \[16\] there and missing here"):
        check_same_model(RECORD, {"matrix_0": (32, 16)}, tmp_path)
    with pytest.raises(ValueError, match=r"matrix_0 is \[32, 16\] there and \[32, 8\] here"):
        check_same_model(RECORD, {"matrix_0": (32, 8), "bias_0": (16,)}, tmp_path)


PIPELINE_WORDS = ("parallel.pipeline_stages=2", "parallel.second_stage=matrix_2", "parallel.micro_batches=3")


@pytest.fixture
def saved(tmp_path, tiny_config, tiny_schema):
    """The word that gives the strategy file of a run with some settings."""

    def write(*words, ranks=2):
        path = tmp_path / STRATEGY_FILE
        write_strategy(path, strategy_record(tiny_config(*words), tiny_schema, ranks))
        return f"parallel.strategy_file={path}"

    return write


def test_a_pipelines_stages_come_from_its_file(saved, tiny_config, tiny_schema):
    found = read_strategies(tiny_config(saved(*PIPELINE_WORDS)), tiny_schema)
    assert found == tiny_config(*PIPELINE_WORDS)


def test_a_splits_strategies_come_from_its_file(saved, tiny_config, tiny_schema):
    split = ("parallel.tensor_parallel=2", 'parallel.strategies={matrix_0: "((1, 2), (2, 1))"}')
    assert read_strategies(tiny_config(saved(*split)), tiny_schema) == tiny_config(*split)


def test_a_pipelines_file_goes_with_no_other_micro_batches_or_modes(saved, tiny_config, tiny_schema):
    word = saved(*PIPELINE_WORDS)
    with pytest.raises(ValueError, match=r"micro_batches=8: .*strategy.json brings its own 3"):
        read_strategies(tiny_config(word, "parallel.micro_batches=8"), tiny_schema)
    with pytest.raises(ValueError, match="cannot be combined"):
        read_strategies(tiny_config(word, "parallel.optimizer_shards=true"), tiny_schema)


def test_a_pipelines_file_of_another_model_is_refused(saved, tiny_config, tiny_schema):
    word = saved(*PIPELINE_WORDS, "model.hidden_widths=[64, 32, 16]")
    with pytest.raises(ValueError, match="is of another model: bias_2"):
        read_strategies(tiny_config(word, "model.hidden_widths=[64, 32]"), tiny_schema)


def test_a_pipeline_is_recorded_by_layers_and_pairs(tiny_config, tiny_schema):
    record = strategy_record(tiny_config(*PIPELINE_WORDS), tiny_schema, 4).pipeline
    assert record.stages == {"matrix_0": 0, "matrix_1": 0, "matrix_2": 1}
    assert record.pairs == ((0, 2), (1, 3))
    assert (record.micro_batches, sorted(record.stages.items())[2]) == (3, ("matrix_2", 1))
