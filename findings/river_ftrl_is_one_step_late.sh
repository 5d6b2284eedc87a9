#!/usr/bin/env bash
# river 0.26.1: optim.FTRLProximal uses the weights of one gradient earlier than the FTRL-Proximal of McMahan et al.
# (2013), which it cites. learn_one computes the weights from z and only then adds the gradient to z, so an ad scores
# 0.5 after its first row, whatever the label was. A weight whose z falls back within the penalty l1 also keeps its old
# value, where the algorithm sets it to 0: the L1 penalty makes no learned weight zero again.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check river==0.26.1 numpy==2.4.6 scipy==1.17.1 pandas==3.0.6
cd "$work"
cat > program.py <<'PROGRAM'
import math

from river import linear_model, optim

ALPHA, BETA, L2 = 0.5, 1.0, 0.0


def by_river(labels, l1):
    """Learn the rows of one ad. Return its weight after each row."""
    optimizer = optim.FTRLProximal(alpha=ALPHA, beta=BETA, l1=l1, l2=L2)
    model = linear_model.LogisticRegression(optimizer=optimizer, intercept_lr=0.0)
    weights = []
    for label in labels:
        model.learn_one({"ad": 1.0}, label)
        score = model.predict_proba_one({"ad": 1.0})[True]
        weights.append(round(math.log(score / (1 - score)), 6))
    return weights


def by_paper(labels, l1):
    """Do the same by algorithm 1 of the paper."""
    z = n = weight = 0.0
    weights = []
    for label in labels:
        gradient = 1 / (1 + math.exp(-weight)) - label
        z += gradient - (math.sqrt(n + gradient**2) - math.sqrt(n)) / ALPHA * weight
        n += gradient**2
        weight = 0.0 if abs(z) <= l1 else -(z - math.copysign(l1, z)) / ((BETA + math.sqrt(n)) / ALPHA + L2)
        weights.append(round(weight, 6))
    return weights


clicks = [True] * 4
river, paper = by_river(clicks, 0.0), by_paper(clicks, 0.0)
print(f"four clicks, l1=0: river {river}, paper {paper}")
assert river[0] == 0 < paper[0] and river[1] == paper[0]
mixed = [True] * 4 + [False] * 6
river, paper = by_river(mixed, 1.0), by_paper(mixed, 1.0)
print(f"four clicks and six others, l1=1: river {river}")
print(f"{'paper':>39} {paper}")
assert paper[-1] == 0 < river[-1] == river[-2]
PROGRAM
venv/bin/python program.py
