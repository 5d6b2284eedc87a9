"""Learning rates by step, and what a plateau remembers."""

import math

import pytest

from app.config.optimizer_settings import ConstantSchedule, CosineSchedule, PlateauSchedule, SgdOptions, StepSchedule
from app.training import learning_rates
from app.training.learning_rates import LearningRate, LearningRates


def rates(base, schedule, steps):
    rate = LearningRate(base, schedule)
    return [rate(step) for step in steps]


def test_a_constant_rate_after_its_warm_up():
    assert rates(0.5, ConstantSchedule(), (1, 2, 10**6)) == [0.5] * 3
    assert rates(0.8, ConstantSchedule(warmup_steps=4), (1, 2, 3, 4, 5)) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])


def test_a_cosine_falls_to_its_last_value_and_stays():
    schedule = CosineSchedule(warmup_steps=2, decay_steps=4, final_factor=0.1)
    half = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4))
    assert rates(1.0, schedule, (1, 2, 3, 4, 6, 10**9)) == pytest.approx([0.5, 1, half, 0.55, 0.1, 0.1])


def test_steps_down():
    schedule = StepSchedule(every_steps=3, drop_factor=0.5, warmup_steps=1)
    assert rates(8.0, schedule, range(1, 9)) == [8, 8, 8, 8, 4, 4, 4, 2]


def test_a_plateau_drops_after_patience_and_knows_past_steps(monkeypatch):
    monkeypatch.setattr(learning_rates, "LEAST_GAIN", 0.01)
    rate = LearningRate(1.0, PlateauSchedule(patience=2, drop_factor=0.5))
    merits = [0.70, 0.75, 0.755, 0.74, 0.76, 0.70]
    falls = [rate.after_evaluation(merit, 10 * (i + 1)) for i, merit in enumerate(merits)]
    # 0.755 does not pass 0.75 by more than 0.01, nor does 0.74: a drop after step 40; 0.76 neither, nor 0.70: after 60
    assert falls == [False, False, False, True, False, True]
    assert [rate(step) for step in (1, 40, 41, 60, 61)] == [1, 1, 0.5, 0.5, 0.25]


def test_a_plateau_stops_at_its_least_rate():
    rate = LearningRate(2e-5, PlateauSchedule(drop_factor=0.1))
    assert [rate.after_evaluation(0.5, step) for step in (1, 2, 3, 4)] == [False, True, True, False]
    assert [rate(step) for step in (2, 3, 4, 9)] == pytest.approx([2e-5, 2e-6, 1e-6, 1e-6])


def test_a_plateau_resumes_exactly_from_its_state():
    def make():
        return LearningRates(
            {
                "wide": SgdOptions(learning_rate=1.0),
                "deep": SgdOptions(learning_rate=1.0, schedule=PlateauSchedule(patience=2)),
                "tower": SgdOptions(learning_rate=1.0, schedule=PlateauSchedule(patience=1)),
            }
        )

    merits = [0.7, 0.6, 0.8, 0.8, 0.8, 0.7]
    whole, first = make(), make()
    for step, merit in enumerate(merits, start=1):
        whole.after_evaluation("auc", merit, step)
    for step, merit in enumerate(merits[:3], start=1):
        first.after_evaluation("auc", merit, step)
    resumed = make()
    resumed.load_state(first.state())
    for step, merit in enumerate(merits[3:], start=4):
        resumed.after_evaluation("auc", merit, step)
    assert resumed.state() == whole.state()
    assert set(whole.state()) == {"deep", "tower"}
    assert [resumed.at(step) for step in range(1, 9)] == [whole.at(step) for step in range(1, 9)]


def test_falls_are_described_in_words():
    both = LearningRates({"deep": SgdOptions(learning_rate=1e-3, schedule=PlateauSchedule()), "wide": SgdOptions()})
    assert both.after_evaluation("auc", 0.7, 5) == []
    assert both.after_evaluation("auc", 0.7, 9) == ["deep learning rate 0.001 -> 0.0001 (auc has not improved)"]
