#!/usr/bin/env bash
# torch-rechub 0.9.0: CTRTrainer says that model.pth has the best weights in the validation data, but it has those of
# the last epoch, unless the patience for early stopping runs out before the training ends. With the defaults, 10 epochs
# and a patience of 10, this never happens. The trainer remembers the best weights, and takes them only in the branch
# that stops early. With a patience of 2, which ends the training below, the stored model is that of the best epoch.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 torch-rechub==0.9.0 pandas==3.0.6 \
    tqdm==4.70.1 scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import torch
from torch_rechub.basic.features import SparseFeature
from torch_rechub.models.ranking import WideDeep
from torch_rechub.trainers import CTRTrainer
from torch_rechub.utils.data import DataGenerator

USERS, ROWS = 400, 800
random = np.random.default_rng(0)
taste = random.normal(size=USERS)
users = random.integers(0, USERS, 2 * ROWS)
clicks = (random.random(2 * ROWS) < 1 / (1 + np.exp(-taste[users]))).astype(np.float32)  # A large model overfits these.


def trained(**options):
    """Train for up to 10 epochs. Return the validation AUC of each epoch and that of the stored model."""
    torch.manual_seed(0)
    feature = SparseFeature("user", vocab_size=USERS, embed_dim=8)
    model = WideDeep([feature], [feature], {"dims": [32], "activation": "relu"})
    settings = {"optimizer_params": {"lr": 0.01}, "n_epoch": 10, "model_path": str(Path.cwd())}
    trainer, aucs = CTRTrainer(model, **settings, **options), []
    by_trainer = trainer.evaluate
    trainer.evaluate = lambda *arguments: aucs.append(by_trainer(*arguments)) or aucs[-1]
    validation = {"user": users[ROWS:]}, clicks[ROWS:]
    rows = DataGenerator({"user": users[:ROWS]}, clicks[:ROWS])
    loaders = rows.generate_dataloader(*validation, *validation, batch_size=100)
    with redirect_stdout(StringIO()):
        trainer.fit(*loaders[:2])
        model.load_state_dict(torch.load("model.pth"))
        stored = by_trainer(model, loaders[1])
    return [round(auc, 4) for auc in aucs], round(stored, 4)


for options in ({}, {"earlystop_patience": 2}):
    aucs, stored = trained(**options)
    print(f"{options or 'defaults'}: AUC by epoch {aucs}, stored {stored}")
    assert max(aucs) > aucs[-1] + 0.005
    assert stored == (max(aucs) if options else aucs[-1])
PROGRAM
venv/bin/python -W ignore program.py 2> errors.txt || { cat errors.txt >&2; exit 1; }
