"""`python -m app bundle`, and `python -m app.cli.bundle` without MindSpore: check a bundle, or explain a score."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from app.cli.predict import main
from app.scoring.delta import fold
from app.scoring.predictor import Predictor
from common.packages import require


def add_parser(commands: Any) -> None:
    """Add the command to those of `python -m app`."""
    add_arguments(commands.add_parser("bundle", help="verify a bundle, or explain a row's score"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND")
    verify = subcommands.add_parser("verify", help="read and check every byte, score the golden rows")
    verify.add_argument("bundle", type=Path, metavar="BUNDLE")
    verify.set_defaults(command=_verify)
    folding = subcommands.add_parser("fold", help="write a delta and the bundles that it needs as one whole bundle")
    folding.add_argument("bundle", type=Path, metavar="DELTA")
    folding.add_argument("output", type=Path, metavar="BUNDLE", help="the new folder")
    folding.add_argument("--overwrite", action="store_true", help="replace an existing bundle")
    folding.set_defaults(command=_fold)
    explain = subcommands.add_parser("explain", help="show how each column of one line changes its score")
    explain.add_argument("bundle", type=Path, metavar="BUNDLE")
    explain.add_argument("line", metavar="LINE", help="a line of a log, or - for the first of standard input")
    explain.set_defaults(command=_explain)


def _verify(arguments: argparse.Namespace) -> int:
    require("onnxruntime")
    predictor = Predictor.open(arguments.bundle)
    num_golden = predictor.verify()
    size = sum(record["size_bytes"] for record in predictor.manifest.files.values())
    print(
        f"{arguments.bundle}: {len(predictor.manifest.files)} files, {size:,} bytes, all as they were written; the "
        f"{num_golden} golden rows score the same"
    )
    return 0


def _fold(arguments: argparse.Namespace) -> int:
    manifest = fold(arguments.bundle, arguments.output, arguments.overwrite)
    print(f"{arguments.output}: {manifest.rows['num_rows']:,} rows, generation {manifest.generation}")
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    require("onnxruntime")
    predictor = Predictor.open(arguments.bundle)
    line = sys.stdin.readline() if arguments.line == "-" else arguments.line
    (score,), (logit,) = predictor.score([line]), predictor.logits([line])
    print(f"score {score:.6f}, logit {logit:.6f}; by column: value, wide weight, change of the logit by the value")
    for effect in predictor.explain(line):
        unknown = "" if effect.in_vocabulary in (None, True) else " (out of vocabulary)"
        value = "(missing)" if effect.value is None else f"{effect.value}{unknown}"
        print(f"  {effect.field:12} {value:32} {effect.wide:+.6f} {effect.change:+.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(add_arguments, __spec__.name))
