"""`python -m app export`: write a checkpoint's model as a bundle, a folder that scores raw rows without MindSpore."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any, get_args

from app.run.folder import run_or_checkpoint
from app.scoring.bundle_tables import TABLES, RowType
from app.scoring.predictor import Predictor
from app.scoring.trained.code_and_card import Evaluated
from app.scoring.trained.export_bundle import export
from app.scoring.trained.trained_model import open_trained
from common.arguments import add_shared
from common.packages import require
from common.text import show

log = logging.getLogger("app")

MOST_AUC_LOST = {"float32": 1e-5, "float16": 1e-5, "int8": 1e-4}


def add_parser(commands: Any) -> None:
    """Add the command `export` with its arguments to the parser of `python -m app`."""
    parser = commands.add_parser("export", help="write a bundle that scores raw rows without MindSpore")
    parser.add_argument(
        "source", type=Path, metavar="RUN|CHECKPOINT", help="run folder (its best checkpoint is exported) or checkpoint"
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the new folder")
    add_shared(parser, "--dataset", "--calibrate")
    parser.add_argument("--delta-from", type=Path, metavar="PARENT", help="write only the changes since this bundle")
    add_shared(parser, "--overwrite", help="replace an existing bundle")
    parser.add_argument("--mindir", action="store_true", help="also write the tower for MindSpore: tower.mindir")
    parser.add_argument("--onnx-ids", action="store_true", help="also write all as one ONNX model of ids: ids.onnx")
    add_shared(parser, "settings", metavar="rows=TYPE", help="embeddings as float32, float16 or int8")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command: write a bundle, compare it with the training code, print the metrics of both, and return the
    exit status.
    """
    require("onnx", "onnxruntime")
    parent = Predictor.open(arguments.delta_from) if arguments.delta_from else None
    rows: RowType = parent.tables[0].spec.dtype if parent else "float32"
    for word in arguments.settings:
        name, _, rows = word.partition("=")
        if name != "rows" or rows not in get_args(RowType):
            raise ValueError(f"argument {word!r}: expected rows=float32, rows=float16 or rows=int8")
    trained = open_trained(run_or_checkpoint(arguments.source), arguments.dataset)
    added = {"mindir": arguments.mindir, "onnx_ids": arguments.onnx_ids}
    evaluated = export(trained, arguments.bundle, rows, parent, arguments.calibrate, arguments.overwrite, **added)
    _print(arguments.bundle, rows, evaluated)
    return 0


def _print(path: Path, rows: RowType, evaluated: Evaluated | None) -> None:
    show(
        f"{path}: rows as {rows}, {(path / TABLES).stat().st_size:,} bytes of tables; {path / 'README.md'} describes it"
    )
    if evaluated is None:
        return
    drop = evaluated.trained.auc - evaluated.metrics.auc
    show(
        f"  on {evaluated.split}: AUC {evaluated.metrics.auc:.6f}, by the training code {evaluated.trained.auc:.6f}; "
        f"logits differ by at most {evaluated.largest_difference:.1e}"
    )
    if drop > MOST_AUC_LOST[rows]:
        log.warning("warning: rows=%s lose %.1e of AUC; expected at most %.0e", rows, drop, MOST_AUC_LOST[rows])
