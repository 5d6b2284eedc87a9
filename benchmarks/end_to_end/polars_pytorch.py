"""polars and PyTorch on a CPU: a Wide&Deep of the size that `auto.yaml` chooses for 400,000 rows.

    python -m benchmarks.end_to_end.polars_pytorch LOG SETTINGS   with these settings, in JSON
    python -m benchmarks.end_to_end.polars_pytorch LOG --search   the search over rate, L2, batch size and optimizer

The search goes through the values of one setting after the other, and keeps the best value of each. It prints each
setting's best AUC on valid and the seconds of processor time until it was reached, and chooses the setting that first
comes within 0.001 of the best AUC of all. Processor time hardly depends on other load. The last line is the chosen
setting in JSON.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from benchmarks.end_to_end.columns import (
    CATEGORIES,
    COLUMNS,
    INTEGERS,
    MIN_COUNT,
    Result,
    Stopping,
    measure,
    run,
    splits,
)

EMBEDDING_DIM, HIDDEN = 8, (128, 64)
MOST_EPOCHS, PATIENCE = 12, 2
SLACK = 0.001  # Settings within this AUC of the best one count as equally good.


@dataclass(frozen=True)
class Settings:
    """What the search chooses. SparseAdam updates only the rows of a batch and has no L2."""

    rate: float
    l2: float
    batch_size: int
    sparse: bool = False


FIRST = Settings(1e-3, 1e-4, 1200)
VALUES: dict[str, tuple[Any, ...]] = {"rate": (1e-3, 3e-3), "l2": (1e-5, 1e-4, 1e-3), "batch_size": (1200, 4800)}


class WideDeep(nn.Module):
    """Embeddings and numbers into a tower, plus a linear part over the same features."""

    def __init__(self, num_ids: int, num_numeric: int, sparse: bool) -> None:
        super().__init__()
        self.deep = nn.Embedding(num_ids, EMBEDDING_DIM, sparse=sparse)
        nn.init.uniform_(self.deep.weight, -0.01, 0.01)
        self.wide = nn.EmbeddingBag(num_ids, 1, mode="sum", sparse=sparse)
        nn.init.zeros_(self.wide.weight)
        self.linear = nn.Linear(num_numeric, 1)
        widths = (len(CATEGORIES) * EMBEDDING_DIM + num_numeric, *HIDDEN)
        layers = [(nn.Linear(inputs, outputs), nn.ReLU()) for inputs, outputs in itertools.pairwise(widths)]
        self.tower = nn.Sequential(*itertools.chain(*layers), nn.Linear(HIDDEN[-1], 1))

    def forward(self, ids: Tensor, numeric: Tensor) -> Tensor:
        """Return the logits [B] for ids [B, 26] and numbers [B, N]."""
        deep = torch.cat([self.deep(ids).flatten(1), numeric], 1)
        logits: Tensor = (self.tower(deep) + self.wide(ids) + self.linear(numeric))[:, 0]
        return logits


def read(log: Path) -> tuple[dict[str, list[Tensor]], int]:
    """Return ids, numbers and labels of each split, and the number of ids. Id 0 stands for all rare values."""
    schema = {name: pl.String if name in CATEGORIES else pl.Float32 for name in COLUMNS}
    rows = pl.read_csv(log, separator="\t", has_header=False, schema=schema, quote_char=None)
    parts, ids, num_ids = splits(len(rows)), [], 1
    train = rows[parts["train"]]
    for name in CATEGORIES:
        counts = train[name].fill_null("").value_counts()
        values = counts.filter(pl.col("count") >= MIN_COUNT)[name]
        numbers = pl.int_range(num_ids, num_ids + len(values), eager=True)
        ids.append(rows[name].fill_null("").replace_strict(values, numbers, default=0, return_dtype=pl.Int64))
        num_ids += len(values)
    numeric = rows.select(
        *((pl.col(name).sign() * pl.col(name).abs().log1p()).fill_null(0) for name in INTEGERS),
        *(pl.col(name).is_null().cast(pl.Float32).alias(f"{name}_missing") for name in INTEGERS),
    ).to_numpy()
    of_train = numeric[parts["train"]]
    numeric = (numeric - of_train.mean(0)) / (of_train.std(0) + 1e-6)
    columns = pl.DataFrame(ids).to_numpy(), numeric.astype(np.float32), rows["label"].to_numpy()
    return {name: [torch.from_numpy(column[part]) for column in columns] for name, part in parts.items()}, num_ids


def optimizers(model: WideDeep, settings: Settings) -> list[torch.optim.Optimizer]:
    """Return fused Adam for all weights, or SparseAdam for the tables and fused Adam for the rest."""
    if not settings.sparse:
        return [torch.optim.Adam(model.parameters(), settings.rate, weight_decay=settings.l2, fused=True)]
    tables = [model.deep.weight, model.wide.weight]
    dense = [*model.linear.parameters(), *model.tower.parameters()]
    return [torch.optim.SparseAdam(tables, settings.rate), torch.optim.Adam(dense, settings.rate, fused=True)]


@torch.no_grad()
def scored(model: WideDeep, part: list[Tensor]) -> Result:
    """Return AUC and log loss of a split."""
    ids, numeric, labels = part
    pairs = zip(ids.split(20_000), numeric.split(20_000), strict=True)
    return measure(torch.cat([model(*pair) for pair in pairs]).sigmoid().numpy(), labels.numpy())


def fit(
    parts: dict[str, list[Tensor]], num_ids: int, settings: Settings, clock: Callable[[], float] = time.time
) -> Result:
    """Train until the log loss on valid has not fallen for PATIENCE epochs. Return the metrics of the test rows.

    `clock` gives the times of the evaluations on valid.
    """
    torch.manual_seed(1)
    train, stopping = parts["train"], Stopping(PATIENCE, clock)
    model = WideDeep(num_ids, train[1].shape[1], settings.sparse)
    steps, loss = optimizers(model, settings), nn.BCEWithLogitsLoss()
    for _ in range(MOST_EPOCHS):
        for rows in torch.randperm(len(train[0])).split(settings.batch_size):
            ids, numeric, labels = (column[rows] for column in train)
            loss(model(ids, numeric), labels).backward()
            for step in steps:
                step.step()
                step.zero_grad()
        if stopping.is_over(scored(model, parts["valid"]), lambda: [w.detach().clone() for w in model.parameters()]):
            break
    with torch.no_grad():
        for weight, best in zip(model.parameters(), stopping.best, strict=True):  # type: ignore[call-overload]
            weight.copy_(best)
    result = scored(model, parts["test"])
    result.valid = stopping.valid
    return result


def search(log: Path) -> Settings:
    """Try settings, print what each reached, and return the fastest of those that are as good as the best."""
    data, tried = read(log), dict[Settings, list[tuple[float, float]]]()

    def best_auc(settings: Settings) -> float:
        if settings not in tried:
            start = time.process_time()
            valid = fit(*data, settings, time.process_time).valid
            tried[settings] = [(at - start, auc) for at, auc in valid]
            seconds, auc = max(tried[settings], key=lambda each: each[1])
            print(f"{settings}: valid AUC {auc:.4f} after {seconds:.1f} s, {len(valid)} epochs", flush=True)
        return max(auc for _, auc in tried[settings])

    best = FIRST
    for name, values in VALUES.items():
        best = max((replace(best, **{name: value}) for value in values), key=best_auc)
    for rate in VALUES["rate"]:
        best_auc(Settings(rate, 0.0, best.batch_size, sparse=True))
    enough = max(map(best_auc, tried)) - SLACK
    reached = {key: min((at for at, auc in valid if auc >= enough), default=np.inf) for key, valid in tried.items()}
    return min(reached, key=lambda settings: reached[settings])


if __name__ == "__main__":
    if "--search" in sys.argv:
        print(json.dumps(asdict(search(Path(sys.argv[1])))))
    else:
        run(lambda log: fit(*read(log), Settings(**json.loads(sys.argv[2]))))
