"""`python -m app bundle`: check a bundle, or explain its scores. `python -m app.cli.bundle` does the same where
MindSpore is not installed.
"""

from __future__ import annotations

from common.signals import die_quietly

# From here on, Ctrl-C ends the process silently. During the imports below, which take a moment, it would otherwise
# print a traceback.
if __name__ == "__main__":
    die_quietly()

import argparse
import sys
from pathlib import Path
from typing import Any

from app.cli.predict import main
from app.scoring.explain import ROWS, VALUES, describe_effects, effects_of_log, write_effects
from app.scoring.predictor import Predictor
from common.arguments import add_shared
from common.packages import require
from common.process import num_cores
from common.text import show


def add_arguments(parser: argparse.ArgumentParser) -> Any:
    """Add the subcommands verify, explain and effects to the parser. Return argparse's object to which a caller can add
    further subcommands.
    """
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND")
    verify = subcommands.add_parser("verify", help="read and check every byte, score the golden rows")
    add_shared(verify, "bundle")
    verify.set_defaults(command=_verify)
    explain = subcommands.add_parser("explain", help="show how each column of one line changes its score")
    add_shared(explain, "bundle")
    explain.add_argument("line", metavar="LINE", help="a line of a log, or - for the first line of standard input")
    explain.set_defaults(command=_explain)
    effects = subcommands.add_parser("effects", help="show how each column changes the scores of a log")
    add_shared(effects, "bundle")
    add_shared(effects, "inputs", help="log, with or without labels: files, folders, globs")
    effects.add_argument("--output", type=Path, metavar="FILE", help=".csv or .parquet file for all figures")
    add_shared(effects, "--rows", default=ROWS, help="number of lines to draw (%(default)s)")
    add_shared(effects, "--seed")
    effects.add_argument("--values", type=int, default=VALUES, metavar="N", help=f"values per category ({VALUES})")
    effects.set_defaults(command=_effects)
    return subcommands


def _verify(arguments: argparse.Namespace) -> int:
    require("onnxruntime")
    predictor = Predictor.open(arguments.bundle)
    num_golden = predictor.verify()
    size = sum(record["size_bytes"] for record in predictor.manifest.files.values())
    show(
        f"{arguments.bundle}: {len(predictor.manifest.files)} files, {size:,} bytes, all as they were written; the "
        f"{num_golden} golden rows score the same"
    )
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    require("onnxruntime")
    predictor = Predictor.open(arguments.bundle)
    line = sys.stdin.readline() if arguments.line == "-" else arguments.line
    (score,), (logit,) = predictor.score([line]), predictor.logits([line])
    show(f"score {score:.6f}, logit {logit:.6f}; by column: value, wide weight, change of the logit by the value")
    for effect in predictor.explain(line):
        unknown = "" if effect.in_vocabulary in (None, True) else " (out of vocabulary)"
        value = "(missing)" if effect.value is None else f"{effect.value}{unknown}"
        show(f"  {effect.field:12} {value:32} {effect.wide:+.6f} {effect.change:+.6f}")
    return 0


def _effects(arguments: argparse.Namespace) -> int:
    require("onnxruntime")
    output = arguments.output
    if output and (output.suffix not in (".csv", ".parquet") or not output.parent.is_dir()):
        raise ValueError(f"--output {output}: expected a .csv or .parquet file in a folder that is there")
    predictor = Predictor.open(arguments.bundle, num_cores())
    table = effects_of_log(predictor, arguments.inputs, arguments.rows, arguments.seed, arguments.values)
    show(describe_effects(table))
    if output:
        write_effects(table, output)
        show(output)
    return 0


if __name__ == "__main__":
    sys.exit(main(add_arguments, __spec__.name))
