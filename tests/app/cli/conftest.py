"""The commands of `python -m app`, run in this process."""

import logging

import pytest

from app.__main__ import main


@pytest.fixture
def command(own_handlers, project, tiny_dataset, tmp_path, monkeypatch, caplog):
    """Run `python -m app` in the test's folder and return its status and what it logged."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)

    def run(name, *words, dataset=tiny_dataset):
        caplog.clear()
        if name == "train":
            words = ("--config", project / "configs" / "tiny.yaml", "--dataset", dataset, *words)
        return main([name, *map(str, words)]), caplog.text

    return run
