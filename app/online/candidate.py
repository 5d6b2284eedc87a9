"""Decide if the model after a part may be published, and measure how much a part differs from the parts before it.

A model (the candidate) that scores rows of the last parts worse than the served model does is not published. Rows of
the last parts are kept in files, so that a process that was killed decides the same after its restart.
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

SAMPLE_ROWS = 4000  # Maximum number of rows that are kept from each part (file of the log), drawn evenly over the part.
# Number of most recent parts (files of the log) on whose kept rows a new model (candidate) and the served model are
# compared.
LAST_PARTS = 3
# Default of --most-worse: the share by which the log loss of a new model (the candidate) may exceed the served model's
# if the new model is to be published.
MOST_WORSE = 0.02
# The new model (the candidate) is also published if the difference between its mean loss and the served model's is at
# most this many standard errors, because such a difference may be chance.
CHANCE = 2.0


class Samples:
    """Encoded rows of the last parts (files of the log), kept in a folder with one .npz file for each part."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._folder = folder

    def add(self, step: int, rows: Examples, keep: int) -> str:
        """Write at most SAMPLE_ROWS of `rows` into a new file, and return the file's name. `rows` are the encoded rows
        of one part (file of the log), and training on this part ended at `step`.

        If `keep` is above 0, the files of the last `keep` + LAST_PARTS parts stay, and older files are removed.
        """
        name = f"{step_name(step)}.npz"
        self._write(name, _sampled(rows))
        # This pattern matches only the files that `add` writes. The files that `renumber` writes have longer names.
        of_parts = sorted(self._folder.glob("step-????????.npz"))
        oldest = of_parts[-(keep + LAST_PARTS) :][0].stem if keep else ""
        for path in self._folder.glob("step-*.npz"):
            if path.stem[: len(oldest)] < oldest:
                path.unlink()
        return name

    def renumber(self, names: Sequence[str], new_ids: np.ndarray, step: int) -> list[str]:
        """Copy the files of sampled rows `names`, and replace each vocabulary id i of the rows in the copies by
        `new_ids[i]`. Return the names of the copies, which contain the number `step`.
        """
        renumbered = []
        for name, rows in self._load(names):
            renumbered.append(f"{name[: len(step_name(0))]}-{step:08d}.npz")
            self._write(renumbered[-1], replace(rows, ids=new_ids[rows.ids]))
        return renumbered

    def read(self, names: Sequence[str]) -> Examples:
        """Return the rows of the files `names` together. A file that is missing or damaged is left out with a warning.
        At least one file must be readable.
        """
        return concatenate([rows for _, rows in self._load(names)])

    def _write(self, name: str, rows: Examples) -> None:
        weights = np.ones(len(rows), np.float32) if rows.weights is None else rows.weights
        arrays = {"ids": rows.ids, "numeric": rows.numeric, "labels": rows.labels, "vectors": rows.vectors}
        write_arrays(self._folder / name, **arrays, weights=weights)

    def _load(self, names: Sequence[str]) -> Iterator[tuple[str, Examples]]:
        """Yield the name and the rows of each file in `names`. Each file has rows of one part (file of the log). Skip a
        missing or damaged file, with a warning.
        """
        for name in names:
            path = self._folder / name
            try:
                yield name, Examples(**np.load(path))
            except (OSError, ValueError, EOFError, BadZipFile, TypeError) as error:
                log.warning("warning: models are compared without the rows of %s: %s", path, error)

    def shift(self, names: Sequence[str], part: Examples, schema: Schema, log_format: LogFormat) -> dict[str, Any]:
        """Find the field whose values are distributed most differently in the rows of `part` than in the files of
        earlier rows `names`. Return its name as `shifted_field` and its population stability index as `fields_psi`, or
        {} if no file can be read.

        Fields derived from times, such as the weekday, are left out: a part that covers one day, for example, has a
        single weekday, so these fields always differ.
        """
        earlier = [rows for _, rows in self._load(names)]
        if not earlier:
            return {}
        here, before = Distribution(schema), Distribution(schema)
        for counts, rows in ((here, _sampled(part)), (before, concatenate(earlier))):
            counts.add(rows, np.zeros(len(rows)))
        of_time = {f"{name}{ending}" for name in log_format.time_fields for ending in TIME_FEATURES.values()}
        for field in here.drift_from(before):
            # The population stability index (PSI) of a field is None if there are few rows. The name of a cross, which
            # combines the values of several fields, joins their names by *. Leave out crosses with time features, too.
            if field["psi"] is not None and of_time.isdisjoint(field["field"].split("*")):
                return {"shifted_field": field["field"], "fields_psi": field["psi"]}
        return {}


def _sampled(rows: Examples) -> Examples:
    weights = np.ones(len(rows), np.float32) if rows.weights is None else rows.weights
    counting = np.flatnonzero(weights > 0)
    return rows.take(counting[:: -(-len(counting) // SAMPLE_ROWS)])


def scores_shift(scores: np.ndarray, recent: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return how much the scores of a part (a file of the log) are distributed differently from those of the parts
    before it, as a mapping with the key `scores_psi`, the population stability index (PSI). Return {} if there are no
    earlier parts.

    `scores` [bins] are the part's numbers of rows in each bin of the score (`count_scores`). `recent` has the figures
    (`Part.counts`) of the earlier parts, in which the key `scores` holds the same numbers.
    """
    before = [counts["scores"] for counts in recent if counts.get("scores")]
    return {"scores_psi": float(stability_index(scores[None], np.sum(before, 0)[None])[0])} if before else {}


def served_logits(served: Predictor, rows: Examples, schema: Schema) -> np.ndarray | None:
    """Score encoded rows with the bundle `served`. Return the logits, float32 [n], or None if the bundle has other
    fields, or if its ids belong to other values.

    `schema` describes the ids in `rows`. Ids that were added after the bundle was written are scored as
    out-of-vocabulary values.
    """
    ours, theirs = ([(f.name, f.oov_ids, f.max_length) for f in each.categorical] for each in (schema, served.schema))
    if ours != theirs or (served.schema.numeric, served.schema.vectors) != (schema.numeric, schema.vectors):
        return None
    fields = zip(served.schema.categorical, schema.categorical, strict=True)
    if any(there != here for old, new in fields for there, here in zip(old.id_ranges, new.id_ranges, strict=False)):
        return None  # The bundle's vocabulary gives other ids to the values of a field, so it cannot score these rows.
    of_positions = np.repeat([oov[0] for _, oov, _ in ours], [length for _, _, length in ours])
    ids = np.where(rows.ids >= served.schema.vocabulary_size, of_positions, rows.ids).astype(rows.ids.dtype)
    return served.logits_of_encoded(replace(rows, ids=ids))


def why_worse(candidate: np.ndarray, served: np.ndarray, rows: Examples, most_worse: float) -> str:
    """Return why a new model (the candidate) must not replace the model that the service uses now, as a text, or "" if
    it may.

    `candidate` and `served` are the logits [n] of the two models for `rows`. `most_worse` is the share by which the
    candidate's log loss may exceed the served model's. A difference that may be chance (CHANCE) is no reason either.
    """
    losses, served_losses = (
        np.logaddexp(0, logits.astype(np.float64)) - rows.labels * logits for logits in (candidate, served)
    )
    weights = rows.weights
    loss, served_loss = (float(np.average(each, weights=weights)) for each in (losses, served_losses))
    # A single difference says nothing about how much the differences vary.
    error = float(np.std(losses - served_losses, ddof=1)) / np.sqrt(len(rows)) if len(rows) > 1 else np.inf
    if loss - served_loss <= max(most_worse * served_loss, CHANCE * error):
        return ""
    return (
        f"its log loss on {len(rows):,} rows of the last parts is {loss:.4f}, that of the served model "
        f"{served_loss:.4f}: worse by more than {most_worse:.0%} (--most-worse)"
    )
