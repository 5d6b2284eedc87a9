"""How ranks split products in examples/tower_over_ranks: plain arithmetic, on one process."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.tower_over_ranks.layouts import (
    BATCH,
    INNER,
    OUTER,
    Layout,
    Strategy,
    check,
    find_strategy,
    parse,
    parse_all,
    plan_tower,
    split_product,
)


def test_blocks_of_the_tutorials_split():
    product = split_product(parse("((2, 4), (4, 1))", "matrix_0"), num_ranks=8)
    assert product.input.block(6, (16, 32)) == (slice(8, 16), slice(16, 24))
    assert product.weight.block_shape((32, 16)) == (8, 16)
    copies = [product.weight.block(rank, (32, 16)) for rank in range(8)]
    assert copies[:4] == copies[4:]
    assert product.weight.group(5, [INNER]) == [4, 5, 6, 7]
    assert product.weight.group(5, [BATCH]) == [1, 5]


def test_ranks_left_over_hold_copies():
    weight = split_product(Strategy(2, 2, 1), num_ranks=8).weight
    assert [weight.block(rank, (4, 4))[0].start for rank in range(8)] == [0, 0, 2, 2, 0, 0, 2, 2]


@st.composite
def layouts(draw):
    """Any mesh of 8 ranks, and axes for the two dimensions of a matrix."""
    mesh = draw(st.sampled_from([(8, 1, 1, 1), (2, 4, 1, 1), (2, 2, 2, 1), (1, 2, 2, 2), (1, 1, 8, 1)]))
    return Layout(mesh, tuple(draw(st.permutations([BATCH, INNER, OUTER, None]))[:2]))


class OneOfRanks:
    """The communicator of one rank, whose others have these blocks."""

    def __init__(self, rank, blocks):
        self.rank, self.blocks = rank, blocks

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return len(self.blocks)

    def Allgather(self, block, blocks):
        np.testing.assert_array_equal(block, self.blocks[self.rank])
        blocks[:] = self.blocks


@settings(max_examples=40)
@given(layouts(), layouts())
def test_a_redistributed_array_is_the_array(cpu, source, target):
    from examples.tower_over_ranks.collectives import exchange

    whole = np.arange(16 * 24).reshape(16, 24)
    blocks = [whole[source.block(rank, whole.shape)] for rank in range(8)]
    for rank in range(8):
        moved = exchange(OneOfRanks(rank, blocks), source, target, whole.shape, blocks[rank])
        np.testing.assert_array_equal(moved, whole[target.block(rank, whole.shape)])


@pytest.mark.parametrize(
    ("batch", "shape", "expected"),
    [
        (16, (1024, 1024), Strategy(inner=2, outer=2)),
        (16, (4096, 64), Strategy(inner=4)),
        (16, (64, 4096), Strategy(outer=4)),
        (4096, (64, 64), Strategy(batch=4)),
        (16, (6, 4096), Strategy(outer=4)),
    ],
)
def test_the_automatic_strategy_sends_the_fewest_numbers(batch, shape, expected):
    assert find_strategy(batch, shape, num_ranks=4) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2, 4", "matrix_1: '2, 4' is no strategy"),
        ("((2, 4), (4, 1)", "is no strategy"),
        ("((2, 4), (2, 1))", "the input's width in 4 parts and the weight's height in 2"),
        ("((0, 4), (4, 1))", "whole numbers of 1 or more"),
        ("((2, 4.0), (4.0, 1))", "whole numbers of 1 or more"),
    ],
)
def test_what_is_no_strategy_is_refused(text, message):
    with pytest.raises(ValueError) as error:
        parse(text, "matrix_1")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (Strategy(4, 4, 1), r"is for 16 ranks, which do not divide 8 ranks"),
        (Strategy(3, 1, 1), r"is for 3 ranks, which do not divide 8 ranks"),
        (Strategy(8, 1, 1), r"the batch of 12 does not divide into 8 parts; 4 would"),
        (Strategy(1, 8, 1), r"the width in of 36 does not divide into 8 parts; 4 would"),
        (Strategy(1, 1, 4), r"the width out of 6 does not divide into 4 parts; 2 would"),
    ],
)
def test_what_does_not_fit_names_layer_and_divisor(strategy, message):
    with pytest.raises(ValueError, match=r"matrix_0: .*" + message):
        check("matrix_0", strategy, batch=12, shape=(36, 6), num_ranks=8)


def test_a_layer_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no layer 'c'; the layers are a, b"):
        parse_all({"c": "((1, 1), (1, 1))"}, ["a", "b"])


def test_gradients_are_summed_over_ranks_with_other_work():
    shapes = {
        "matrix_0": (8, 4),
        "bias_0": (4,),
        "numeric_rows": (2, 8),
        "numeric_matrix": (2, 8, 4),
        "matrix_1": (4, 1),
    }
    plan = plan_tower(shapes, {"matrix_0": Strategy(2, 1, 2), "matrix_1": Strategy(4)}, batch_size=8, num_ranks=4)
    groups = {name: each.layout.group(0, each.gradient_axes) for name, each in plan.parameters.items()}
    assert groups == {
        "matrix_0": [0, 2],
        "bias_0": [0, 2],
        "numeric_rows": [0, 1, 2, 3],
        "numeric_matrix": [0, 2],
        "matrix_1": [0, 1, 2, 3],
    }
    assert plan.widths == (8, 4, 1)
