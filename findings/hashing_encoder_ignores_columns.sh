#!/usr/bin/env bash
# category_encoders 2.11.2: HashingEncoder hashes a value without the name of its column, so columns are not told apart,
# however many components there are. The rows (user 17, item 4) and (user 4, item 17) are encoded the same, and so are
# all rows with the same values in another order. For clicks that depend on which value is whose, a logistic regression
# on the encoding is no better than chance. FeatureHasher of scikit-learn 1.9.1 hashes "column=value" and tells them
# apart.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check category-encoders==2.11.2 scikit-learn==1.9.1 \
    pandas==3.0.6 numpy==2.4.6 scipy==1.17.1
cd "$work"
cat > program.py <<'PROGRAM'
import category_encoders
import numpy as np
import pandas as pd
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

COMPONENTS = 4096
pair = pd.DataFrame({"user": ["17", "4"], "item": ["4", "17"]})
random = np.random.default_rng(0)
log = pd.DataFrame(random.integers(0, 20, (4000, 2)).astype(str), columns=["user", "item"])
clicks = log["user"].astype(int) > log["item"].astype(int)


def encoded(rows):
    """Return the rows as HashingEncoder and as FeatureHasher encode them."""
    encoder = category_encoders.HashingEncoder(n_components=COMPONENTS, cols=["user", "item"])
    hasher = FeatureHasher(COMPONENTS, input_type="dict")
    return {
        "HashingEncoder": encoder.fit_transform(rows).to_numpy(),
        "FeatureHasher": hasher.transform(rows.to_dict("records")).toarray(),
    }


pairs, logs = encoded(pair), encoded(log)
for name, rows in logs.items():
    scores = LogisticRegression().fit(rows[:3000], clicks[:3000]).predict_proba(rows[3000:])[:, 1]
    auc, same = roc_auc_score(clicks[3000:], scores), bool((pairs[name][0] == pairs[name][1]).all())
    print(f"{name:15}swapped values give the same row: {same}; AUC {auc:.2f}")
    assert same == (name == "HashingEncoder")
    assert (auc < 0.6) if same else (auc > 0.95)
PROGRAM
venv/bin/python -W ignore program.py
