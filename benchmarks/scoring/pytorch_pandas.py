"""The peer of benchmarks.scoring: a log scored by PyTorch and pandas as users write it, with no code of this project.

    python -m benchmarks.scoring.pytorch_pandas LOG VOCABULARY.parquet

pandas reads chunks of the log, a dictionary maps each column's values to ids, PyTorch looks rows up and runs the tower.
"""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch

CHUNK_ROWS = 10_000
WIDTH, HIDDEN = 16, (400, 400, 400)
INTEGERS = [f"I{i}" for i in range(1, 14)]
CATEGORIES = [f"C{i}" for i in range(1, 27)]


class WideDeep(torch.nn.Module):
    """A Wide&Deep model: an embedding of all fields with a tower on it, and one weight for each id."""

    def __init__(self, num_ids: int) -> None:
        super().__init__()
        self.deep, self.wide = torch.nn.Embedding(num_ids, WIDTH), torch.nn.Embedding(num_ids, 1)
        widths = (len(CATEGORIES) * WIDTH + 2 * len(INTEGERS), *HIDDEN)
        layers: list[torch.nn.Module] = []
        for i in range(len(HIDDEN)):
            layers += [torch.nn.Linear(widths[i], widths[i + 1]), torch.nn.ReLU()]
        self.tower = torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], 1))
        self.wide_numeric = torch.nn.Linear(2 * len(INTEGERS), 1)

    def forward(self, ids: torch.Tensor, numeric: torch.Tensor) -> torch.Tensor:
        deep = torch.cat([self.deep(ids).flatten(1), numeric], 1)
        logits = self.tower(deep) + self.wide_numeric(numeric) + self.wide(ids).sum(1)
        return torch.sigmoid(logits[:, 0])


def main() -> None:
    log, vocabulary_path = sys.argv[1:]
    vocabulary = pq.read_table(vocabulary_path).to_pandas()
    groups = vocabulary.groupby("field", observed=True)
    maps = {name: dict(zip(part["value"], part["id"], strict=True)) for name, part in groups}
    model, scores = WideDeep(int(vocabulary["id"].max()) + 1).eval(), []
    names, types = [*INTEGERS, *CATEGORIES], dict.fromkeys(CATEGORIES, str)
    with pd.read_csv(log, sep="\t", header=None, names=names, dtype=types, chunksize=CHUNK_ROWS) as chunks:
        for chunk in chunks:
            numbers = chunk[INTEGERS]
            missing = numbers.isna().to_numpy(np.float32)
            filled = numbers.fillna(0).to_numpy(np.float32)
            numeric = np.concatenate([np.sign(filled) * np.log1p(np.abs(filled)), missing], axis=1)
            ids = np.stack(
                [chunk[name].fillna("").map(maps[name]).fillna(0).to_numpy(np.int64) for name in CATEGORIES], axis=1
            )
            with torch.inference_mode():
                scores.append(model(torch.from_numpy(ids), torch.from_numpy(numeric)).numpy())
    pd.DataFrame({"score": np.concatenate(scores)}).to_csv(log + ".scores.csv")


if __name__ == "__main__":
    main()
