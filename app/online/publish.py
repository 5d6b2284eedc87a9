"""Publish the checkpoints of an online run: write each as a bundle into a folder that a service watches. If possible,
the bundle is a delta (it has only the rows that changed since the bundle before), otherwise a whole bundle.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.checkpoint.read import Checkpoint
from app.checkpoint.write import EXPIRED_IDS, ModelState, step_name
from app.config.config import Config
from app.evaluation.measure import Scorer
from app.scoring.bundle_folder import MANIFEST, chains, rank, read_manifests, short
from app.scoring.bundle_writer import new_bundle
from app.scoring.predictor import Predictor
from app.scoring.trained.export_bundle import exported_model, finish_bundle, write_compared
from app.scoring.trained.trained_model import Trained
from app.scoring.trained.write_bundle import ExportedModel
from app.tables.interface import DEEP, WIDE
from common.files import lock_folder, make_folder
from data_prep.encoding.growing import GrowingVocabulary
from data_prep.prepared.data_files import union

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
