#!/usr/bin/env bash
# DeepCTR-Torch 0.3.0: ids above 2^24 = 16,777,216 look up the embedding of another id, without an error. The models put
# ids and numbers into one float32 tensor, which holds whole numbers exactly only up to 2^24, and make them integers
# again for the lookup. So each odd id above 2^24 gets the row of an even id beside it, and two users one embedding. Row
# 16,777,219 of a table of 16,777,224 is never trained. Ids below 2^24 are looked up as they are.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 deepctr-torch==0.3.0 requests==2.34.2 \
    tqdm==4.70.1 scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
from deepctr_torch.inputs import SparseFeat
from deepctr_torch.models import WDL

ROWS = 2**24 + 8
columns = [SparseFeat("user", ROWS, embedding_dim=1)]
model = WDL(columns, columns, dnn_hidden_units=(4,), l2_reg_embedding=0, l2_reg_linear=0, device="cpu")
model.compile("sgd", "binary_crossentropy")
table = model.embedding_dict["user"]
looked_up = []
table.register_forward_hook(lambda layer, inputs, output: looked_up.extend(inputs[0].ravel().tolist()))
for given, right in ((np.arange(6), True), (np.arange(2**24 - 3, 2**24 + 1), True), (2**24 + np.arange(1, 7), False)):
    looked_up.clear()
    scores = model.predict({"user": given})
    print(f"given {given.tolist()}, looked up {looked_up}, {len(np.unique(scores))} scores")
    assert (looked_up == given.tolist()) == right and len(np.unique(scores)) == len(set(looked_up))
assert looked_up == [2**24 + even for even in (0, 2, 4, 4, 4, 6)]
before = table.weight.detach().clone()
with redirect_stdout(StringIO()):
    model.fit({"user": np.array([2**24 + 3, 5])}, np.array([1.0, 0.0]), verbose=0)
trained = (table.weight.detach() != before).nonzero()[:, 0].tolist()
print(f"trained with the ids {2**24 + 3} and 5, rows changed: {trained[:9]}")
assert trained == [5, 2**24 + 4]
PROGRAM
venv/bin/python -W ignore program.py 2> errors.txt || { cat errors.txt >&2; exit 1; }
