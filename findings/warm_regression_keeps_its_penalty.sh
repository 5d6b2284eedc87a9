#!/usr/bin/env bash
# scikit-learn 1.9.1, LogisticRegression(solver="newton-cg", warm_start=True) with its default tolerance: on 100,000 rows
# of one-hot categories, of which most are rare, a fit with C=1 after one with C=0.3 takes no step. The tolerance is
# for the gradient of the mean loss, to which a value that few rows have contributes next to nothing. So a search of the
# penalty over warm fits compares the same weights, and keeps a penalty that is too strong. A fit from scratch with C=1
# has weights that differ by more than 0.5; with tol = 1 / rows the warm fit agrees with it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6
cd "$work"
venv/bin/python - <<'PROGRAM'
import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression

ROWS, VALUES = 100_000, 300
random = np.random.default_rng(2)
ids = np.minimum(random.zipf(1.3, (ROWS, 3)), VALUES) - 1 + VALUES * np.arange(3)
features = sparse.csr_matrix((np.ones(ids.size), ids.reshape(-1), np.arange(0, ids.size + 1, 3)))
logits = random.normal(size=3 * VALUES)[ids].sum(1)
labels = random.random(ROWS) < 1 / (1 + np.exp(-logits))


def weights(tolerance, *inverse_penalties):
    model = LogisticRegression(solver="newton-cg", warm_start=True, tol=tolerance)
    for c in inverse_penalties:
        model.set_params(C=c).fit(features, labels)
    return model.coef_[0], int(model.n_iter_[0])


for tolerance in (1e-4, 1 / ROWS):
    (warm, steps), (fresh, _) = weights(tolerance, 0.1, 0.3, 1.0), weights(tolerance, 1.0)
    difference = float(np.abs(warm - fresh).max())
    print(f"tol={tolerance:g}: the last warm fit took {steps} steps, largest difference to a fresh fit {difference:.2g}")
    assert (steps == 0 and difference > 0.5) if tolerance == 1e-4 else (steps > 0 and difference < 0.1)
PROGRAM
