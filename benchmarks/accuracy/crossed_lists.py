"""Measure the worth of a cross with a list: clicks that follow a user's taste for one of a row's genres.

    python -m benchmarks.accuracy.crossed_lists [--rows 40000] [--taste 1.5] [--most 4] [--seeds 1] [--work FOLDER]

With `--taste 0` clicks do not depend on the pair of user and genre. With `--most 1` each row has a single genre.
Each log is prepared three times: without crosses, and with the cross [[user, genres]], whose weights are the mean or
the sum over a row's pairs of user and genre. Two models are trained on each: the recipe few_rows and auto. A pair
occurs in only some tens of rows, so few_rows gets SETTINGS, which let the weights of pairs grow; auto keeps its own
settings. Both are compared with logistic regression on the same rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from benchmarks.accuracy.recipes import ALL, Data, Figures, prepare, regression, train
from benchmarks.harness.commands import work_folder
from benchmarks.harness.timing import new_parser, print_result

RECIPE = "few_rows"
SETTINGS = ("wide_optimizer.learning_rate=0.3", "wide_optimizer.l2=0.003", "train.epochs=20")
USERS, GENRES, MOST_GENRES, TASTE = 300, 20, 4, 1.5
PREPARED = {"without": (), "mean": ("prepare.crosses=[[user,genres]]",), "sum": ("prepare.crosses=[[user,genres]]",)}


def write_log(folder: Path, rows: int, seed: int, taste: float = TASTE, most: int = MOST_GENRES) -> Path:
    """Write a log whose rows have a user and one to `most` genres. Return its path.

    The click of a row follows the user's taste for one of the genres.
    """
    generator = np.random.default_rng(seed)
    tastes, of_user = generator.normal(0, taste, (USERS, GENRES)), generator.normal(0, 0.2, (USERS, 1))
    logits = of_user + generator.normal(0, 0.2, GENRES) + tastes - 1
    path = folder / f"log-{seed}.csv"
    with path.open("w", encoding="utf-8") as log:
        for _ in range(rows):
            user = generator.integers(USERS)
            genres = generator.choice(GENRES, generator.integers(1, most + 1), replace=False)
            click = generator.random() < 1 / (1 + np.exp(-logits[user, generator.choice(genres)]))
            log.write(f"{click:d},u{user},{'|'.join(f'g{genre}' for genre in genres)}\n")
    return path


def describe(folder: Path, pool: str) -> Path:
    path = folder / f"{pool}.yaml"
    columns = {"click": "label", "user": "string", "genres": "list"}
    lists = {"genres": {"separator": "|", "max_length": MOST_GENRES, "pool": pool}}
    path.write_text(yaml.safe_dump({"separator": ",", "columns": columns, "lists": lists}, sort_keys=False))
    return path


def measure(rows: int, seed: int, work: Path, taste: float = TASTE, most: int = MOST_GENRES) -> dict[str, Figures]:
    """Return AUC and log loss of each model on the test rows, for each way in PREPARED of preparing the same log."""
    log, found = write_log(work, rows, seed, taste, most), {}
    for name, crosses in PREPARED.items():
        pool = "sum" if name == "sum" else "mean"
        data = Data(f"{name}-{rows}-{taste}-{most}-{seed}", log, ("--data", str(describe(work, pool)), *crosses))
        prepared = prepare(data, RECIPE, work)
        model = train(prepared, RECIPE, (*SETTINGS, f"train.seed={seed}"), work)
        of_auto = train(prepared, "auto", (f"train.seed={seed}",), work)
        tested = {"wide&deep": model["test"], "auto": of_auto["test"], "regression": regression(prepared)}
        found[name] = {of: figures[ALL] for of, figures in tested.items()}
        texts = (f"  {of} {figures['auc']:.4f} ({figures['log_loss']:.4f})" for of, figures in found[name].items())
        print(f"seed {seed}, cross {name:8}" + "".join(texts), flush=True)
    return found


def main() -> None:
    parser = new_parser(__doc__, has_work=True)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--taste", type=float, default=TASTE, help="standard deviation of what a click follows")
    parser.add_argument("--most", type=int, default=MOST_GENRES, help="genres of a row")
    parser.add_argument("--seeds", type=int, default=1, help="of the log and of the model")
    options = parser.parse_args()
    with work_folder(options.work) as work:
        of_log = work, options.taste, options.most
        results = [measure(options.rows, seed, *of_log) for seed in range(1, options.seeds + 1)]
    print_result(options, results=results)


if __name__ == "__main__":
    main()
