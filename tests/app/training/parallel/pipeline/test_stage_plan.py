import pytest

from app.config.parallel import ParallelOptions
from app.training.parallel.pipeline.stage_plan import (
    FIRST,
    LAST,
    PipelinePlan,
    balanced,
    describe_pipeline,
    plan_pipeline,
)
from app.training.parallel.tensor.layout_plan import tower_shapes

SHAPES = tower_shapes(num_fields=4, num_numeric=2, embedding_dim=8, hidden_widths=(16, 8))


def test_each_array_is_on_one_stage_and_shared_numbers_on_both():
    plan = PipelinePlan(num_ranks=2, micro_batches=4, second_stage=1)
    first = {name for name in SHAPES if plan.holds(FIRST, f"adam.first_moment.tower.{name}")}
    last = {name for name in SHAPES if plan.holds(LAST, f"tower.{name}")}
    assert first == {"matrix_0", "bias_0", "numeric_rows", "numeric_matrix"}
    assert last == {"matrix_1", "bias_1", "matrix_2"}
    assert plan.holds(FIRST, "ftrl.linear.wide.bias") and not plan.holds(LAST, "wide.bias")
    assert plan.holds(FIRST, "adam.beta1_power") and plan.holds(LAST, "adam.beta1_power")


@pytest.mark.parametrize("num_rows", [0, 1, 5, 96])
def test_the_first_ranks_of_pairs_share_the_rows_out(num_rows):
    plan = PipelinePlan(num_ranks=6, micro_batches=2, second_stage=1)
    rows = [plan.rows_of(num_rows, rank, 6) for rank in range(6)]
    assert [row for part in rows[:3] for row in range(part.start, part.stop)] == list(range(num_rows))
    for first, last in zip(rows[:3], rows[3:], strict=True):
        assert (last.start, last.stop) == (first.start, first.start)
    assert plan.micro_rows(96) * plan.micro_batches * 3 == 96


def test_the_work_is_halved():
    assert balanced({"matrix_0": (10, 4), "matrix_1": (4, 10), "matrix_2": (10, 1)}, 3) == 1
    assert balanced({"matrix_0": (4, 4), "matrix_1": (4, 4), "matrix_2": (4, 16)}, 3) == 2


def test_a_line_per_rank_shows_what_it_holds():
    options = ParallelOptions(pipeline_stages=2, second_stage="matrix_2", micro_batches=3)
    first, last = describe_pipeline(plan_pipeline(options, SHAPES, 2), SHAPES)
    assert first.startswith("rank 0: stage 0, with rank 1, 3 micro-batches: wide head, matrix_0 [32, 16], ")
    assert last == "rank 1: stage 1, with rank 0, 3 micro-batches: matrix_2 [8, 1]"


@pytest.mark.parametrize(
    ("values", "num_ranks", "message"),
    [
        ({}, 3, "needs an even number of ranks, found 3"),
        ({}, 1, "needs an even number of ranks, found 1"),
        (
            {"second_stage": "matrix_0"},
            2,
            "second_stage=matrix_0: the last stage begins with one of matrix_1, matrix_2",
        ),
        ({"second_stage": "matrix_7"}, 2, "begins with one of matrix_1, matrix_2"),
    ],
)
def test_ranks_and_layers_that_do_not_fit_are_refused(values, num_ranks, message):
    with pytest.raises(ValueError, match=message):
        plan_pipeline(ParallelOptions(pipeline_stages=2, **values), SHAPES, num_ranks)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pipeline_stages": 3}, "must be 1 or 2; found 3"),
        ({"micro_batches": 0}, "micro_batches must be 1 or more"),
        ({"second_stage": "matrix_1"}, "needs parallel.pipeline_stages=2"),
        ({"pipeline_stages": 2, "optimizer_shards": True}, "cannot be combined"),
        ({"pipeline_stages": 2, "recompute": ("all",)}, "cannot be combined"),
        ({"pipeline_stages": 2, "search_mode": "sharding_propagation"}, "cannot be combined"),
    ],
)
def test_modes_that_do_not_go_together_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        ParallelOptions(**values)
