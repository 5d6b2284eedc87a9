"""The command plan: what it prints for a prepared folder and for one that is only imagined, and its errors."""

import os
import re

import pytest

from app.cli import plan as plan_command
from app.training.auto import memory
from common.process import MemoryLimit
from tests.programs import run_python

ROWS, RANK = "table rows with optimizer state", "memory of each rank"
TINY = ("train.auto=false", "model.embedding_dim=8", "model.hidden_widths=[32,16]", "train.batch_size=500")


@pytest.fixture
def free_memory(monkeypatch):
    """Let the host have so many bytes of memory left."""

    def set_free(num_bytes):
        for module in (memory, plan_command):
            monkeypatch.setattr(module, "available_memory", lambda: MemoryLimit("a test's memory", num_bytes, 0))

    return set_free


@pytest.fixture
def plan(command, capsys, tiny_dataset):
    """Run the command on the tiny data. Return its exit status, what it printed, and MiB by part and term."""

    def run(*words, dataset=tiny_dataset):
        status, _ = command("plan", *TINY, *words, *([dataset] if dataset else []))
        printed, parts = capsys.readouterr().out, {}
        for indent, name, size in re.findall(r"^( *)(.*?)  +([\d,.]+) MiB$", printed, re.MULTILINE):
            parts.setdefault(name if not indent else next(reversed(parts)), {})[name] = float(size.replace(",", ""))
        return status, printed, parts

    return run


def test_terms_add_up_to_memory_that_fits(plan, free_memory):
    free_memory(2**40)
    status, printed, parts = plan("--ranks", "2", "--servers", "1")
    assert status == 0
    assert "it fits: 3 processes on this host would take" in printed
    assert [ROWS in terms for terms in parts.values()] == [False, True, False, False]  # The server has the rows.
    for name, terms in parts.items():
        assert terms.pop(name) == pytest.approx(sum(terms.values()), abs=0.06 * (len(terms) + 1))


def test_each_remedy_gives_the_memory_it_names(plan, free_memory):
    free_memory(2**20)
    status, printed, parts = plan("train.ema_decay=0.99", "train.batch_size=20000")
    remedies = re.findall(r"  with (\S+): ([\d.]+) MiB", printed)
    assert (status, len(remedies)) == (2, 3)
    *_, largest = sorted(parts[RANK], key=parts[RANK].get)[:-1]  # The last is the sum.
    assert f"the largest part is: {largest}, " in printed
    for setting, size in remedies:
        _, _, parts = plan("train.ema_decay=0.99", "train.batch_size=20000", setting)
        assert parts[RANK][RANK] * 1.05 == pytest.approx(float(size), rel=1e-3)


def test_a_process_has_a_limit_of_its_own(plan, free_memory):
    free_memory(2**40)
    assert plan("tables.memory_limit=1 GiB")[0] == 0
    status, printed, _ = plan("tables.memory_limit=100 MiB")
    assert status == 2
    assert re.search("a process would take .* MiB, and tables.memory_limit is 100 MiB", printed)


def test_rows_and_values_stand_for_a_prepared_folder(plan, free_memory):
    free_memory(2**40)
    _, _, few = plan("--rows", "1000000", "--values", "1000", dataset=None)
    _, _, many = plan("--rows", "1000000", "--values", "1000000", dataset=None)
    row_bytes = 4 * (3 * 8 + 3)  # LazyAdam with D 8, and FTRL
    assert many[RANK][ROWS] - few[RANK][ROWS] == pytest.approx(999_000 * row_bytes / 2**20, rel=0.03)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rows", "5", "--values", "5"), "found the prepared folder .* and --rows and --values; give either"),
        ((None,), "expected a prepared folder, or --rows and --values .*; found neither"),
        ((None, "--rows", "5"), "expected a prepared folder, or .*; found --rows"),
        ((None, "--rows", "0", "--values", "5"), "--rows and --values must be 1 or more, found 0 and 5"),
        (("--ranks", "0"), "the number of ranks .* must be 1 or more, found 0"),
        (("tables.memory_limit=lots",), "memory_limit must be a size such as '4 GiB'"),
        (("model.batch_norm=true", "--ranks", "2"), "model.batch_norm=true is for one rank"),
    ],
)
def test_errors_say_what_was_found(plan, tiny_dataset, caplog, words, message):
    dataset = None if words[:1] == (None,) else tiny_dataset
    status, *_ = plan(*(word for word in words if word), dataset=dataset)
    assert status == 2
    assert re.search(message, caplog.text)


def test_a_folder_that_is_not_prepared_is_named(plan, caplog, tmp_path):
    assert plan(dataset=tmp_path)[0] == 2
    assert f"no prepared data in {tmp_path}" in caplog.text


def test_train_says_what_it_expects_and_what_it_took(command, free_memory):
    free_memory(2**20)
    status, log = command("train")
    assert status == 0
    assert re.search(r"memory expected: \d+\.?\d* MiB of the rank \(", log)
    assert re.search("warning: the training would take .* MiB, and what a test's memory leaves is 1 MiB; .* plan ", log)
    # The peak is that of the process, which has run other tests before this one.
    assert re.search(r"memory used at most: [\d.]+ [MG]iB; expected: \d+\.?\d* MiB", log)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("model.batch_norm=true",),
        ("model.batch_norm=true", "model.dropout=0.2"),
        ("model.dropout=0.2",),
        ("model.activation=relu", "train.profile=true"),
    ],
)
def test_memory_that_mindspore_takes_is_as_planned(tiny_dataset, tmp_path, project, words):
    model = "train.auto=false", "model.activation=gelu", "model.hidden_widths=[512,256]", "tables.storage=memory"
    more = "train.batch_size=4000", "train.steps=2", "--dataset", tiny_dataset, "--name", "run"
    environment = {**os.environ, "PYTHONPATH": str(project)}
    done = run_python("-m", "app", "train", *model, *more, *words, cwd=tmp_path, env=environment)
    sizes = re.search(r"memory used at most: ([\d.]+) MiB; expected: ([\d.]+) MiB", done.stderr + done.stdout)
    taken, expected = map(float, sizes.groups())
    assert taken == pytest.approx(expected, rel=0.15)
