"""The tower split over ranks against one process; the program is tests/ranks/programs/spread_steps.py."""

import pytest

pytestmark = pytest.mark.parallel

STAGES = "parallel.pipeline_stages=2;parallel.micro_batches=3"
CLIPPED = "loss.tower_clip_norm=1e-3"  # all gradients' norms are above it
SPLIT = (
    f"{CLIPPED};parallel.tensor_parallel=2;"
    'parallel.strategies={matrix_0: "((1, 1), (1, 2))", matrix_1: "((1, 2), (2, 1))"}'
)


@pytest.mark.parametrize(
    ("num_ranks", "cases"),
    [
        (
            2,
            (
                f"{STAGES};parallel.second_stage=matrix_1",
                f"{STAGES};parallel.second_stage=matrix_2;model.activation=gelu",
                f"{STAGES};model.hidden_widths=[16];device.precision=bfloat16",
            ),
        ),
        (4, (f"{STAGES};{CLIPPED}",)),
    ],
)
def test_two_stages_train_as_one_process_does(run_ranks, project, num_ranks, cases):
    """With dropout, short batches, and one with fewer rows than there are pairs."""
    check(run_ranks, project, num_ranks, cases)


@pytest.mark.parametrize(
    ("num_ranks", "cases"),
    [
        (2, (f"{CLIPPED};parallel.optimizer_shards=true",)),
        (4, (SPLIT, f"{SPLIT};parallel.optimizer_shards=true")),
    ],
)
def test_a_split_tower_clips_and_drops_as_one_process_does(run_ranks, project, num_ranks, cases):
    """Blocks of some parameters are on one rank, copies of others on all; with short batches."""
    check(run_ranks, project, num_ranks, cases)


def check(run_ranks, project, num_ranks, cases):
    status, output = run_ranks(num_ranks, "spread_steps.py", project / "configs" / "tiny.yaml", *cases, timeout=900)
    assert status == 0, output
    assert sum(line.endswith("equal") for line in output.splitlines()) == num_ranks * len(cases)
