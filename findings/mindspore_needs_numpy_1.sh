#!/usr/bin/env bash
# The metadata of MindSpore 2.10.0 asks for NumPy 1.25 or later, so pip installs NumPy 2 beside it. Its binary is compiled
# for NumPy 1, and with NumPy 2.4.6 three valid programs raise an error: the first eager operation of a process that takes a
# Python number (SystemError; the second succeeds), GeneratorDataset if a row is a number (RuntimeError), and
# Tensor.asnumpy() of a bfloat16 tensor (TypeError). With NumPy 1.26.4 all of them give the right numbers.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
cat > "$work/program.py" <<'PROGRAM'
import sys
from importlib.metadata import requires

import mindspore
import numpy as np
from mindspore import Tensor
from mindspore.dataset import GeneratorDataset


def found(compute):
    try:
        return compute()
    except Exception as error:
        return type(error).__name__


def rows():
    return [float(value) for (value,) in GeneratorDataset([1.5, 2.5], "x", shuffle=False).create_tuple_iterator()]


programs = {
    "an operation with a Python number": lambda: (Tensor([1.0, 2.0]) + 1).asnumpy().tolist(),
    "the same again": lambda: (Tensor([1.0, 2.0]) + 1).asnumpy().tolist(),
    "rows that are numbers": rows,
    "bfloat16 as an array": lambda: Tensor([1.0, 2.0], mindspore.bfloat16).asnumpy().astype(np.float32).tolist(),
}
outcome = {name: found(compute) for name, compute in programs.items()}
print(f"NumPy {np.__version__}", *(f"{name:36}{result}" for name, result in outcome.items()), sep="\n    ")
assert "numpy>=1.25.0" in requires("mindspore")
right = [[2.0, 3.0], [2.0, 3.0], [1.5, 2.5], [1.0, 2.0]]
with_numpy_2 = ["SystemError", [2.0, 3.0], "RuntimeError", "TypeError"]
assert list(outcome.values()) == (right if sys.argv[1] == "1.26.4" else with_numpy_2)
PROGRAM
cd "$work"
for numpy in 2.4.6 1.26.4; do
    venv/bin/pip install --quiet --disable-pip-version-check mindspore==2.10.0 scipy==1.17.1 protobuf==7.36.2 numpy==$numpy
    venv/bin/python program.py $numpy 2> errors.txt || { cat errors.txt >&2; exit 1; }
done
