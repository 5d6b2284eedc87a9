"""The tower in two stages against one process; the program is tests/mpi/pipeline_steps.py."""

import pytest


@pytest.mark.parametrize(
    ("num_ranks", "cases"),
    [
        (
            2,
            (
                "parallel.second_stage=matrix_1",
                "parallel.second_stage=matrix_2;model.activation=gelu",
                "model.hidden_widths=[16];device.precision=bfloat16",
            ),
        ),
        (4, ("",)),
    ],
)
def test_two_stages_train_as_one_process_does(run_ranks, project, num_ranks, cases):
    """With dropout, short batches, and one with fewer rows than there are pairs."""
    status, output = run_ranks(num_ranks, "pipeline_steps.py", project / "configs" / "tiny.yaml", *cases, timeout=900)
    assert status == 0, output
    assert sum(line.endswith("equal") for line in output.splitlines()) == num_ranks * len(cases)
