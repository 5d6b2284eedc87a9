#!/usr/bin/env bash
# DeepCTR-Torch 0.3.0: with validation data, dropout is off from the second epoch of a training on. fit puts the model
# into training mode once, before the epochs, and the evaluation after each epoch leaves it in evaluation mode. Nothing
# says so. The same training without validation data has dropout in all epochs, so measuring a model changes its
# weights.
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
from deepctr_torch.models import DeepFM

ROWS, EPOCHS = 512, 3
random = np.random.default_rng(0)
clicks = random.integers(0, 2, ROWS).astype(np.float64)


def trained(**options):
    """Train for three epochs. Return whether dropout was on in each training batch, and the weights."""
    torch.manual_seed(0)
    columns = [SparseFeat(name, 10, embedding_dim=4) for name in ("ad", "site")]
    rows = {name: np.random.default_rng(1).integers(0, 10, ROWS) for name in ("ad", "site")}
    model = DeepFM(columns, columns, dnn_hidden_units=(16,), dnn_dropout=0.5, device="cpu")
    model.compile("adam", "binary_crossentropy", metrics=["auc"])
    is_on = []

    def note(layer, inputs, output):
        if torch.is_grad_enabled():  # a training batch
            is_on.append(layer.training)

    model.dnn.dropout.register_forward_hook(note)
    with redirect_stdout(StringIO()):
        model.fit(rows, clicks, batch_size=ROWS // 2, epochs=EPOCHS, shuffle=False, verbose=0, **options)
    return is_on, torch.cat([each.detach().ravel() for each in model.parameters()])


rows = {name: random.integers(0, 10, ROWS) for name in ("ad", "site")}
plain, weights = trained()
validated, other_weights = trained(validation_data=(rows, clicks))
difference = (weights - other_weights).abs().max().item()
print(f"dropout in the two batches of each epoch: without validation {plain}, with validation {validated}")
print(f"largest difference of the weights {difference:.4f}")
assert plain == [True] * 6 and validated == [True] * 2 + [False] * 4 and difference > 1e-3
assert torch.equal(trained()[1], weights)
PROGRAM
venv/bin/python -W ignore program.py 2> errors.txt || { cat errors.txt >&2; exit 1; }
