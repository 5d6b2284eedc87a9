"""The guard after a part: a model that scores the last parts worse than the one that is served is not published.
And how far a part's values and scores are from those of the last parts.

Of each part some rows are kept in a file, so that a process that was killed decides as one that was not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from app.checkpoint.write import step_name
from app.online.state import write_arrays
from app.scoring.distribution import Distribution, stability_index
from app.scoring.predictor import Predictor
from common.files import make_folder
from data_prep.options.log_format import TIME_FEATURES, LogFormat
from data_prep.prepared.examples import Examples, concatenate
from data_prep.prepared.schema import Schema

log = logging.getLogger("app")

SAMPLE_ROWS = 4000  # of a part
LAST_PARTS = 3  # whose rows a candidate is judged by
MOST_WORSE = 0.02  # default of the share by which its log loss may be above the served model's
CHANCE = 2.0  # standard errors of the mean difference of losses


class Samples:
    """Rows of the last parts, in files of a folder."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._folder = folder

    def add(self, step: int, rows: Examples, keep: int) -> str:
        """Store rows of the part that ended with a step, and return the file's name. With `keep`, so many stay."""
        name = f"{step_name(step)}.npz"
        self._write(name, _sampled(rows))
        of_parts = sorted(self._folder.glob("step-????????.npz"))  # others are renumbered ones
        oldest = of_parts[-(keep + LAST_PARTS) :][0].stem if keep else ""
        for path in self._folder.glob("step-*.npz"):
            if path.stem[: len(oldest)] < oldest:
                path.unlink()
        return name

    def renumber(self, names: Sequence[str], new_ids: np.ndarray, step: int) -> list[str]:
        """Write these files anew with the ids `new_ids[i]` in place of i after a step, and return their names."""
        renumbered = []
        for name, rows in self._load(names):
            renumbered.append(f"{name[: len(step_name(0))]}-{step:08d}.npz")
            self._write(renumbered[-1], replace(rows, ids=new_ids[rows.ids]))
        return renumbered

    def read(self, names: Sequence[str]) -> Examples:
        """Return the rows of these files, one of which at least must be there and whole."""
        return concatenate([rows for _, rows in self._load(names)])

    def _write(self, name: str, rows: Examples) -> None:
        weights = np.ones(len(rows), np.float32) if rows.weights is None else rows.weights
        write_arrays(self._folder / name, ids=rows.ids, numeric=rows.numeric, labels=rows.labels, weights=weights)

    def _load(self, names: Sequence[str]) -> Iterator[tuple[str, Examples]]:
        """Yield the names and rows of the files. One that is missing or damaged is left out, with a warning."""
        for name in names:
            path = self._folder / name
            try:
                yield name, Examples(**np.load(path))
            except (OSError, ValueError, EOFError, BadZipFile, TypeError) as error:
                log.warning("warning: models are compared without the rows of %s: %s", path, error)

    def shift(self, names: Sequence[str], part: Examples, schema: Schema, log_format: LogFormat) -> dict[str, Any]:
        """Return the field whose values in a part are farthest from those in these files, and its PSI.

        Fields of the time are left out: a part of one day has one weekday, which says nothing of the log.
        """
        earlier = [rows for _, rows in self._load(names)]
        if not earlier:
            return {}
        here, before = Distribution(schema), Distribution(schema)
        for counts, rows in ((here, _sampled(part)), (before, concatenate(earlier))):
            counts.add(rows.ids, rows.numeric, np.zeros(len(rows)))
        of_time = {f"{name}{ending}" for name in log_format.time_fields for ending in TIME_FEATURES.values()}
        for field in here.drift_from(before):
            if of_time.isdisjoint(field["field"].split("*")):  # nor their crosses
                return {"shifted_field": field["field"], "fields_psi": field["psi"]}
        return {}


def _sampled(rows: Examples) -> Examples:
    weights = np.ones(len(rows), np.float32) if rows.weights is None else rows.weights
    counting = np.flatnonzero(weights > 0)
    return rows.take(counting[:: -(-len(counting) // SAMPLE_ROWS)])


def scores_shift(scores: np.ndarray, recent: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the PSI between a part's counts of scores and those of the last parts, if they have any."""
    before = [counts["scores"] for counts in recent if counts.get("scores")]
    return {"scores_psi": float(stability_index(scores[None], np.sum(before, 0)[None])[0])} if before else {}


def served_logits(served: Predictor, rows: Examples, schema: Schema) -> np.ndarray | None:
    """Return the logits [n] of a bundle, for which ids that it lacks are out of vocabulary. None for another model.

    `schema` is that of the ids.
    """
    ours, theirs = ([(f.name, f.oov_ids, f.max_length) for f in each.categorical] for each in (schema, served.schema))
    if ours != theirs or served.schema.numeric != schema.numeric:
        return None
    fields = zip(served.schema.categorical, schema.categorical, strict=True)
    if any(there != here for old, new in fields for there, here in zip(old.id_ranges, new.id_ranges, strict=False)):
        return None  # its ids are those of other values
    of_positions = np.repeat([oov[0] for _, oov, _ in ours], [length for _, _, length in ours])
    ids = np.where(rows.ids >= served.schema.vocabulary_size, of_positions, rows.ids).astype(rows.ids.dtype)
    return served.logits_of_ids(ids, rows.numeric)


def why_worse(candidate: np.ndarray, served: np.ndarray, rows: Examples, most_worse: float) -> str:
    """Return why a candidate with these logits [n] must not be served in place of a model with others, else ""."""
    losses, served_losses = (
        np.logaddexp(0, logits.astype(np.float64)) - rows.labels * logits for logits in (candidate, served)
    )
    weights = rows.weights
    loss, served_loss = (float(np.average(each, weights=weights)) for each in (losses, served_losses))
    error = float(np.std(losses - served_losses)) / np.sqrt(len(rows))
    if loss - served_loss <= max(most_worse * served_loss, CHANCE * error):
        return ""
    return (
        f"its log loss on {len(rows):,} rows of the last parts is {loss:.4f}, that of the served model "
        f"{served_loss:.4f}: worse by more than {most_worse:.0%} (--most-worse)"
    )
