#!/usr/bin/env bash
# MindSpore 2.10.0: the metric mindspore.train.ROC keeps only the rows of its last update, although Model.eval updates a
# metric once for each batch. So the AUC of a data set is that of its last batch, without an error or a warning. The metric
# MSE in the same evaluation is that of all rows.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    mindspore==2.10.0 scipy==1.17.1 protobuf==7.36.2 scikit-learn==1.9.1 numpy==1.26.4
cd "$work"
cat > program.py <<'PROGRAM'
import numpy as np
from mindspore import Model, nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import MSE, ROC, auc
from sklearn.metrics import roc_auc_score

ROWS, BATCH = 1_000, 100
random = np.random.default_rng(0)
scores = random.random(ROWS, np.float32)
clicks = (random.random(ROWS) < scores).astype(np.float32)
clicks[-BATCH:] = random.random(BATCH) < 0.5  # In the last batch the clicks do not depend on the scores.
batches = NumpySlicesDataset((scores, clicks), ["score", "click"], shuffle=False).batch(BATCH)
model = Model(nn.Identity(), loss_fn=nn.MSELoss(), metrics={"roc": ROC(pos_label=1), "mse": MSE()})
found = model.eval(batches)
false_positives, true_positives, _ = found["roc"]
by_mindspore = float(auc(false_positives, true_positives))
of_all, of_last = roc_auc_score(clicks, scores), roc_auc_score(clicks[-BATCH:], scores[-BATCH:])
print(f"AUC by MindSpore {by_mindspore:.6f}; by scikit-learn: {of_all:.6f} of all rows, {of_last:.6f} of the last batch")
print(f"MSE by MindSpore {found['mse']:.6f}; {((scores - clicks) ** 2).mean():.6f} of all rows")
assert abs(by_mindspore - of_last) < 1e-9 and of_all - of_last > 0.2
assert abs(found["mse"] - ((scores - clicks) ** 2).mean()) < 1e-6
PROGRAM
venv/bin/python -W ignore program.py 2> errors.txt || { cat errors.txt >&2; exit 1; }
