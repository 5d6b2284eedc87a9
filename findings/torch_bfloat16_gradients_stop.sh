#!/usr/bin/env bash
# torch 2.13.0 on the CPU: the gradient of an embedding row in bfloat16 stops growing at 256 occurrences of its id in a
# batch, and in float16 at 2,048. The rows' gradients are added in the type of the table, one occurrence at a time, and
# 256 + 1 is 256 in bfloat16. So the most frequent value of a column learns the least per row: 5,000 rows with the same
# gradient of 1 have a sum of 256. This holds for dense and sparse gradients of Embedding and for EmbeddingBag, whose
# forward sum of 5,000 rows is right to the precision of the type.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import torch

TABLES = {
    "Embedding": lambda kind: torch.nn.Embedding(2, 1, dtype=kind),
    "Embedding, sparse": lambda kind: torch.nn.Embedding(2, 1, dtype=kind, sparse=True),
    "EmbeddingBag": lambda kind: torch.nn.EmbeddingBag(2, 1, dtype=kind, mode="sum"),
}
COUNTS = (100, 1000, 5000)


def gradient(make, kind, count):
    """Return the gradient of the row of an id that occurs `count` times in the batch, each time with a gradient of 1."""
    table = make(kind)
    ids = torch.zeros(count, dtype=torch.long)
    rows = table(ids, torch.arange(count)) if isinstance(table, torch.nn.EmbeddingBag) else table(ids)
    rows.sum().backward()
    found = table.weight.grad
    return (found.to_dense() if found.is_sparse else found)[0].item()


for kind, most in ((torch.float32, 5000), (torch.float16, 2048), (torch.bfloat16, 256)):
    for name, make in TABLES.items():
        found = [gradient(make, kind, count) for count in COUNTS]
        print(f"{str(kind):15} {name:18} gradients of an id with {COUNTS} occurrences: {found}")
        assert found == [min(count, most) for count in COUNTS]
    bag = torch.nn.EmbeddingBag.from_pretrained(torch.ones(1, 1, dtype=kind), mode="sum")
    total = bag(torch.zeros(5000, dtype=torch.long), torch.tensor([0])).item()
    print(f"{str(kind):15} forward sum of 5,000 rows of 1: {total}")
    assert abs(total / 5000 - 1) < 0.004
PROGRAM
venv/bin/python program.py 2> errors.txt || { cat errors.txt >&2; exit 1; }
