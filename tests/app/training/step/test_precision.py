"""`device.precision=auto` takes what is faster on this processor, and asks it once."""

import functools
import json
import subprocess
import time

import pytest

from app.config.config import Config
from app.config.device import BFLOAT16_FLAGS, cpu_flags
from app.model.native_tower import LIBRARY
from app.training.step import precision
from common import yaml_settings

SECONDS = {"float32": 0.3, "bfloat16": 0.2}

needs_library = pytest.mark.skipif(not LIBRARY.is_available(), reason="the native layer is not built")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A processor with bfloat16, and nothing remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(precision, "cpu_flags", lambda: {"avx512_bf16"})
    return tmp_path


@pytest.fixture
def started(monkeypatch):
    """The programs that were started to time a tower; each answers SECONDS."""
    commands = []

    def run(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, json.dumps(SECONDS), "")

    monkeypatch.setattr(precision.subprocess, "run", run)
    return commands


def chosen(tiny_schema, *words, num_ranks=1):
    config = yaml_settings.resolve(Config, None, ["device.precision=auto", "device.target=CPU", *words])
    return precision.choose(config, tiny_schema, num_ranks)


def test_the_faster_precision_is_chosen_and_remembered(tiny_schema, started):
    for _ in range(2):
        assert chosen(tiny_schema) == (
            "bfloat16",
            "precision: bfloat16; bfloat16 is 1.50 times as fast for this tower (device.precision=auto)",
        )
    assert len(started) == 1
    chosen(tiny_schema, "model.hidden_widths=[8]")
    chosen(tiny_schema, "device.threads=1")
    chosen(tiny_schema, "train.batch_size=900", num_ranks=3)
    assert len(started) == 4


def test_a_tower_without_a_deep_field_has_one_input_of_zeros(tiny_schema, started):
    chosen(tiny_schema, "model.deep_fields=[]", "model.embedding_dim=8")
    assert [command[5] for command in started] == ["8"]


@pytest.mark.parametrize("gain", [0.5, 1.04, 1.06])
def test_a_small_gain_is_not_worth_the_rounding(tiny_schema, monkeypatch, gain):
    monkeypatch.setattr(precision, "_seconds_of", lambda *_: {"float32": gain, "bfloat16": 1.0})
    assert chosen(tiny_schema)[0] == ("bfloat16" if gain > 1.05 else "float32")


@pytest.mark.parametrize("content", ["", "{", "[]", "[1]", '{"another": {}}'])
def test_what_is_remembered_may_be_damaged(tiny_schema, started, home, content):
    (home / "wide_deep").mkdir()
    (home / "wide_deep" / "tower_seconds.json").write_text(content)
    assert [chosen(tiny_schema)[0] for _ in range(2)] == ["bfloat16", "bfloat16"]
    assert len(started) == 1


def test_a_home_that_cannot_be_written_is_no_obstacle(tiny_schema, started, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert [chosen(tiny_schema)[0] for _ in range(2)] == ["bfloat16", "bfloat16"]
    assert len(started) == 2


def test_a_measurement_that_fails_leaves_float32(tiny_schema, monkeypatch, home):
    monkeypatch.setattr(
        precision.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", "")
    )
    assert chosen(tiny_schema) == ("float32", "precision: float32; bfloat16 could not be timed (device.precision=auto)")
    assert not list(home.iterdir())


@pytest.mark.parametrize(
    ("word", "flag", "expected"),
    [
        ("device.precision=bfloat16", "avx512_bf16", "bfloat16"),
        ("device.precision=float32", "avx512_bf16", "float32"),
        ("device.target=Ascend", "avx512_bf16", "float32"),
        ("device.target=GPU", "avx512_bf16", "float32"),
        ("device.target=CPU", "avx2", "float32"),
    ],
)
def test_what_is_asked_for_or_cannot_round_is_not_measured(tiny_schema, started, monkeypatch, word, flag, expected):
    monkeypatch.setattr(precision, "cpu_flags", lambda: {flag})
    assert chosen(tiny_schema, word) == (expected, "")
    assert not started


@pytest.mark.parametrize("choice", ["bfloat16", "float32", None])
def test_ranks_take_the_choice_of_who_started_them(tiny_schema, started, monkeypatch, choice):
    monkeypatch.setattr(precision, "started_by_mpi", lambda: True)
    monkeypatch.setenv(precision.CHOSEN_PRECISION, choice or "")
    assert chosen(tiny_schema, num_ranks=2)[0] == (choice or "float32")
    assert not started


@needs_library
def test_a_tower_is_timed_in_a_process_of_its_own(tiny_schema, monkeypatch):
    """In bfloat16 too where the processor lacks it: oneDNN then converts."""
    if not cpu_flags() & BFLOAT16_FLAGS:
        pytest.skip("this processor multiplies no bfloat16")
    seconds = precision._seconds_of(64, 40, 3, (16, 8), 1)
    assert seconds.keys() == SECONDS.keys()
    assert all(0 < each < 1 for each in seconds.values())


@needs_library
def test_what_other_work_takes_is_not_the_towers_time(monkeypatch):
    """The answer is kept: by the clock, a busy first start gave both precisions the scheduler's turns for good."""
    monkeypatch.setattr(precision, "SECONDS", 0.0)
    monkeypatch.setattr(precision, "_step_of", lambda *_: functools.partial(time.sleep, 0.02))
    assert max(precision.measure(64, 40, 3, (16, 8), 1).values()) < 0.01


@needs_library
def test_nothing_loads_openmp_before_its_variables_are_set(tiny_schema, started, monkeypatch):
    """They follow from the choice. OpenMP reads them as it is loaded: without them idle threads spin."""
    monkeypatch.setattr(LIBRARY, "load", lambda: pytest.fail("the library was loaded"))
    assert chosen(tiny_schema)[0] == "bfloat16"
