#!/usr/bin/env bash
# ml_dtypes 0.5.4 registers a NumPy dtype under the name bfloat16, and so does MindSpore 2.10.0 when it is imported with NumPy
# 1.26.4. The last one wins: after `import mindspore`, np.dtype("bfloat16") is MindSpore's, which has the same name and bits, but
# is not equal to ml_dtypes.bfloat16. NumPy computes with it too, so a test `array.dtype == ml_dtypes.bfloat16` fails silently.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    mindspore==2.10.0 scipy==1.17.1 protobuf==7.36.2 numpy==1.26.4 ml_dtypes==0.5.4
cd "$work"
venv/bin/python - 2> errors.txt <<'PROGRAM' || { cat errors.txt >&2; exit 1; }
import ml_dtypes
import numpy as np

before = np.dtype("bfloat16")
import mindspore

after, values = np.dtype("bfloat16"), np.linspace(-1, 1, 10_001, dtype=np.float32)
bits = [values.astype(dtype).view(np.uint16) for dtype in (before, after)]
tensor = mindspore.Tensor([1.0], mindspore.bfloat16).asnumpy()
print(f"before: {before.name}, equal to ml_dtypes.bfloat16: {before == ml_dtypes.bfloat16}")
print(f"after:  {after.name}, equal to ml_dtypes.bfloat16: {after == ml_dtypes.bfloat16}")
print(f"same bits: {np.array_equal(*bits)}; dtype of a tensor's array is the later one: {tensor.dtype == after}")
assert before == ml_dtypes.bfloat16 != after and before.name == after.name == "bfloat16"
assert np.array_equal(*bits) and tensor.dtype == after
PROGRAM
