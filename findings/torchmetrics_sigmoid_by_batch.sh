#!/usr/bin/env bash
# torchmetrics 1.9.0: BinaryAUROC and BinaryAveragePrecision take logits, but decide for each batch whether its numbers
# are logits: a batch whose numbers all lie between 0 and 1 counts as probabilities, and others get a sigmoid. If some
# batches of logits look like probabilities, the metric mixes both, and depends on how the rows are divided into
# batches: a click of logit 1.2 and another row of logit 0.9 have an AUC of 1 in one batch and of 0 in two. Small
# batches, such as the last of an epoch, and logits near zero make it likely. Scores that went through a sigmoid are not
# changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 torchmetrics==1.9.0 \
    scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision

ROWS = 512
random = np.random.default_rng(0)
labels = random.integers(0, 2, ROWS)
logits = (random.normal(size=ROWS) / 2 + labels).astype(np.float32)


def in_batches(metric, size):
    for at in range(0, ROWS, size):
        metric.update(torch.from_numpy(logits[at : at + size]), torch.from_numpy(labels[at : at + size]))
    return metric.compute().item()


for metric, by_sklearn in ((BinaryAUROC, roc_auc_score), (BinaryAveragePrecision, average_precision_score)):
    right = by_sklearn(labels, logits)
    found = {size: round(in_batches(metric(), size), 4) for size in (ROWS, 128, 4, 2, 1)}
    print(f"{metric.__name__}: scikit-learn {right:.4f}, torchmetrics by rows in a batch {found}")
    assert abs(found[ROWS] - right) < 1e-4 and abs(found[128] - right) < 1e-4
    assert min(abs(found[size] - right) for size in (2, 1)) > 0.01
together, apart = BinaryAUROC(), BinaryAUROC()
together.update(torch.tensor([1.2, 0.9]), torch.tensor([1, 0]))
for logit, label in ((1.2, 1), (0.9, 0)):
    apart.update(torch.tensor([logit]), torch.tensor([label]))
print(f"a click of logit 1.2, another row of logit 0.9: AUC {together.compute()} in one batch, {apart.compute()} in 2")
assert together.compute() == 1 and apart.compute() == 0
PROGRAM
venv/bin/python -W ignore program.py 2> errors.txt || { cat errors.txt >&2; exit 1; }
