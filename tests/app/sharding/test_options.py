import pytest

from app.sharding.options import ParallelOptions, check_parallel

LAYERS = ("matrix_0", "matrix_1", "matrix_2")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tensor_parallel": 0}, "parallel.tensor_parallel must be 1 or more, found 0"),
        ({"pipeline_stages": 3}, "parallel.pipeline_stages must be 1 or 2"),
        ({"pipeline_stages": 2, "optimizer_shards": True}, "goes with data parallelism and recompute alone"),
        ({"strategies": {"matrix_0": "((1, 1), (1, 1))"}}, "over parallel.tensor_parallel ranks, which is 1"),
    ],
)
def test_values_that_do_not_go_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        ParallelOptions(**values)


@pytest.mark.parametrize(
    ("values", "num_ranks", "message"),
    [
        ({"tensor_parallel": 4}, 6, "does not divide the 6 ranks: 2 would be left over"),
        ({"pipeline_stages": 2}, 3, "needs an even number of ranks, found 3"),
        ({"pipeline_stages": 2, "first_stage_layers": 3}, 2, "leaves the second stage without a layer"),
        ({"recompute": ("matrix_9",)}, 1, "no layer 'matrix_9'; the layers are matrix_0, matrix_1, matrix_2"),
        ({"search": "sharding_propagation"}, 2, "on a CPU it compiles no sharded graph"),
    ],
)
def test_what_does_not_fit_the_job_is_refused(values, num_ranks, message):
    with pytest.raises(ValueError, match=message):
        check_parallel(ParallelOptions(**values), LAYERS, num_ranks, "CPU")


def test_what_fits_is_not():
    check_parallel(ParallelOptions(tensor_parallel=2, recompute=("matrix_1",)), LAYERS, 6, "CPU")
    check_parallel(ParallelOptions(search="sharding_propagation"), LAYERS, 8, "Ascend")
