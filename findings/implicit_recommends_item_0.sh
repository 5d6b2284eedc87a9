#!/usr/bin/env bash
# implicit 0.7.3: if fewer items are left than are asked for, recommend fills the list with item 0 and a score of 0, and
# with items that the user has already, at a score of -3.4e38. filter_already_liked_items is on by default. A service that
# takes the ids and not the scores recommends item 0 several times, and items that it was told to leave out. There is no
# error, no warning, and no shorter list.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check implicit==0.7.3 scipy==1.17.1 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import numpy as np
from implicit.als import AlternatingLeastSquares
from scipy.sparse import csr_matrix

ITEMS, ASKED = 6, 10
clicks = csr_matrix(np.float32([[0, 1, 1, 1, 0, 0], [1, 0, 0, 1, 1, 0], [0, 1, 0, 0, 1, 1]]))
model = AlternatingLeastSquares(factors=2, iterations=5, random_state=0, num_threads=1)
model.fit(clicks, show_progress=False)
for user in range(3):
    ids, scores = model.recommend(user, clicks[user], N=ASKED)
    liked = set(clicks[user].indices.tolist())
    left = ids[: ITEMS - len(liked)].tolist()
    print(f"user {user} has {liked}, {ASKED} items asked for: {ids.tolist()}, scores {scores.round(2).tolist()}")
    assert len(ids) == ASKED and set(left) == set(range(ITEMS)) - liked
    assert set(ids[len(left) : ITEMS].tolist()) == liked and (scores[len(left) : ITEMS] < -3e38).all()
    assert (ids[ITEMS:] == 0).all() and (scores[ITEMS:] == 0).all()
PROGRAM
venv/bin/python -W ignore program.py 2> errors.txt || { cat errors.txt >&2; exit 1; }
