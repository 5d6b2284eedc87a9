def test_the_rank_that_the_others_wait_for_is_named_once_a_wait(run_ranks):
    status, output = run_ranks(3, "slow_rank.py")
    assert status == 0, output
    assert output.count("warning: rank 1 has not come for 0 s; the others wait for it") == 2
    assert output.count("warning") == 2
