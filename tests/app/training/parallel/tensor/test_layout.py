import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.training.parallel.tensor.layout import Layout, Mesh, redistribution

MESH = Mesh((("batch", 2), ("inner", 4), ("outer", 1)))


def test_ranks_count_the_last_axis_fastest():
    assert MESH.coordinates(5) == {"batch": 1, "inner": 1, "outer": 0}
    assert MESH.group(5, ["inner"]) == (4, 5, 6, 7)
    assert MESH.group(5, ["batch"]) == (1, 5)


def test_blocks_of_the_documented_example():
    inputs = Layout(MESH, (("batch",), ("inner",)))
    weight = Layout(MESH, (("inner",), ("outer",)))
    assert inputs.block_shape((16, 32)) == (8, 8)
    assert weight.block_shape((32, 16)) == (8, 16)
    assert inputs.block(6, (16, 32)) == (slice(8, 16), slice(16, 24))
    assert [weight.part(rank) for rank in range(4)] == [weight.part(rank) for rank in range(4, 8)]  # copies


@st.composite
def layouts(draw, num_ranks=8):
    """Any mesh of 8 ranks, its axes dealt out to two dimensions or to copies."""
    sizes = draw(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8)]))
    names = [f"axis_{i}" for i in range(len(sizes))]
    homes = draw(st.lists(st.sampled_from([0, 1, 2]), min_size=len(sizes), max_size=len(sizes)))
    dims = tuple(tuple(n for n, home in zip(names, homes, strict=True) if home == dim) for dim in (0, 1))
    return Layout(Mesh(tuple(zip(names, sizes, strict=True))), dims)


@settings(max_examples=60)
@given(layouts(), layouts())
def test_a_redistributed_array_is_the_array(source, target):
    whole = np.arange(16 * 24).reshape(16, 24)
    held = {rank: whole[source.block(rank, whole.shape)] for rank in range(8)}
    got = {rank: np.full(target.block_shape(whole.shape), -1) for rank in range(8)}
    for piece in redistribution(source, target, whole.shape):
        assert (got[piece.receiver][piece.in_receiver] == -1).all()  # nothing is sent twice
        got[piece.receiver][piece.in_receiver] = held[piece.sender][piece.in_sender]
    for rank in range(8):
        np.testing.assert_array_equal(got[rank], whole[target.block(rank, whole.shape)])


def test_equal_layouts_move_nothing():
    layout = Layout(MESH, (("batch",), ("inner",)))
    assert all(piece.sender == piece.receiver for piece in redistribution(layout, layout, (16, 32)))


def test_holders_of_copies_take_turns():
    copies = Layout(MESH, ((), ()))
    rows = Layout(MESH, (("batch", "inner"), ()))
    senders = [piece.sender for piece in redistribution(rows, copies, (8, 3)) if piece.receiver != piece.sender]
    assert sorted(set(senders)) == list(range(8))


def test_a_length_that_does_not_divide_is_a_fault_of_the_caller():
    with pytest.raises(AssertionError):
        Layout(MESH, (("inner",), ())).block_shape((6, 2))
