import pytest

from app.sharding.pipeline_schedule import Pass, one_forward_one_backward

F, B = Pass.FORWARD, Pass.BACKWARD


def test_the_first_of_two_stages_is_one_micro_batch_ahead():
    assert one_forward_one_backward(0, 2, 3) == [(F, 0), (F, 1), (B, 0), (F, 2), (B, 1), (B, 2)]


def test_the_last_stage_alternates_from_the_start():
    assert one_forward_one_backward(1, 2, 3) == [(F, 0), (B, 0), (F, 1), (B, 1), (F, 2), (B, 2)]


@pytest.mark.parametrize("num_stages", [1, 2, 4])
@pytest.mark.parametrize("num_micro_batches", [1, 2, 5])
def test_every_micro_batch_goes_forth_and_back_once_in_every_stage(num_stages, num_micro_batches):
    for stage in range(num_stages):
        passes = one_forward_one_backward(stage, num_stages, num_micro_batches)
        assert [i for what, i in passes if what is F] == list(range(num_micro_batches))
        assert [i for what, i in passes if what is B] == list(range(num_micro_batches))
        under_way = most = 0
        for what, _ in passes:
            under_way += 1 if what is F else -1
            most = max(most, under_way)
        assert most <= num_stages - stage
