#!/usr/bin/env bash
# datasketches 5.2.0: the sketches of distinct values (theta, HLL, CPC) take a NumPy number of type float32 for its integer
# part, without an error. 500 different float32 numbers between 0 and 1 count as one value, and 80 prices as 20. As
# float64 or as Python numbers they count as 500 and 80. The values of a float32 column in a loop are such input.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check datasketches==5.2.0 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import datasketches
import numpy as np

SKETCHES = {
    "theta": lambda: datasketches.update_theta_sketch(12),
    "HLL": lambda: datasketches.hll_sketch(12),
    "CPC": lambda: datasketches.cpc_sketch(12),
}


def estimate(make, values):
    sketch = make()
    for value in values:
        sketch.update(value)
    return round(sketch.get_estimate())


scores = np.random.default_rng(0).random(500, np.float32)
prices = np.arange(0, 20, 0.25, np.float32)  # 80 values with 20 integer parts
for name, make in SKETCHES.items():
    found = {
        "Python": estimate(make, scores.tolist()),
        "float64": estimate(make, scores.astype(np.float64)),
        "float32": estimate(make, scores),
        "prices in float64": estimate(make, prices.astype(np.float64)),
        "prices in float32": estimate(make, prices),
        "integer parts of prices and prices": estimate(make, [*range(20), *prices]),
    }
    print(f"{name:6}", found)
    assert abs(found["Python"] - 500) <= 10 and abs(found["float64"] - 500) <= 10
    assert found["float32"] == 1
    assert (found["prices in float64"], found["prices in float32"]) == (80, 20)
    assert found["integer parts of prices and prices"] == 20
PROGRAM
venv/bin/python program.py
