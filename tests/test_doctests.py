"""The examples in the docstrings of public functions and classes are executed and print what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

from tests.programs import run_python

PROJECT = Path(__file__).parents[1]
QUICK = ("app.tables.optimizers", "app.evaluation.metrics", "data_prep.checks.propose")


@pytest.mark.parametrize("name", QUICK)
def test_examples_print_what_they_say(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted and not result.failed


def test_examples_of_the_api_run(tmp_path, tiny_log):
    """The functions share one folder: each example uses what the one before has made."""
    (tmp_path / "configs").symlink_to(PROJECT / "configs")
    (tmp_path / "log.txt").symlink_to(tiny_log)
    program = """
import doctest, app.api as api, data_prep.pipeline.prepare as preparation
finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
names = ("describe", "prepare", "train", "evaluate", "load_run", "sweep")
for module, name in [*((api, name) for name in names), (preparation, "prepare")]:
    (test,) = [each for each in finder.find(getattr(module, name), name, module=module) if each.examples]
    assert not runner.run(test).failed, name
"""
    run_python("-c", program, cwd=tmp_path)
