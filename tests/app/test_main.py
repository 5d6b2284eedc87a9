"""The commands in this process: what they print, leave behind and return."""

import json
import logging

import pytest

from app.__main__ import main


@pytest.fixture
def command(cpu, project, tiny_dataset, tmp_path, monkeypatch, caplog):
    """Run `python -m app` in `tmp_path`; returns its status and what it logged."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)
    handlers = list(logging.getLogger().handlers)

    def run(name, *words):
        caplog.clear()
        if name == "train":
            words = ("--config", str(project / "configs" / "tiny.yaml"), "--dataset", str(tiny_dataset), *words)
        status = main([name, *words])
        return status, caplog.text

    yield run
    for handler in set(logging.getLogger().handlers) - set(handlers):
        logging.getLogger().removeHandler(handler)


def test_dry_run_says_where_each_table_op_runs_and_leaves_nothing(command, capsys, tmp_path):
    assert command("train", "--dry-run", "tables.backend=stock")[0] == 0
    assert capsys.readouterr().out.splitlines() == [
        "tower: on CPU",
        "wide_lookup: EmbeddingLookup on CPU, primitive_target=CPU",
        "deep_lookup: EmbeddingLookup on CPU, primitive_target=CPU",
        "wide_update: FusedSparseFtrl on CPU, primitive_target=CPU",
        "deep_update: FusedSparseLazyAdam on CPU, primitive_target=CPU",
    ]
    assert list(tmp_path.iterdir()) == []


def test_dry_run_of_host_tables(command, capsys):
    assert command("train", "--dry-run", "tables.backend=reference")[0] == 0
    assert capsys.readouterr().out.splitlines()[1] == "tables: reference, on the host, outside the graph"


def test_a_step_that_is_not_finite_stops_the_run_with_its_place(command, tmp_path):
    """Rows so large that their squares overflow: epoch, step and reason are told, and nothing is saved."""
    status, log = command("train", "model.initial_scale=1e30", "tables.backend=reference")
    assert status == 1
    assert "error: epoch 1 step 1: not finite: " in log
    assert "no table and no parameter was changed" in log
    run = tmp_path / "device_0"
    assert json.loads((run / "run.json").read_text())["status"] == "failed"
    assert not (run / "checkpoints").exists()
    assert "the run stopped: FloatingPointError" in (run / "test_deep0.log").read_text()


def test_wrong_settings_leave_an_older_run_alone(command, tmp_path, tiny_dataset, monkeypatch):
    assert command("train", "tables.backend=reference")[0] == 0

    def missing_library():
        raise FileNotFoundError("the native host tables are not built")

    monkeypatch.setattr("app.tables.native.load", missing_library)
    before = sorted(path.name for path in tmp_path.iterdir())
    for words, message in (
        (("device.target=Ascend",), "device.target=Ascend cannot be used here"),
        (("tables.backend=reference", "model.fold_numeric=false"), "model.fold_numeric=false is for tables.backend=st"),
        (("tables.backend=native",), "the native host tables are not built"),
        (("train.seed=-1",), "train.seed must be between 0"),
    ):
        status, log = command("train", *words)
        assert status == 2
        assert message in log
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_evaluate_judges_the_run_in_this_folder(command, capsys, tmp_path):
    assert command("train", "train.epochs=2", "tables.backend=reference")[0] == 0
    capsys.readouterr()
    for split in ("test", "valid", "train"):
        assert command("evaluate", "--split", split)[0] == 0
    out = capsys.readouterr().out
    assert [line.split(":")[0] for line in out.splitlines() if line[0] != " "] == ["test", "valid", "train"]
    lines = (tmp_path / "device_0" / "eval.log").read_text().splitlines()
    assert len(lines) == 5
    judged = [line for line in lines if "split: valid" in line]
    assert judged[-1] in judged[:-1]  # from the checkpoint alone, what was measured while training


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no run in device_0: it has no config.yaml; train first"),
        (("--checkpoint", "nowhere"), "nowhere is no whole checkpoint: it has no manifest.json"),
    ],
)
def test_evaluate_without_a_model(command, words, message):
    status, log = command("evaluate", *words)
    assert status == 2
    assert message in log


def test_an_unknown_command_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as error:
        main(["fly"])
    assert error.value.code == 2
    assert "invalid choice: 'fly'" in capsys.readouterr().err
