"""A peer of benchmarks.serving: the same bundle's Predictor in a FastAPI app, as users write it.

python -m benchmarks.serving.fastapi_predictor BUNDLE PORT
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from app.scoring.predictor import Predictor


class Request(BaseModel):
    rows: list[dict[str, Any]]


def main() -> None:
    bundle, port = sys.argv[1:]
    predictor, app = Predictor.open(bundle), FastAPI()

    @app.post("/v1/score")
    def score(request: Request) -> dict[str, list[float]]:
        return {"scores": predictor.score(request.rows).tolist()}

    uvicorn.run(app, port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
