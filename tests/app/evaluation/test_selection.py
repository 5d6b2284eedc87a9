"""Best evaluation, patience, and what is refused before the first step."""

import pytest

from app.config.config import SELECTABLE, EvalOptions
from app.evaluation.metrics import METRICS, Metrics
from app.evaluation.selection import Selection
from data_prep.prepared.schema import DataFile


def metrics(**values):
    usual = {"rows": 10, "click_rate": 0.3, "auc": 0.5, "log_loss": 0.6, "normalized_entropy": 1.0, "calibration": 1.0}
    return Metrics(**{**usual, "pr_auc": 0.3, **values})


def judged(options, values):
    """A selection after these values of its metric at steps 10, 20, …, and which of them were the best so far."""
    selection = Selection(options)
    best = [selection.update(metrics(**{options.metric: value}), 10 * (i + 1)) for i, value in enumerate(values)]
    return selection, best


@pytest.mark.parametrize(
    ("metric", "values"), [("auc", (0.7, 0.72, 0.71, 0.72, 0.73)), ("log_loss", (0.5, 0.48, 0.49, 0.48, 0.47))]
)
def test_the_best_so_far_is_strictly_better_in_the_metric_s_direction(metric, values):
    assert judged(EvalOptions(metric=metric), values)[1] == [True, True, False, False, True]


def test_patience_counts_evaluations_since_the_last_improvement():
    options = EvalOptions(metric="auc", patience=2)
    assert not judged(options, (0.7, 0.69))[0].is_over
    assert judged(options, (0.7, 0.69, 0.7))[0].is_over
    assert not judged(options, (0.7, 0.69, 0.71))[0].is_over
    assert not judged(EvalOptions(), (0.7, 0.6, 0.5, 0.4))[0].is_over


def test_values_of_other_rows_or_groups_are_no_comparison():
    """A resumed run may have another split valid, or rank within other groups."""
    here, there = (DataFile("valid-00000.mindrecord", 9, 9, checksum) for checksum in ("xxh3:1", "xxh3:2"))
    by_user, by_site = (EvalOptions(metric="grouped_auc", group_field=name, patience=1) for name in ("user", "site"))
    before = Selection(by_user, [here])
    before.update(metrics(grouped_auc=0.9), 10)
    for options, file, known in ((by_user, here, True), (by_site, here, False), (by_user, there, False)):
        resumed = Selection(options, [file])
        resumed.load_state(before.state())
        assert resumed.last_step == 10
        assert resumed.update(metrics(grouped_auc=0.8), 20) is not known
        assert resumed.is_over is known


def test_patience_ends_after_evaluations_without_gain():
    selection, best = judged(EvalOptions(metric="auc", patience=2), (0.7, 0.701, 0.7, 0.701))
    assert best == [True, True, False, False]
    assert selection.is_over
    assert "has not risen above 0.701000 for 2 evaluations (eval.patience=2); the best is" in selection.reason


def test_a_restored_selection_continues_as_if_never_stopped():
    options, values = EvalOptions(metric="auc", patience=3), (0.7, 0.71, 0.712, 0.7, 0.713, 0.6)
    for cut in range(len(values)):
        first, _ = judged(options, values[:cut])
        restored = Selection(options)
        restored.load_state(first.state())
        for i, value in enumerate(values[cut:], cut):
            restored.update(metrics(auc=value), 10 * (i + 1))
        assert restored.state() == judged(options, values)[0].state()


def test_another_metric_starts_anew_but_knows_what_was_evaluated():
    first, _ = judged(EvalOptions(metric="auc", patience=1), (0.7, 0.6))
    other = Selection(EvalOptions(metric="log_loss", patience=1))
    other.load_state(first.state())
    assert (other.last_step, other.is_over) == (20, False)
    assert other.update(metrics(log_loss=0.9), 30)


def test_a_metric_that_is_undefined_is_refused():
    with pytest.raises(ValueError, match=r"eval\.metric=grouped_auc is undefined on valid: .* eval\.metric=log_loss"):
        Selection(EvalOptions(metric="grouped_auc", group_field="C1")).update(metrics(), 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "acu"}, r"eval\.metric must be one of auc, .*; found 'acu'; did you mean 'auc'\?"),
        ({"metric": "loss"}, r"did you mean 'log_loss'\?"),
        ({"metric": "grouped_auc"}, r"needs eval\.group_field"),
        ({"patience": -1}, "patience must be 0 or more; found -1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        EvalOptions(**options)


def test_selectable_metrics_are_those_with_a_better_direction():
    assert sorted(SELECTABLE) == sorted(name for name, metric in METRICS.items() if metric.better)
