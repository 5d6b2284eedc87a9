"""Compare transforms of numbers on generated logs, beside logistic regression on standardized numbers.

    python -m benchmarks.accuracy.scaled_numbers [--logs plain sentinel …] [--seeds 5] [--rows 2000]
                                 [--transforms log1p log1p_standardize] [--set section.key=value …] [--work FOLDER]

Each log has the columns click, minutes, income and country. The click's log odds are
(62 - minutes) / 6 + (52,000 - income) / 9,000 with minutes from 32 to 91, except where a log of LOGS says otherwise.
configs/auto.yaml trains on --rows rows that `describe` has described, and all contenders score TEST_ROWS further rows.
scikit-learn's LogisticRegression (C = 1) has the same rows: numbers standardized, with an indicator of missing cells,
and countries one-hot.
"""

from __future__ import annotations

import argparse
import io
import shutil
import statistics
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from app.api import describe, prepare, train
from benchmarks.harness.commands import work_folder
from benchmarks.harness.timing import new_parser, print_result
from common import yaml_settings
from common.packages import PROJECT

CONFIG = str(PROJECT / "configs/auto.yaml")
LOGS = {
    "plain": "as above",
    "noise": "clicks depend on the country alone",
    "missing": "minutes are missing in 30 % of the rows",
    "sentinel": "minutes are -999 in 10 % of the rows",
    "large sentinel": "income is 99,999,999 in 5 % of the rows",
    "heavy tail": "income is log-normal, with a deviation of 2 in its logarithm",
    "mostly zero": "income is 0 in 85 % of the rows, and geometric in the others",
}
TEST_ROWS = 20_000
SKLEARN = "scikit-learn"


def generate(log: str, seed: int, rows: int) -> pd.DataFrame:
    """Return the rows of a log of LOGS."""
    rng = np.random.default_rng([seed, list(LOGS).index(log)])
    minutes, income, country = rng.uniform(32, 91, rows), rng.normal(55_000, 13_000, rows), rng.integers(0, 30, rows)
    odds_of_minutes, odds_of_income = (62 - minutes) / 6, (52_000 - income) / 9_000
    if log == "noise":
        odds_of_minutes, odds_of_income = np.random.default_rng(7).normal(0, 1.2, 30)[country], np.zeros(rows)
    if log in ("missing", "sentinel"):
        is_other = rng.random(rows) < (0.3 if log == "missing" else 0.1)
        minutes = np.where(is_other, np.nan if log == "missing" else -999, minutes)
        odds_of_minutes = np.where(is_other, 0.8, odds_of_minutes)
    if log == "large sentinel":
        is_other = rng.random(rows) < 0.05
        income, odds_of_income = np.where(is_other, 99_999_999, income), np.where(is_other, 1.0, odds_of_income)
    if log == "heavy tail":
        income = np.exp(rng.normal(8, 2, rows))
        odds_of_minutes, odds_of_income = (62 - minutes) / 10, (np.log(income) - 8) / 2
    if log == "mostly zero":
        income = np.where(rng.random(rows) < 0.85, 0, rng.geometric(0.05, rows)).astype(float)
        odds_of_minutes, odds_of_income = (62 - minutes) / 10, 0.5 * np.log1p(income) - 0.4
    clicks = rng.random(rows) < 1 / (1 + np.exp(-odds_of_minutes - odds_of_income))
    countries = [f"k{number}" for number in country]
    return pd.DataFrame({"click": clicks.astype(int), "minutes": minutes, "income": income, "country": countries})


def measure(log: str, seed: int, options: argparse.Namespace, work: Path) -> dict[str, tuple[float, float]]:
    """Return AUC and log loss on the further rows, by transform and for scikit-learn."""
    rows, tested = generate(log, seed, options.rows), generate(log, 1_000 + seed, TEST_ROWS)
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    columns = (numbers, ["minutes", "income"]), (OneHotEncoder(handle_unknown="ignore"), ["country"])
    regression = make_pipeline(make_column_transformer(*columns), LogisticRegression(max_iter=1_000))
    scores = {SKLEARN: regression.fit(rows, rows["click"]).predict_proba(tested)[:, 1]}
    sections: dict[str, dict[str, Any]] = {}
    for word in options.set:
        for section, values in yaml_settings.parse_override(word).items():
            sections.setdefault(section, {}).update(values)
    for transform in options.transforms:
        for name in ("prepared", "run"):
            shutil.rmtree(work / name, ignore_errors=True)
        with redirect_stdout(io.StringIO()):
            prepare(rows, work / "prepared", CONFIG, describe(rows, label="click"), numeric_transform=transform)
            run = train(CONFIG, work / "prepared", work / "run", None, None, **sections)
            scores[transform] = np.asarray(run.predict(tested.drop(columns="click")))
    clicks = tested["click"]
    return {
        name: (float(roc_auc_score(clicks, each)), float(log_loss(clicks, each.astype(float))))
        for name, each in scores.items()
    }


def main() -> None:
    parser = new_parser(__doc__, has_work=True)
    parser.add_argument("--logs", nargs="*", choices=tuple(LOGS), default=tuple(LOGS))
    parser.add_argument("--transforms", nargs="*", default=["log1p", "log1p_standardize"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--set", nargs="*", default=[], metavar="section.key=value", help="changes to auto.yaml")
    options = parser.parse_args()
    results = {}
    with work_folder(options.work) as work:
        for log in options.logs:
            found = results[log] = [measure(log, 1 + seed, options, work) for seed in range(options.seeds)]
            means = {name: [statistics.fmean(of[name][i] for of in found) for i in (0, 1)] for name in found[0]}
            shown = "   ".join(f"{name} {auc:.4f} / {loss:.4f}" for name, (auc, loss) in means.items())
            above = [each[options.transforms[-1]][0] - each[SKLEARN][0] for each in found]
            pairs = f"last − {SKLEARN} {statistics.fmean(above):+.4f} [{min(above):+.4f} … {max(above):+.4f}]"
            print(f"{log:15} {shown}   {pairs}", flush=True)
    print_result(options, logs=results)


if __name__ == "__main__":
    main()
