#!/usr/bin/env bash
# MindSpore 2.10.0, CPU: a graph that subtracts a row [1, H] from a matrix [B, H] takes about 12 bytes more for each
# number of the result than a graph that first repeats the row with ops.tile and then subtracts matrices of one shape,
# although that graph needs room for the repeated row. The values are equal, and the memory is kept between the calls.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    mindspore==2.10.0 scipy==1.17.1 protobuf==7.36.2 numpy==1.26.4
cd "$work"
cat > program.py <<'PROGRAM'
import re
import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ROWS, COLUMNS = 4000, 4000
ms.set_context(mode=ms.GRAPH_MODE)


@ms.jit
def broadcast(matrix, row):
    return matrix - row


@ms.jit
def repeated(matrix, row):
    return matrix - ops.tile(row, (ROWS, 1))


def resident_bytes():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) * 1024


rng = np.random.default_rng(0)
matrix, row = (Tensor(rng.random(shape, np.float32)) for shape in ((ROWS, COLUMNS), (1, COLUMNS)))
graph = {"broadcast": broadcast, "repeated": repeated}[sys.argv[1]]
before = resident_bytes()
for _ in range(3):
    difference = graph(matrix, row).asnumpy()
assert np.array_equal(difference, matrix.asnumpy() - row.asnumpy())
print(round((resident_bytes() - before) / (ROWS * COLUMNS), 1))
PROGRAM
broadcast=$(venv/bin/python program.py broadcast 2>/dev/null | tail -1)
repeated=$(venv/bin/python program.py repeated 2>/dev/null | tail -1)
echo "mindspore 2.10.0, bytes for each number: $broadcast with a row, $repeated with the repeated row"
venv/bin/python -c "assert 9 < $broadcast - $repeated < 15"
