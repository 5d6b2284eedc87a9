"""Score a log in Criteo's format with onnxruntime alone: python score.py BUNDLE PREPARED LOG.txt

It looks up ids in the vocabulary of the prepared folder, and knows the transforms log1p and log1p_standardize.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow.parquet as pq

bundle, prepared, log = map(Path, sys.argv[1:])
schema = json.loads((bundle / "schema.json").read_text())
rows = [line.rstrip("\n").split("\t") for line in log.open()]
cells = dict(zip(schema["options"]["data"]["columns"], zip(*rows, strict=True), strict=True))

vocabulary = pq.read_table(prepared / "vocabulary.parquet", columns=["field", "value", "id"]).to_pydict()
ids = dict(zip(zip(vocabulary["field"], vocabulary["value"], strict=True), vocabulary["id"], strict=True))
unknown = schema["vocabulary_size"]  # The model takes an id beyond the vocabulary for a value without an id.
columns = [
    [ids.get((field["name"], cell), unknown) for cell in cells[field["name"]]] for field in schema["categorical"]
]

numbers = np.zeros((len(rows), len(schema["numeric"])), np.float32)
for place, field in enumerate(schema["numeric"]):
    present = np.array([cell != "" for cell in cells[field["source"]]])
    x = np.array([float(cell or 0) for cell in cells[field["source"]]])
    x, fitted = np.copysign(np.log1p(np.abs(x)), x), field["parameters"]
    x = np.clip((x - fitted.get("mean", 0)) / fitted.get("standard_deviation", 1), -10, 10) if "mean" in fitted else x
    numbers[:, place] = ~present if field["transform"] == "missing" else np.where(present, x, 0)

session = onnxruntime.InferenceSession(bundle / "ids.onnx")
inputs = {"ids": np.array(columns, np.int64).T, "numbers": numbers}
print("\n".join(map(str, session.run(["scores"], inputs)[0].tolist())))
