import shutil
import signal

import pytest

from data_prep.__main__ import _parser, main
from data_prep.checks import pre_check, propose
from data_prep.options.options_file import RECIPE, read_options
from data_prep.pipeline import prepare as prepare_module
from data_prep.prepared.schema import read_schema
from data_prep.sources import synthetic
from tests.programs import close_output_at_once, run_python


def test_prepare_then_inspect(tmp_path, log_path, capsys):
    config = tmp_path / "run.yaml"
    config.write_text("prepare:\n  min_count: 5\n  workers: 1\ntrain:\n  batch_size: 3\n")
    out = str(tmp_path / "out")
    assert main(["prepare", "--config", str(config), str(log_path), out, "prepare.seed=9", "--overwrite"]) == 0
    options = read_schema(tmp_path / "out").options
    assert (options["min_count"], options["seed"]) == (5, 9)
    for name in ("describe", "inspect"):
        assert main([name, out]) == 0
        assert "click rate" in capsys.readouterr().out


def test_without_settings_the_recipe_is_that_of_training(tmp_path, log_path, caplog):
    caplog.set_level("INFO")
    assert main(["prepare", str(log_path), str(tmp_path / "out"), "prepare.workers=1"]) == 0
    options = read_schema(tmp_path / "out").options
    expected = read_options(RECIPE)
    assert (options["min_count"], options["integer_buckets"]) == (expected.min_count, expected.integer_buckets)
    assert "settings: configs/auto.yaml" in caplog.text


def test_synthesize_then_prepare(tmp_path, capsys):
    log = str(tmp_path / "train.txt")
    assert main(["synthesize", log, "--rows", "500", "--seed", "3", "--workers", "1"]) == 0
    assert "500 rows" in capsys.readouterr().out
    assert main(["prepare", log, str(tmp_path / "out"), "prepare.workers=1"]) == 0
    source = read_schema(tmp_path / "out").source
    assert (source["lines"], source["rejected_by_reason"]) == (500, {})
    assert source["truth"] == f"{log}.truth.parquet"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare", "{tmp}/none.txt", "{tmp}/out"], "error: no log at"),
        (["prepare", "{log}", "{tmp}/out", "prepare.min_cout=3"], "did you mean 'prepare.min_count'"),
        (["prepare", "{log}", "{tmp}/out", "--config", "{tmp}/none.yaml"], "error: no config file"),
        (["prepare", "{log}", "{log}"], "is not a prepared folder"),
        (["prepare", "{log}", "."], "error: the output . has no name of its own"),
        (["inspect", "{tmp}"], "error: no prepared data in"),
        (["inspect", "{tmp}", "{tmp}"], "a prepared folder is shown by itself"),
        (["describe", "{log}", "--report"], "--report is for a prepared folder, and"),
        (["pre-check", "{log}", "--label", "I1"], "--label is for a proposal"),
        (["synthesize", "{tmp}/a.txt", "--rows", "0"], "error: rows: expected 1 or more, found 0"),
    ],
)
def test_user_errors_are_one_line_and_status_2(tmp_path, log_path, capsys, arguments, message):
    assert main([word.format(tmp=tmp_path, log=log_path) for word in arguments]) == 2
    printed = capsys.readouterr().err.strip().splitlines()
    assert len(printed) == 1
    assert printed[0].startswith("error: ")
    assert message in printed[0]


@pytest.mark.parametrize("command", ["download", "describe", "prepare", "inspect", "suggest-crosses", "synthesize"])
def test_the_help_of_a_command_ends_with_an_example_that_its_parser_takes(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    *_, title, example = capsys.readouterr().out.rstrip().splitlines()
    assert title == "example:"
    program, words = example.split("data_prep ")
    assert program == "  python -m "
    _parser().parse_args([word for word in words.split() if "=" not in word])


def test_a_setting_without_its_section_is_an_error(tmp_path, log_path, capsys):
    with pytest.raises(SystemExit):
        main(["prepare", str(log_path), str(tmp_path / "out"), "min_count=3"])
    assert "min_count=3: a setting needs its section before it: prepare.min_count=3" in capsys.readouterr().err


def test_a_damaged_file_is_an_error_of_inspect(tmp_path, prepared, capsys):
    folder = shutil.copytree(prepared, tmp_path / "copy")
    (folder / "vocabulary.parquet").write_bytes(b"PAR1")
    assert main(["inspect", str(folder)]) == 2
    assert "vocabulary.parquet is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["inspect", "a", "--top", "3"], ["prepare", "a", "b", "--overwite"], ["upload"], []]
)
def test_unknown_arguments_are_refused(arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2


def test_ctrl_c_is_one_line_and_status_130(tmp_path, log_path, capsys, monkeypatch):
    def interrupt(*_):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(prepare_module, "find_split", interrupt)
    assert main(["prepare", str(log_path), str(tmp_path / "out"), "prepare.workers=1"]) == 130
    assert capsys.readouterr().err.strip() == "stopped by SIGINT; the same command resumes"
    assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["synthesize", "log.txt", "--rows", "100000", "--workers", "1"], (synthetic, "block_text")),
        (["describe", "{log}"], (propose, "read_first_rows")),
        (["pre-check", "{log}"], (pre_check, "find_log")),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_without_a_result_to_resume_stops_at_once(
    tmp_path, log_path, capsys, monkeypatch, words, place, number
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(*place, lambda *_: signal.raise_signal(number))
    assert main([word.format(log=log_path) for word in words]) == 128 + number
    assert capsys.readouterr().err.strip().endswith(f"stopped by {number.name}")
    assert list(tmp_path.iterdir()) == []


def test_an_early_error_waits_for_the_import_of_mindspore(tmp_path, command_environment):
    """An interpreter that ends in the middle of that import aborts."""
    (tmp_path / "empty.txt").touch()
    command = "-P", "-m", "data_prep", "prepare", "empty.txt", "out"
    done = run_python(*command, cwd=tmp_path, env=command_environment, status=2)
    assert done.stderr.splitlines()[-1].startswith("error: empty.txt is empty")
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


def test_a_reader_that_has_had_enough_is_no_error(prepared, command_environment):
    close_output_at_once("-P", "-m", "data_prep", "inspect", prepared, env=command_environment)


def test_a_terminal_of_ascii_is_no_error(log_path, command_environment):
    environment = {**command_environment, "PYTHONIOENCODING": "ascii"}
    done = run_python("-P", "-m", "data_prep", "pre-check", log_path, env=environment, status=None)
    assert "error" not in done.stderr and "range" in done.stdout
