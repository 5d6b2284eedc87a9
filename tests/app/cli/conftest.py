"""A fixture that runs the commands of `python -m app` in this process."""

import logging

import pytest

from app.__main__ import main


@pytest.fixture
def command(own_handlers, project, tiny_dataset, tmp_path, monkeypatch, caplog):
    """Return a function that runs a command of `python -m app` in the test's folder. It returns the exit status, and
    the text that was logged. `train` gets configs/tiny.yaml and a prepared folder.
    """
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)

    def run(name, *words, dataset=tiny_dataset):
        caplog.clear()
        if name == "train":
            words = ("--config", project / "configs" / "tiny.yaml", "--dataset", dataset, *words)
        return main([name, *map(str, words)]), caplog.text

    return run
