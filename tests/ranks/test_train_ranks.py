"""The training step on several ranks against that of one process; the program is
tests/ranks/programs/train_steps.py.
"""

from collections import Counter


def test_ranks_and_servers_train_as_one_process_does(run_ranks, project):
    """N = 1 … 4 in one job, which loads MindSpore four times; every table optimizer is in test_state_machine.py."""
    status, output = run_ranks(4, "train_steps.py", project / "configs" / "tiny.yaml", timeout=600)
    assert status == 0, output
    equal = Counter(line.split(" of ")[1] for line in output.splitlines() if line.endswith("equal"))
    expected = {"1, 0": 1, "2, 0": 2, "3, 0": 3, "4, 0": 4, "2, 1": 1, "4, 2": 2}
    jobs = {f"{job} servers: equal": count for job, count in expected.items()}
    assert equal == {**jobs, "3, 0 servers, as a graph: equal": 3}
