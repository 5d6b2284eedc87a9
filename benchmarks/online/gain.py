"""Measure how much AUC an online run gains over a frozen model and over retrained ones, and its processor time.

Every model is exported as a bundle, which then scores a part that the model has not seen. Letters: n rows of a part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.scoring.predictor import Predictor
from benchmarks.accuracy.paired_auc import Group, differences
from benchmarks.harness.commands import PROJECT, remembered, run_command
from benchmarks.harness.timing import children_seconds, seconds_of
from data_prep.prepared.truth import area_under_curve, read_truth, truth_path

AUTO = PROJECT / "configs/auto.yaml"
ALL_ROWS = [f"prepare.{split}_fraction={share}" for split, share in (("train", 1), ("valid", 0), ("test", 0))]
REPLICATES = 500
NAMES = ("frozen", "online", "bounded", "retrained", "best")


@dataclass(frozen=True)
class Stream:
    """A log in several files, in the order of its rows. The first `num_warm` files exist before the first part."""

    files: Sequence[Path]
    num_warm: int
    data: Path | None  # Description of the columns, or None for Criteo's.
    folder: Path  # Folder for everything that is made from the log.

    @property
    def parts(self) -> Sequence[Path]:
        return self.files[self.num_warm :]

    def train(self, num_parts: int) -> tuple[Path, float]:
        """Train auto.yaml on all rows before part `num_parts`.

        Return the run folder and the seconds of processor time.
        """
        name = f"after-{num_parts}"
        seconds = remembered(
            self.folder / f"{name}.json", lambda: seconds_of(lambda: self._train(name, num_parts), children_seconds)
        )
        return self.folder / name, seconds

    def _train(self, name: str, num_parts: int) -> None:
        link_files(self.files[: self.num_warm + num_parts], self.folder / f"{name}-log")
        prepare_and_train(self.folder, f"{name}-log", f"{name}-prepared", name, self.data)

    def bundle_of(self, run: Path) -> Predictor:
        """Return the bundle of a run, opened for scoring. Export it if it does not exist."""
        if not (bundle := self.folder / f"{run.name}-bundle").is_dir():
            run_command("app", "export", str(run), str(bundle), folder=self.folder)
        return Predictor.open(bundle, num_threads=2)

    def go_on_online(self, run: Path, name: str = "online", *more: str) -> tuple[list[Predictor], float]:
        """Run `online` with the options `more` over the parts, in folders called by `name`.

        Return the bundles before each part and after the last one, and the seconds of processor time.
        """
        link_files(self.parts, self.folder / "parts")
        bundles_name = f"{name}-bundles"
        words = ["parts", "--from", run.name, "--work", name, "--serve", bundles_name, "--once", "--keep", "0", *more]
        seconds = remembered(
            self.folder / f"{name}.json",
            lambda: seconds_of(lambda: run_command("app", "online", *words, folder=self.folder), children_seconds),
        )
        bundles = sorted((self.folder / bundles_name).glob("step-*"))
        if len(bundles) != len(self.parts) + 1:
            raise SystemExit(f"{len(bundles) - 1} of {len(self.parts)} parts have a bundle; look at {self.folder}")
        return [Predictor.open(bundle, num_threads=2) for bundle in bundles], seconds


def prepare_and_train(folder: Path, log: str, prepared: str, run: str, data: Path | None, *settings: str) -> None:
    """Prepare all rows of a log in a folder, and train auto.yaml, changed by `settings`, on them.

    `data` is the description of the log, or None for Criteo's format.
    """
    described = ["--data", str(data)] if data else []
    words = [log, prepared, "--config", str(AUTO), *described, *ALL_ROWS, "--overwrite"]
    run_command("data_prep", "prepare", *words, folder=folder)
    words = ["--config", str(AUTO), "--dataset", prepared, "--name", run, *settings]
    run_command("app", "train", *words, folder=folder)


def link_files(files: Sequence[Path], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for file in files:
        if not (link := folder / file.name).exists():
            link.symlink_to(file.resolve())


def labels_of(part: Path) -> np.ndarray:
    return np.array([line.startswith(b"1") for line in part.read_bytes().splitlines()])


def logits_of(model: Predictor, part: Path) -> np.ndarray:
    return np.asarray(model.logits(part.read_bytes().splitlines()))


def drifting(stream: Stream, every: int) -> dict[str, Any]:
    """Compare the AUC of `online` on the parts with that of models that are retrained after every `every` parts.

    A retrained model is scored on the parts until the next retrain. Parts before the first retrain do not count.
    `bounded` is an online run in which half of the values have ids.
    """
    num_parts = len(stream.parts)
    warm, _ = stream.train(0)
    frozen, (online, online_seconds) = stream.bundle_of(warm), stream.go_on_online(warm)
    most_ids = online[-1].schema.vocabulary_size // 2
    bounded, _ = stream.go_on_online(warm, "bounded", "--most-ids", str(most_ids))
    retrains = {after: stream.train(after) for after in range(every, num_parts, every)}
    lines: list[dict[str, Any]] = []
    for number, part in enumerate(stream.parts):
        labels, truth = labels_of(part), truth_path(part)
        models = {"frozen": frozen, "online": online[number], "bounded": bounded[number]}
        if number >= every:
            models["retrained"] = stream.bundle_of(retrains[number // every * every][0])
        aucs = {name: area_under_curve(logits_of(model, part), labels) for name, model in models.items()}
        best = area_under_curve(read_truth(truth, np.arange(len(labels)))[0], labels)
        lines.append({"part": part.name, "rows": len(labels), **aucs, "best": best})
    judged = lines[every:]
    # A part whose labels are all equal has no AUC, and is left out.
    means = {name: float(np.nanmean([line[name] for line in judged])) for name in NAMES}
    seconds = {after: of_retrain for after, (_, of_retrain) in retrains.items()}
    a_part, a_retrain = online_seconds / num_parts, float(np.mean(list(seconds.values())))
    return {
        "parts": lines,
        "means": means,
        "most_ids": most_ids,
        "share": (means["online"] - means["frozen"]) / (means["retrained"] - means["frozen"]),
        "online_cpu_seconds": online_seconds,
        "retrain_cpu_seconds": seconds,
        "cpu_share": a_part / (a_retrain / every),
        "cpu_share_as_fresh": a_part / a_retrain,
    }


def real_rows(stream: Stream) -> dict[str, Any]:
    """Compare `online` with the model that was trained before the first part, by paired differences of AUC."""
    warm, _ = stream.train(0)
    frozen, (online, _) = stream.bundle_of(warm), stream.go_on_online(warm)
    groups = [
        Group(labels_of(part), {"online": logits_of(model, part)[None], "frozen": logits_of(frozen, part)[None]})
        for part, model in zip(stream.parts, online[:-1], strict=True)
        if len(np.unique(labels_of(part))) == 2  # A part whose labels are all equal has no AUC.
    ]
    (difference,) = differences(groups, "online", ("frozen",), REPLICATES, seed=1)
    aucs = {
        name: float(np.mean([area_under_curve(group.scores[name][0], group.labels) for group in groups]))
        for name in ("online", "frozen")
    }
    return {"means": aucs, "difference": dataclasses.asdict(difference), "parts": len(groups), "shown": str(difference)}


def by_fraction(stream: Stream, later: Path) -> dict[str, Any]:
    """Return the AUC on the file `later`, whose rows come after those of the stream, by the fraction of the stream's
    rows that a model was trained on, in the order of time and once.

    Also return the AUC of a model that is trained from scratch on all rows of the stream, and that of the true
    probabilities.
    """
    warm, _ = stream.train(0)
    # The first tenth knows few of the rare values of the others, which is no fault of theirs.
    bundles, _ = stream.go_on_online(warm, "online", "--most-unknown", "1")
    labels = labels_of(later)
    num_rows = np.cumsum([len(labels_of(file)) for file in stream.files])[stream.num_warm - 1 :]
    aucs = [area_under_curve(logits_of(bundle, later), labels) for bundle in bundles]
    retrained = stream.bundle_of(stream.train(len(stream.parts))[0])
    return {
        "fractions": [
            {"fraction": float(rows / num_rows[-1]), "rows": int(rows), "auc": float(auc)}
            for rows, auc in zip(num_rows, aucs, strict=True)
        ],
        "retrained": float(area_under_curve(logits_of(retrained, later), labels)),
        "best": float(area_under_curve(read_truth(truth_path(later), np.arange(len(labels)))[0], labels)),
    }
