"""Measure online training on a drifting log and on real rows: AUC gained, processor time, and delay until served.

    python -m benchmarks.online [--questions drift fraction real lag] [--work FOLDER]

drift: a synthetic log that drifts, with one part for each day. `online` is compared with the frozen model, and with
models that are trained from scratch by `configs/auto.yaml` on all rows so far, after every fifth part. Processor time
is user and system time of whole commands. The time of `online` per part is that of one `online --once` over all parts,
with its start, scores, checkpoints and bundles, divided by the number of parts. It is compared with a fifth of the mean
time of `prepare` and `train` for a retraining, and with the whole time, which a retraining after every part would take.
`bounded` is `online` with --most-ids at half of the ids that it gives otherwise. It shows how much AUC is lost if
values expire.
fraction: the AUC on the rows of a later day, by the fraction of the log before it that was trained on in the order of
time: a tenth by `train`, and each further tenth by `online`.
real: the rows in the folder CRITEO_ROWS in time order. The first half of them comes before the first part.
lag: the time from the rename of a part into the folder until a request is answered with its weights. The same parts are
used with a small and with a large vocabulary, in turn.

Results that are in --work already are not computed again, so an interrupted comparison resumes. Without --work, a
temporary folder is used and removed at the end.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.commands import PROJECT, work_folder
from benchmarks.harness.timing import new_parser, print_result
from benchmarks.online.gain import NAMES, Stream, by_fraction, drifting, real_rows
from benchmarks.online.lag import compare, make_run
from data_prep.sources.shape import Drift
from data_prep.sources.synthetic import synthesize

DATA = PROJECT / "configs/data/drift.yaml"
TENTHS = 10  # Number of parts of the log of the question `fraction`, before the later day.
EVERY = 5  # A model is trained from scratch whenever this many further parts have come.


@dataclass(frozen=True)
class Sizes:
    """Sizes of what is measured."""

    part_rows: int = 100_000
    num_parts: int = 20
    num_warm: int = 20  # parts before the first one
    real_rows: int = 2500
    lag_warm: int = 2  # Number of parts on which the models of the question `lag` are trained before it is measured.
    lag_parts: int = 8
    vocabularies: tuple[int, ...] = (0, 5_000_000)  # at least


QUICK = Sizes(5000, 10, 10, 10_000, 2, 3, (0, 100_000))


def drift(folder: Path, sizes: Sizes, seed: int) -> dict[str, Any]:
    every = min(EVERY, sizes.num_parts // 2)
    result = drifting(Stream(_drifting_log(folder, sizes, seed), sizes.num_warm, DATA, folder / "run"), every)
    print(f"== a log that drifts, seed {seed}: AUC of each part, which no model has seen")
    print(f"{'':20} {' '.join(f'{name:>9}' for name in NAMES)}")
    for line in [*result["parts"], {"part": f"mean from part {every + 1} on", **result["means"]}]:
        aucs = (f"{line[name]:9.4f}" if name in line else f"{'-':>9}" for name in NAMES)
        print(f"{line['part']:20} {' '.join(aucs)}")
    print(
        f"of what a retrain after every {every} parts gains over the frozen model, online gains {result['share']:.1%}"
    )
    print(f"bounded: online with --most-ids {result['most_ids']:,}, half of the ids that it gives without")
    online, retrains = result["online_cpu_seconds"], result["retrain_cpu_seconds"]
    each = ", ".join(f"{seconds:.0f} s after part {after}" for after, seconds in retrains.items())
    print(
        f"processor time: online {online:.1f} s, {online / sizes.num_parts:.2f} s a part; retrains {each}\n"
        f"a part online over its share of a retrain after every {every}: {result['cpu_share']:.1%}, over a retrain "
        f"after each part: {result['cpu_share_as_fresh']:.1%}"
    )
    return result


def fraction(folder: Path, sizes: Sizes, seed: int) -> dict[str, Any]:
    """Print and return the AUC on a later day by the fraction of the log that was trained on."""
    *files, later = _drifting_log(folder, sizes, seed)[: TENTHS + 1]
    run = folder / "fraction-run"
    run.mkdir(exist_ok=True)
    result = by_fraction(Stream(files, 1, DATA, run), later)
    print(f"== {TENTHS} parts of {sizes.part_rows:,} rows in the order of time, seed {seed}: AUC on the next part")
    for line in result["fractions"]:
        print(f"{line['fraction']:4.1f} of the log, {line['rows']:9,} rows: {line['auc']:.4f}")
    print(f"trained from scratch on all of it: {result['retrained']:.4f}; true probabilities: {result['best']:.4f}")
    return result


def real(folder: Path, sizes: Sizes, seed: int) -> dict[str, Any]:
    """Print and return how far the AUC of online training is above that of the frozen model on CRITEO_ROWS."""
    del seed
    log, parts = Path(os.environ["CRITEO_ROWS"]) / "train.txt", folder / "real-log"
    parts.mkdir(exist_ok=True)
    with log.open("rb") as rows:
        for number in itertools.count():
            if not (lines := list(itertools.islice(rows, sizes.real_rows))):
                break
            (parts / f"part-{number:05}.txt").write_bytes(b"".join(lines))
    files = sorted(parts.glob("*.txt"))
    run = folder / "real-run"
    run.mkdir(exist_ok=True)
    result = real_rows(Stream(files, len(files) // 2, None, run))
    means = result["means"]
    print(
        f"== real rows, {result['parts']} parts of {sizes.real_rows:,}: online {means['online']:.4f}, "
        f"frozen {means['frozen']:.4f}"
    )
    print(f"online - frozen {result['shown']}")
    return result


def lag(folder: Path, sizes: Sizes, seed: int) -> dict[str, Any]:
    """Print the seconds from the closing of a part until an answer comes from its weights, and return the figures."""
    files = _drifting_log(folder, sizes, seed)
    folders = [folder / f"lag-{number}" for number in range(len(sizes.vocabularies))]
    for each, vocabulary in zip(folders, sizes.vocabularies, strict=True):
        make_run(each, files[: sizes.lag_warm], DATA, vocabulary)
    found = compare(folders, files[sizes.lag_warm :][: sizes.lag_parts])
    print(f"== parts of {sizes.part_rows:,} rows: seconds from closed to served")
    results = []
    for online in found:
        low, median, p95 = np.quantile(online.seconds, [0.05, 0.5, 0.95])
        print(
            f"vocabulary {online.vocabulary:9,}: median {median:.2f}, 5 of 100 below "
            f"{low:.2f}, 5 above {p95:.2f}, {len(online.seconds)} parts"
        )
        results.append({"vocabulary": online.vocabulary, "seconds": online.seconds, "median": median, "p95": p95})
    ratio = results[-1]["median"] / results[0]["median"]
    print(f"the large vocabulary over the small one: {ratio:.2f}")
    return {"vocabularies": results, "p95": max(result["p95"] for result in results), "growth": ratio}


def _drifting_log(folder: Path, sizes: Sizes, seed: int) -> Sequence[Path]:
    log = folder / f"log-{seed}"
    if not log.is_dir():
        rows = (sizes.num_warm + sizes.num_parts) * sizes.part_rows
        synthesize(log, rows, seed, drift=Drift(seed, sizes.part_rows), part_rows=sizes.part_rows)
    return sorted(log.glob("*.txt"))


QUESTIONS = {"drift": drift, "fraction": fraction, "real": real, "lag": lag}


def main() -> None:
    parser = new_parser(__doc__, has_work=True)
    parser.add_argument("--questions", nargs="+", choices=tuple(QUESTIONS), default=tuple(QUESTIONS))
    parser.add_argument("--seed", type=int, default=11, help="of the log that drifts (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    options = parser.parse_args()
    result: dict[str, Any] = {}
    with work_folder(options.work) as folder:
        (folder / "run").mkdir(exist_ok=True)
        for name in options.questions:
            if name == "real" and "CRITEO_ROWS" not in os.environ:
                print("== real rows: left out, as CRITEO_ROWS names no folder with train.txt")
                continue
            result[name] = QUESTIONS[name](folder, QUICK if options.quick else Sizes(), options.seed)
    print_result(options, **result)


if __name__ == "__main__":
    main()
