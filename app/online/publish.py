"""Decide if the model after a part may be published, and publish the checkpoints of an online run: write each as a
bundle into a folder that a service watches. If possible, the bundle is a delta (it has only the rows that changed since
the bundle before), otherwise a whole bundle.

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

from app.checkpoint.read import Checkpoint
from app.checkpoint.write import EXPIRED_IDS, ModelState, step_name
from app.config.config import Config
from app.evaluation.measure import Scorer
from app.online.state import write_arrays
from app.scoring.bundle_folder import MANIFEST, chains, rank, read_manifests, short
from app.scoring.bundle_writer import new_bundle
from app.scoring.distribution import Distribution, stability_index
from app.scoring.predictor import Predictor
from app.scoring.trained.export_bundle import exported_model, finish_bundle, write_compared
from app.scoring.trained.trained_model import Trained
from app.scoring.trained.write_bundle import ExportedModel
from app.tables.interface import DEEP, WIDE
from common.files import lock_folder, make_folder
from data_prep.encoding.growing import GrowingVocabulary
from data_prep.options.log_format import TIME_FEATURES, LogFormat
from data_prep.prepared.data_files import union
from data_prep.prepared.examples import Examples, concatenate
from data_prep.prepared.schema import Schema

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


log = logging.getLogger("app")


class Publisher:
    """Writes the checkpoints of an online run as bundles into `folder`. The content of a bundle depends only on the
    checkpoint and on the bundles in the folder, so a process that was restarted writes the same bundles.
    """

    def __init__(self, folder: Path, config: Config, vocabulary: GrowingVocabulary, scorer: Scorer) -> None:
        """Lock `folder` against other online runs, until `close`.

        `scorer` computes scores with the training code and the newest weights. The scores of each new bundle are
        compared with these scores.

        Raise ValueError if the folder is itself a bundle, or if another online run publishes into it. If two runs
        published into one folder, each would remove bundles on which delta bundles of the other run build.
        """
        make_folder(folder)
        if (folder / MANIFEST).exists():
            raise ValueError(f"--serve {folder} is one bundle; give a folder of bundles, or a new one")
        in_use = f"another online run publishes into {folder}; give each --serve a folder of its own"
        self._lock = lock_folder(folder, in_use=in_use)
        self._folder, self._config, self._scorer = folder, config, scorer
        self.vocabulary = vocabulary
        self._newest: Predictor | None = None

    def close(self) -> None:
        """Unlock the folder, so that another process can publish into it."""
        self._lock.close()

    def served(self) -> Predictor | None:
        """Open and return the newest bundle in the folder. Return None if the folder has no bundle or the newest one
        cannot be opened.
        """
        newest = max(chains(read_manifests(self._folder)).values(), key=rank, default=None)
        if newest is None:
            return None
        # A service may have merged the deltas of the open bundle into a whole bundle of the same version. In this case,
        # open the whole bundle, because the deltas will be removed.
        if self._newest is None or [path for path, _ in self._newest.chain] != [path for path, _ in newest]:
            try:
                self._newest = Predictor.open(newest[-1][0], self._config.device.num_threads)
            except (OSError, ValueError) as error:
                log.warning("warning: the newest bundle cannot be used, so the next one is whole: %s", error)
                return None
        return self._newest

    def publish(self, checkpoint: Checkpoint) -> Path:
        """Write the bundle of a checkpoint unless the bundle exists already. Return the bundle's folder.

        The bundle is a delta if the newest bundle in the folder is that of the checkpoint's parent checkpoint,
        otherwise a whole bundle. The bundle is named after the checkpoint's step. If a bundle of that name exists (of
        another run, or damaged), it stays, and the id of the checkpoint is appended to the new name.
        """
        manifests = read_manifests(self._folder)
        for path, manifest in manifests.items():
            if manifest.checkpoint["id"] == checkpoint.manifest.id:
                return path
        newest, of_checkpoint = self.served(), checkpoint.manifest.parent
        is_parent = newest and of_checkpoint and newest.manifest.checkpoint["id"] == of_checkpoint["id"]
        parent = newest if is_parent else None
        vocabulary = self.vocabulary
        trained = Trained(checkpoint, self._config, vocabulary.folder, vocabulary.schema)
        output = self._folder / step_name(checkpoint.manifest.step)
        if output.exists() or output.is_symlink():
            log.warning(
                "warning: %s is of another run or damaged, and stays; the new bundle gets a longer name", output
            )
            output = output.with_name(f"{output.name}-{short(checkpoint.manifest.id)}")
        with new_bundle(output, overwrite=True) as folder:
            model = _changes_of(trained) if parent else exported_model(trained)
            encoder = vocabulary.encoder if parent else None
            predictor = write_compared(folder, trained, model, self._scorer, "float32", parent, encoder)
            finish_bundle(folder, self._folder, trained, predictor.manifest)
        self._newest = parent.with_delta(output) if parent else Predictor.open(output, self._config.device.num_threads)
        return output


def _changes_of(trained: Trained) -> ExportedModel:
    """Return the source of a delta bundle: the model of a delta checkpoint, with the ids of the rows that have changed
    or expired since the parent checkpoint.

    Usually the wide and the deep table changed the same rows, and the rows are read from the delta checkpoint alone.
    Otherwise they are read from the checkpoint and its parents, because a delta bundle stores the wide row and the deep
    row of an id even if only one of them changed.
    """
    alone = Trained(replace(trained.checkpoint, older=()), trained.config, trained.folder, trained.schema)
    alone.checkpoint.verify()
    model = exported_model(alone)
    wide, deep = (model.state.tables[table].row_ids for table in (WIDE, DEEP))
    model = replace(model, expired=alone.checkpoint.expiry().get(EXPIRED_IDS))
    if np.array_equal(wide, deep):
        return replace(model, changed=np.sort(wide))
    trained.checkpoint.verify()
    model = replace(model, state=ModelState(model.state.dense, trained.checkpoint.state().tables))
    return replace(model, changed=union(wide, deep))
