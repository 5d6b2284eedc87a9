#!/usr/bin/env bash
# DeepCTR-Torch 0.3.0: fit takes its steps along the sum of the losses of a batch, and reports their mean. So a step of
# SGD is larger by the factor of the batch size: with the same rate, a batch of 256 equal rows moves the weights 256
# times as far as a batch of one. The penalty l2_reg_embedding is added once per batch, so that its weight relative to
# the loss of a row is the smaller the larger the batch is. With the mean, the default of torch's binary_cross_entropy,
# neither would depend on the batch size.
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
import torch
from deepctr_torch.inputs import SparseFeat
from deepctr_torch.models import WDL

RATE = 1e-4


def one_step(rows, l2):
    """Train with a batch of equal rows. Return the steps of a wide weight by loss and penalty, and the loss shown."""
    columns = [SparseFeat("ad", 4, embedding_dim=4)]
    model = WDL(columns, columns, dnn_hidden_units=(4,), l2_reg_linear=l2, l2_reg_embedding=0, device="cpu")
    model.compile(torch.optim.SGD(model.parameters(), lr=RATE), "binary_crossentropy")
    weights = model.linear_model.embedding_dict["ad"].weight
    with torch.no_grad():
        weights.fill_(1.0)
    with redirect_stdout(StringIO()):
        history = model.fit({"ad": np.full(rows, 2)}, np.ones(rows), batch_size=rows, epochs=1, verbose=0)
    moved = (weights.detach() - 1)[:, 0] / RATE
    return moved[2].item(), -moved[0].item(), history.history["loss"][0]


for rows in (1, 16, 256):
    by_loss, _, loss = one_step(rows, 0.0)
    _, by_penalty, _ = one_step(rows, 0.5)
    print(f"batch of {rows:3}: loss shown {loss:.3f}, step by the loss {by_loss:.3f}, by the penalty {by_penalty:.3f}")
    slope = 1 - np.exp(-loss)  # of the mean loss of clicks, by the logit
    assert abs(by_loss / (rows * slope) - 1) < 0.02 and abs(by_penalty - 1) < 0.01
PROGRAM
venv/bin/python -W ignore program.py 2> errors.txt || { cat errors.txt >&2; exit 1; }
