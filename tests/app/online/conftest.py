"""Fixtures for tests of online training: a trained run, parts (files of the log) with the rows after those of the run,
and a folder in which a test runs the command `online`.
"""

import logging
import shutil

import pytest

from app.__main__ import main as app
from app.training.start import plan_launch
from data_prep.prepared.truth import truth_path
from data_prep.sources.synthetic import synthesize

# Rows of a part, and the index of the first part that is used: the parts before have the 3,000 rows of `tiny_log`.
PART_ROWS, FIRST_PART = 300, 10


# Settings of the trained run: among them an optimizer that moves every row at each step, and a schedule whose learning
# rate ends at 0.
SETTINGS = (
    "train.batch_size=100",
    "train.epochs=2",
    "deep_optimizer.name=adam",
    "tower_optimizer.schedule.name=cosine",
    "tower_optimizer.schedule.decay_steps=50",
    "eval.bootstrap=0",
)


@pytest.fixture(scope="session")
def trained_run(cpu, tiny_config, tiny_dataset, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "device_0"
    assert plan_launch(tiny_config(*SETTINGS), tiny_dataset, path).train(cpu) == 0
    return path


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    """Return the paths of four parts, whose rows `trained_run` was not trained on."""
    folder = tmp_path_factory.mktemp("parts") / "log"
    synthesize(folder, 4_200, seed=1, workers=1, part_rows=PART_ROWS)
    files = [path for path in sorted(folder.iterdir()) if not path.name.endswith(".truth.parquet")]
    return files[FIRST_PART:]


class Online:
    """A folder in which a test runs the command `online`, with a subfolder `source` for the parts."""

    def __init__(self, path, run):
        self.path, self.source, self.trained = path, path / "source", run
        self.source.mkdir(parents=True)

    def deliver(self, part, name=None, text=None):
        """Put a part into the source folder by a rename, with its true click probabilities beside it. `name` gives it
        another name, `text` another content.
        """
        target = self.source / (name or part.name)
        if truth_path(part).is_file():
            shutil.copy(truth_path(part), truth_path(target))
        beside = self.source / ".coming"
        beside.write_bytes(part.read_bytes() if text is None else text)
        beside.rename(target)

    def words(self, *more):
        folders = ("--serve", self.path / "bundles", "--work", self.path / "online")
        words = ("online", "--from", self.trained, *folders, "--once", self.source, *more)
        return [str(word) for word in words]

    def run(self, *more):
        """Return the command's exit status."""
        return self.app(*self.words(*more))

    def app(self, *words):
        handlers = list(logging.getLogger().handlers)
        try:
            return app([str(word) for word in words])
        finally:
            for handler in set(logging.getLogger().handlers) - set(handlers):
                logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="session")
def make_online(trained_run, tmp_path_factory):
    """Return a function that makes the folder `name` of an online run, into whose source folder `parts` were put."""

    def make(name, parts=()):
        folder = Online(tmp_path_factory.mktemp(name), trained_run)
        for part in parts:
            folder.deliver(part)
        return folder

    return make
