#!/usr/bin/env bash
# skl2onnx 1.20.0: OrdinalEncoder and TargetEncoder of scikit-learn 1.9.1 give a missing number (NaN) an encoding of its
# own, which the converted ONNX model loses: it encodes NaN like a category that was not there in training. Here rows
# without a site are always clicks, so their encoding is 0.97 in scikit-learn, and in the ONNX model 0.4, the rate of
# all rows. Neither the conversion nor onnxruntime 1.32.0 says so. All other categories are encoded alike.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check skl2onnx==1.20.0 scikit-learn==1.9.1 onnx==1.23.2 \
    onnxruntime==1.32.0 scipy==1.17.1 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.preprocessing import OrdinalEncoder, TargetEncoder

sites = np.array([[1], [2], [np.nan], [3], [2]] * 20, np.float32)
clicks = np.array([0, 0, 1, 0, 1] * 20)
asked = np.array([[1], [2], [3], [np.nan], [99]], np.float32)
ordinal = {"handle_unknown": "use_encoded_value", "unknown_value": -2, "encoded_missing_value": -1}
for encoder in (OrdinalEncoder(**ordinal), TargetEncoder(target_type="binary", smooth=1.0)):
    right = encoder.fit(sites, clicks).transform(asked)[:, 0]
    model = to_onnx(encoder, initial_types=[("sites", FloatTensorType([None, 1]))])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"sites": asked})[0][:, 0]
    name = type(encoder).__name__
    print(f"{name}, sites 1, 2, 3, missing, unknown: scikit-learn {right.round(3)}, ONNX {found.round(3)}")
    known = [0, 1, 2, 4]
    assert np.allclose(found[known], right[known], atol=1e-6)
    assert found[3] == found[4] and abs(right[3] - right[4]) > 0.5
PROGRAM
venv/bin/python program.py
