#!/usr/bin/env bash
# torchrec 1.8.0: the AUC of rows with equal predictions depends on their order. compute_auc, with which AUCMetric
# computes, sorts the rows and adds one trapezoid for each row, also within a group of equal predictions. Six rows with
# one and the same prediction have an AUC from 0 to 1; scikit-learn 1.9.1 gives 0.5 for every order. With three different
# predictions the AUC lies between 0.778 and 1, where 0.889 is right. Rounded scores are such predictions.
# torchrec 1.9.2 has the same code.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip=("$work/venv/bin/pip" install --quiet --disable-pip-version-check)
"${pip[@]}" torch==2.13.0 torchmetrics==1.0.3 tensordict==0.15.3 pyre-extensions==0.0.32 tqdm==4.70.1 \
    scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6
"${pip[@]}" --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0 # Its dependencies name FBGEMM for GPUs.
cd "$work"
cat > program.py <<'PROGRAM'
from itertools import permutations

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torchrec.metrics.auc import compute_auc


def auc_by_torchrec(predictions, clicks):
    arrays = predictions, clicks, np.ones(len(clicks))
    return compute_auc(1, *([torch.tensor(each, dtype=torch.float64)[None]] for each in arrays)).item()


clicks = np.array([1, 1, 1, 0, 0, 0])
found = {}
for predictions in ([0.9, 0.7, 0.4, 0.5, 0.3, 0.1], [0.8, 0.8, 0.5, 0.5, 0.5, 0.2], [0.5] * 6):
    rows = np.stack([predictions, clicks], axis=1)
    orders = [rows[list(order)].T for order in permutations(range(6))]
    right = {round(roc_auc_score(labels, scores), 6) for scores, labels in orders}
    values = [round(auc_by_torchrec(scores, labels), 6) for scores, labels in orders]
    print(f"{predictions}: scikit-learn {right}, torchrec from {min(values)} to {max(values)}")
    found[tuple(predictions)] = (right, min(values), max(values))
assert list(found.values()) == [({0.888889}, 0.888889, 0.888889), ({0.888889}, 0.777778, 1.0), ({0.5}, 0.0, 1.0)]
PROGRAM
venv/bin/python -W ignore program.py 2> errors.txt || { cat errors.txt >&2; exit 1; }
