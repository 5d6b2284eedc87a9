"""The settings of an online run follow from those of the run that it goes on from."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from app.config.optimizer_settings import ConstantSchedule
from app.online.online_start import RATE_FLOOR, is_begun, online_config
from common import settings


def source_of(config, step=50, schedules=None):
    manifest = SimpleNamespace(config=settings.as_dict(config), step=step, schedules=schedules or {})
    return SimpleNamespace(path=Path("/runs/device_0/checkpoints/step-00000050"), manifest=manifest)


@pytest.mark.parametrize(("step", "share"), [(25, 0.5), (50, RATE_FLOOR), (5, 0.976)])
def test_a_rate_stays_as_the_run_ended_but_does_not_end_near_0(tiny_config, step, share):
    trained = tiny_config("tower_optimizer.schedule={name: cosine, decay_steps: 50}")
    config, lines = online_config(source_of(trained, step))
    expected = share * trained.tower_optimizer.learning_rate
    assert config.tower_optimizer.learning_rate == pytest.approx(expected, rel=1e-3)
    assert config.tower_optimizer.schedule == ConstantSchedule()
    assert config.deep_optimizer == trained.deep_optimizer
    assert f"tower learning rate {config.tower_optimizer.learning_rate:g}, constant" in "\n".join(lines)


def test_a_plateau_counts_the_falls_of_the_run(tiny_config):
    trained = tiny_config("deep_optimizer.schedule={name: plateau, drop_factor: 0.5}")
    fallen = {"deep": {"best": 0.7, "bad_evaluations": 0, "drops": [20]}}
    config, _ = online_config(source_of(trained, schedules=fallen))
    assert config.deep_optimizer.learning_rate == pytest.approx(0.5 * trained.deep_optimizer.learning_rate)


def test_adam_goes_on_as_lazy_adam_with_its_settings(tiny_config):
    trained = tiny_config("deep_optimizer={name: adam, beta2: 0.99, epsilon: 1.0e-7, learning_rate: 2.0e-3}")
    config, lines = online_config(source_of(trained))
    found = config.deep_optimizer
    assert (found.name, found.beta2, found.epsilon, found.learning_rate) == ("lazy_adam", 0.99, 1e-7, 2e-3)
    assert config.train.init_optimizer
    assert any("lazy_adam" in line for line in lines)


def test_running_means_are_what_it_goes_on_from(tiny_config):
    config, lines = online_config(source_of(tiny_config("train.ema_decay=0.99")))
    assert (config.train.ema_decay, config.train.init_optimizer) == (0, False)
    assert any("running means" in line for line in lines)


def test_what_a_user_gives_counts_last(tiny_config):
    config, _ = online_config(source_of(tiny_config()), ["train.batch_size=7", "deep_optimizer.learning_rate=0.25"])
    assert (config.train.batch_size, config.deep_optimizer.learning_rate) == (7, 0.25)


def test_looked_up_numeric_fields_are_refused(tiny_config):
    trained = tiny_config("model.fold_numeric=false", "tables.backend=stock")
    with pytest.raises(ValueError, match=r"model\.fold_numeric=false"):
        online_config(source_of(trained))


def test_a_run_that_was_killed_in_its_first_checkpoint_has_not_begun(tmp_path):
    (tmp_path / "checkpoints/step-00000000.partial").mkdir(parents=True)
    assert not is_begun(tmp_path)
    (tmp_path / "checkpoints/step-00000000").mkdir()  # be it damaged
    assert is_begun(tmp_path)
