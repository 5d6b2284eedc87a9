#!/usr/bin/env bash
# torch 2.13.0: optim.SGD with momentum on an embedding table with sparse gradients has a momentum buffer that grows
# with each step, because it adds sparse tensors without coalescing them. For a table of 100 rows of which each step
# touches 64, the buffer has about 15,000 rows after 300 steps, and grows further by about 50 rows a step. A coalesced
# copy has 100 rows. Memory and time per step grow without an error or a warning. The weights are right: those of dense
# gradients.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import warnings
from itertools import pairwise

import torch

ROWS, TOUCHED, STEPS = 100, 64, 300
torch.manual_seed(0)
start = torch.randn(ROWS, 4)
tables = [torch.nn.Embedding.from_pretrained(start.clone(), freeze=False, sparse=sparse) for sparse in (True, False)]
optimizers = [torch.optim.SGD(table.parameters(), lr=0.01, momentum=0.9) for table in tables]
stored, distinct = [], 0
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for step in range(1, STEPS + 1):
        ids = torch.randperm(ROWS)[:TOUCHED]  # distinct rows
        for table, optimizer in zip(tables, optimizers, strict=True):
            optimizer.zero_grad()
            (table(ids) ** 2).sum().backward()
            optimizer.step()
        buffer = optimizers[0].state[tables[0].weight]["momentum_buffer"]
        stored.append(buffer._nnz())
        if step in (1, 10, 100, STEPS):
            print(f"step {step:3}: {stored[-1]:6,} rows in the buffer, {buffer.coalesce()._nnz()} after coalescing")
difference = (tables[0].weight - tables[1].weight).abs().max().item()
print(f"largest difference from dense gradients {difference:.1g}; warnings {len(caught)}")
growth = [after - before for before, after in pairwise(stored)]
print(f"growth of the last 100 steps: {min(growth[-100:])} to {max(growth[-100:])} rows a step")
assert min(growth) > 0 and min(growth[-100:]) >= 30 and stored[-1] > 100 * ROWS and buffer.coalesce()._nnz() == ROWS
assert difference < 1e-4 and not caught
PROGRAM
venv/bin/python program.py 2> errors.txt || { cat errors.txt >&2; exit 1; }
