import pytest

from app.config.parallel import ParallelOptions


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tensor_parallel": 0}, "tensor_parallel must be 1 or more; found 0"),
        ({"strategies": {"matrix_0": "((1, 1), (1, 1))"}}, "over parallel.tensor_parallel ranks, which is 1"),
        ({"strategy_file": "x", "tensor_parallel": 2}, "give the file or the two of them"),
    ],
)
def test_values_that_do_not_go_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        ParallelOptions(**values)


def test_what_is_for_accelerators_alone_is_named():
    assert ParallelOptions(tensor_parallel=2, optimizer_shards=True).unused_on_cpu() == []
    options = ParallelOptions(search_mode="sharding_propagation", optimizer_level="level2")
    assert options.unused_on_cpu() == ["parallel.search_mode=sharding_propagation", "parallel.optimizer_level=level2"]
