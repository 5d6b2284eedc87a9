import json

import pytest

from app.sharding.strategy_file import (
    STRATEGY_FILE,
    StrategyRecord,
    check_same_model,
    read_strategy,
    write_strategy,
)

RECORD = StrategyRecord(8, 4, {"matrix_0": "((1, 2), (2, 2))"}, True, {"matrix_0": (32, 16), "bias_0": (16,)})


def test_what_is_written_is_read(tmp_path):
    write_strategy(tmp_path / STRATEGY_FILE, RECORD)
    assert read_strategy(tmp_path / STRATEGY_FILE) == RECORD
    assert [path.name for path in tmp_path.iterdir()] == [STRATEGY_FILE]


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no strategy file .*strategy\.json"):
        read_strategy(tmp_path / STRATEGY_FILE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 9}, "has format version 9, this program reads 1"),
        ({"unheard_of": 1}, "is damaged"),
        ({"shapes": 3}, "is damaged"),
    ],
)
def test_another_version_and_damage_are_refused(tmp_path, change, message):
    write_strategy(tmp_path / STRATEGY_FILE, RECORD)
    path = tmp_path / STRATEGY_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        read_strategy(tmp_path / STRATEGY_FILE)


def test_half_a_file_is_refused(tmp_path):
    (tmp_path / STRATEGY_FILE).write_text('{"format_version": 1, "num')
    with pytest.raises(ValueError, match="is damaged"):
        read_strategy(tmp_path / STRATEGY_FILE)


def test_another_model_is_refused(tmp_path):
    check_same_model(RECORD, RECORD.shapes, tmp_path)
    with pytest.raises(ValueError, match=r"another model: bias_0 is \[16\] there and missing here"):
        check_same_model(RECORD, {"matrix_0": (32, 16)}, tmp_path)
    with pytest.raises(ValueError, match=r"matrix_0 is \[32, 16\] there and \[32, 8\] here"):
        check_same_model(RECORD, {"matrix_0": (32, 8), "bias_0": (16,)}, tmp_path)
