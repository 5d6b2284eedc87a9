"""Compare the time of whole commands of two commits, most of which is fixed: starting Python, imports, reading files.

    python -m benchmarks.end_to_end.commands 1.0.0              the working tree over tag 1.0.0
    python -m benchmarks.end_to_end.commands A B --only export  commit B over commit A
    python -m benchmarks.end_to_end.commands A --rows 2000000 --rounds 3 --only whole_way

Each commit prepares the same synthetic log and trains a model with `configs/auto.yaml`, untimed. Then the commands of
both commits take turns: describe the log, evaluate and export the model, and train on 2,000 rows. `whole_way` prepares
the log, trains for EPOCHS epochs, and evaluates on test; `auto.yaml` chooses the other settings. The packages of this
environment must suit both commits. A folder in place of a commit, such as a clone after `make setup`, has its own.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness.commands import checked_out, run_command, work_folder
from benchmarks.harness.timing import Timing, new_parser, print_result, side_by_side
from common.packages import PROJECT
from data_prep.sources.synthetic import synthesize

SMALL_ROWS, EPOCHS = 2_000, 3
TRAIN = ("app", "train", "--name", "run", "--config", "auto.yaml", "--dataset")
COMMANDS: dict[str, list[tuple[str, ...]]] = {
    "describe": [("data_prep", "describe", "../log.txt")],
    "evaluate": [("app", "evaluate")],
    "export": [("app", "export", "device_0", "bundle", "--overwrite")],
    "train": [(*TRAIN, "small")],
    "whole_way": [
        ("data_prep", "prepare", "../log.txt", "again", "--config", "auto.yaml", "--overwrite"),
        (*TRAIN, "again", f"train.epochs={EPOCHS}"),
        ("app", "evaluate", "--run", "run"),
    ],
}


def make_model(tree: Path, folder: Path) -> Path:
    """Prepare the logs beside `folder` and train a model in it with the sources in `tree`. Return the folder."""
    folder.mkdir()
    shutil.copy(tree / "configs" / "auto.yaml", folder)
    for log, prepared in (("log.txt", "prepared"), ("small.txt", "small")):
        run_command("data_prep", "prepare", f"../{log}", prepared, "--config", "auto.yaml", folder=folder, tree=tree)
    run_command("app", "train", "--dataset", "prepared", "--config", "auto.yaml", folder=folder, tree=tree)
    return folder


def run(command: str, tree: Path, folder: Path) -> None:
    """Run an entry of COMMANDS with the sources in `tree`, in the folder of its model."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    for each in COMMANDS[command]:
        # Both commits keep their compiled modules after the first call, even if the environment forbids it.
        run_command(*each, folder=folder, tree=tree, PYTHONDONTWRITEBYTECODE="")


def main() -> None:
    parser = new_parser(__doc__, has_work=True)
    parser.add_argument("commits", nargs="+", help="one commit, or two")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=tuple(COMMANDS), default=list(COMMANDS))
    options = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        work = stack.enter_context(work_folder(options.work))
        for name, rows in (("log.txt", options.rows), ("small.txt", SMALL_ROWS)):
            synthesize(work / name, rows, seed=1)
        trees = [stack.enter_context(checked_out(commit)) for commit in options.commits[:2]]
        trees += [PROJECT] * (2 - len(trees))
        names = [*options.commits, "working tree"][:2]
        folders = [make_model(tree, work / f"model-{place}") for place, tree in enumerate(trees)]
        for command in options.only:
            contenders = {
                name: partial(run, command, tree, folder)
                for name, tree, folder in zip(names, trees, folders, strict=True)
            }
            timings: dict[str, Timing] = side_by_side(contenders, options.rounds, warm_up=1)
            for name, timing in timings.items():
                print(f"{command:9} {name:14} {timing}", flush=True)
            old, new = (timings[name].median for name in names)
            figures[command] = {"old": old, "new": new, "ratio": float(np.divide(new, old))}
            print(f"{command:9} ratio {new / old:.2f}", flush=True)
    print_result(options, figures=figures)


if __name__ == "__main__":
    main()
