from app.distributed import watchdog
from app.distributed.watchdog import waiting


def test_the_rank_that_the_others_wait_for_is_named_once_a_wait(run_ranks):
    status, output = run_ranks(3, "slow_rank.py")
    assert status == 0, output
    assert output.count("warning: rank 1 has not come for 0 s; the others wait for it") == 2
    assert output.count("warning") == 2


def test_a_thread_s_wait_does_not_end_the_wait_of_another():
    with waiting():
        since = watchdog._waiting_since()
        with waiting():
            assert watchdog._waiting_since() == since
        assert watchdog._waiting_since() == since is not None
    assert watchdog._waiting_since() is None
