"""The model of the scoring peers, in PyTorch as users write it, with no code of this project."""

from __future__ import annotations

import torch

WIDTH, HIDDEN = 16, (400, 400, 400)
INTEGERS = [f"I{i}" for i in range(1, 14)]
CATEGORIES = [f"C{i}" for i in range(1, 27)]


class WideDeep(torch.nn.Module):
    """An embedding of all fields, a tower on them, one weight an id beside it."""

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
