"""Search for settings with Optuna. The same command continues a search that was killed.

python search.py CONFIG PREPARED FOLDER TRIALS
"""

import sys
from pathlib import Path

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState

from app import train

SPACE = {"rate": FloatDistribution(1e-4, 1e-2, log=True), "width": CategoricalDistribution([16, 32, 64])}
config, prepared, folder, count = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])

folder.mkdir(parents=True, exist_ok=True)
journal = folder / "journal.log"
if journal.exists():  # A crash may have left half a line, after which Optuna could not read what is added.
    content = journal.read_bytes()
    journal.write_bytes(content[: content.rfind(b"\n") + 1])
# The study is named by its space, because Optuna refuses other choices within a study.
storage = JournalStorage(JournalFileBackend(str(journal)))
study = optuna.create_study(storage=storage, study_name=str(SPACE), direction="maximize", load_if_exists=True)
# With one seed for all processes, a search that is continued would repeat its first trials.
study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
for trial in study.get_trials(states=[TrialState.RUNNING]):  # A kill has interrupted it: try the same values again.
    study.tell(trial.number, state=TrialState.FAIL)
    study.enqueue_trial(trial.params)


def auc_of(trial):
    """Train with the values of a trial. Raise TrialPruned if an evaluation is worse than most of the trials before."""

    def prune(_, metrics):
        trial.report(metrics["auc"], metrics["epoch"])
        if trial.should_prune():
            raise optuna.TrialPruned

    rate, width = trial.params["rate"], trial.params["width"]
    settings = {"deep_optimizer": {"learning_rate": rate}, "model": {"hidden_widths": [width, width]}}
    run = folder / f"rate={rate}-width={width}"  # An interrupted training with the same values resumes.
    return train(config, prepared, run, on_evaluation=prune, **settings).metrics["auc"]


while len(study.get_trials(states=[TrialState.COMPLETE, TrialState.PRUNED])) < count:
    trial = study.ask(SPACE)
    try:
        study.tell(trial, auc_of(trial))
    except (optuna.TrialPruned, FloatingPointError):  # With a value of NaN, the trial would fail instead.
        study.tell(trial, state=TrialState.PRUNED)
print(f"best of {count} trials: AUC {study.best_value:.6f} with {study.best_params}")
