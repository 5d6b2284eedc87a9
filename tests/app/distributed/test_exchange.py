"""Headers of an operation of all ranks."""

import subprocess
import sys

PROGRAM = """
from types import SimpleNamespace
import numpy as np
from app.distributed.exchange import Operation, start

def begin(received):
    def exchange(sent, to):
        to[:] = received
        return SimpleNamespace(Wait=lambda: None)
    return start(SimpleNamespace(size=3, Ialltoall=exchange), Operation.LOOKUP)

header = [Operation.LOOKUP, 5, 1.0, 0]  # operation, ids, scale, shard; ids differ by rank
same = np.array([[Operation.NONE, 0, 0, 0], header, [Operation.LOOKUP, 7, 1.0, 0]], float)
begin(same)
for place, other in ((0, Operation.UPDATE), (2, 2.0), (3, 1)):
    received = same.copy()
    received[2, place] = other
    try:
        begin(received)
    except ValueError as error:
        print(error)
"""


def test_ranks_out_of_step_are_an_error_that_names_them(project):
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=project, capture_output=True, text=True, check=True)
    first = "the ranks are not in step: rank 1 does LOOKUP with scale 1 in shard 0, rank 2 does"
    others = ("UPDATE with scale 1 in shard 0", "LOOKUP with scale 2 in shard 0", "LOOKUP with scale 1 in shard 1")
    expected = [f"{first} {other}; run the same" for other in others]
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True))
