"""The peer of benchmarks.serving: the same model in a FastAPI app with PyTorch, as users write it.

python -m benchmarks.serving.fastapi_pytorch VOCABULARY.parquet PORT
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.peers.torch_wide_deep import CATEGORIES, INTEGERS, WideDeep


class Request(BaseModel):
    """Rows by column."""

    rows: list[dict[str, Any]]


def main() -> None:
    vocabulary_path, port = sys.argv[1:]
    table = pq.read_table(vocabulary_path)
    maps: dict[str, dict[int, int]] = {name: {} for name in CATEGORIES}
    columns = (table[name].to_pylist() for name in ("field", "value", "id"))
    for field, value, number in zip(*columns, strict=True):
        maps.setdefault(field, {})[value] = number
    model = WideDeep(max(table["id"].to_pylist()) + 1).eval()
    app = FastAPI()

    @app.post("/v1/score")
    def score(request: Request) -> dict[str, list[float]]:
        numbers = [[row[name] or 0 for name in INTEGERS] for row in request.rows]
        missing = [[row[name] is None for name in INTEGERS] for row in request.rows]
        filled = np.array(numbers, np.float32)
        numeric = np.concatenate([np.sign(filled) * np.log1p(np.abs(filled)), np.array(missing, np.float32)], axis=1)
        ids = [[maps[name].get(row[name], 0) for name in CATEGORIES] for row in request.rows]
        with torch.inference_mode():
            return {"scores": model(torch.tensor(ids), torch.from_numpy(numeric)).tolist()}

    uvicorn.run(app, port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
