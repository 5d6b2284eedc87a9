import pytest

from app.training.parallel.tensor.strategy import Strategy, check, parse, parse_all, shard


def test_a_strategy_is_read_in_mindspores_notation():
    assert parse("((2, 4), (4, 1))", "matrix_0") == Strategy(batch=2, inner=4, outer=1)
    assert str(Strategy(2, 4, 1)) == "((2, 4), (4, 1))"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2, 4", "matrix_1: '2, 4' is no strategy"),
        ("((2, 4), (4, 1)", "is no strategy"),
        ("((2, 4), (2, 1))", "the input's width in 4 and the weight's height in 2"),
        ("((0, 4), (4, 1))", "whole numbers of 1 or more"),
        ("((2, 4.0), (4.0, 1))", "whole numbers of 1 or more"),
    ],
)
def test_what_is_no_strategy_is_refused(text, message):
    with pytest.raises(ValueError) as error:
        parse(text, "matrix_1")
    assert message in str(error.value)


def test_layers_without_one_split_the_batch():
    assert parse_all({"a": "((1, 2), (2, 1))"}, ["a", "b"], 4) == {"a": Strategy(inner=2), "b": Strategy(batch=4)}


def test_a_layer_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no layer 'c'; the layers are a, b"):
        parse_all({"c": "((1, 1), (1, 1))"}, ["a", "b"], 4)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (Strategy(4, 4, 1), r"needs 16 ranks, there are 8"),
        (Strategy(3, 1, 1), r"uses 3 ranks, and 8 .* is no multiple .* 2 would be left over"),
        (Strategy(8, 1, 1), r"the batch of 12 does not divide into 8 parts; 4 would"),
        (Strategy(1, 8, 1), r"the width in of 36 does not divide into 8 parts; 4 would"),
        (Strategy(1, 1, 4), r"the width out of 6 does not divide into 4 parts; 2 would"),
    ],
)
def test_what_does_not_fit_names_layer_dimension_and_divisor(strategy, message):
    with pytest.raises(ValueError, match=r"parallel.strategies.matrix_0: .*" + message):
        check("matrix_0", strategy, batch=12, height=36, width=6, group_size=8)


def test_the_example_fits():
    check("matrix_0", Strategy(2, 4, 1), batch=16, height=32, width=16, group_size=8)


def test_left_over_ranks_hold_copies():
    product = shard(Strategy(1, 2, 1), data_parallel=2, group_size=4)
    assert [product.weight.part(rank)[0] for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert product.input.parts == (2, 2)
