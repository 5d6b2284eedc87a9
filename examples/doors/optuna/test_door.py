"""A search that was killed goes on with the interrupted trial, and repeats no other."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState

from app import load_run


def search() -> optuna.Study:
    """The study in the journal, the only one."""
    storage = JournalStorage(JournalFileBackend("search/journal.log"))
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage)


def test_killed_search_continues(commands, run, small):
    (command,) = commands("Optuna")
    command = command.replace("configs/auto.yaml", small)
    assert command.endswith(" 12")
    run(
        command.replace("bin/python ", "bin/python examples/doors/killed.py 14 "), status=-9
    )  # in the second epoch of the fifth trial
    before = search().trials
    assert [trial.state for trial in before] == [TrialState.COMPLETE] * 4 + [TrialState.RUNNING]
    with Path("search/journal.log").open("a") as journal:
        journal.write('{"op_code":6,"worker')  # as a power cut may leave the journal
    shown = run(command).stdout
    trials = search().trials
    assert trials[:4] == before[:4]
    assert trials[4].state == TrialState.FAIL and trials[5].params == before[4].params
    ended = [trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    assert len(ended) == 12 == len({str(trial.params) for trial in ended})
    assert any(trial.state == TrialState.PRUNED for trial in ended)
    best = search().best_trial
    assert f"AUC {best.value:.6f}" in shown
    folder = f"search/rate={best.params['rate']}-width={best.params['width']}"
    assert load_run(folder).metrics["auc"] == pytest.approx(best.value, abs=1e-12)
    assert run(command).stdout == shown  # There is nothing left to try.
