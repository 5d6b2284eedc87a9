#!/usr/bin/env bash
# onnxruntime 1.32.0: the ONNX operator Unique takes NaN for one of the numbers before it. For [2, 1, NaN, 1, 3, NaN] it
# returns the values 2, 1 and 3, says that both NaN are the value 1, and gives it the count 4. The standard says that
# inverse_indices has for each element its index among the values, and that counts has how often each value occurs. The
# reference evaluator of onnx 1.23.2 has NaN as a fourth value. Which number takes the NaN depends on the order of rows.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import numpy as np
import onnxruntime
from onnx import TensorProto, checker, helper
from onnx.reference import ReferenceEvaluator

OUTPUTS = ["values", "first", "inverse", "counts"]
model = helper.make_model(
    helper.make_graph(
        [helper.make_node("Unique", ["x"], OUTPUTS, sorted=0)],
        "unique",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
        [helper.make_tensor_value_info("values", TensorProto.FLOAT, [None])]
        + [helper.make_tensor_value_info(name, TensorProto.INT64, [None]) for name in OUTPUTS[1:]],
    ),
    opset_imports=[helper.make_opsetid("", 21)],
    ir_version=10,
)
checker.check_model(model)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
for numbers, counts, rebuilt in (
    ([2, 1, np.nan, 1, 3, np.nan], [1, 4, 1], [2, 1, 1, 1, 3, 1]),
    ([5, np.nan, 4], [2, 1], [5, 5, 4]),
    ([4, np.nan, 5], [2, 1], [4, 4, 5]),
):
    x = np.array(numbers, np.float32)
    for name, runtime in (("onnxruntime", session), ("reference", ReferenceEvaluator(model))):
        found = dict(zip(OUTPUTS, runtime.run(None, {"x": x}), strict=True))
        again = found["values"][found["inverse"]]
        print(f"{numbers}: {name:12}values {found['values']}, counts {found['counts']}, taken by inverse {again}")
        if name == "reference":
            assert np.array_equal(again, x, equal_nan=True) and found["counts"].sum() == len(x)
        else:
            assert found["counts"].tolist() == counts and again.tolist() == rebuilt
PROGRAM
venv/bin/python program.py
