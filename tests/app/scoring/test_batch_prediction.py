"""A whole log scored: every line has its place in the output, and a stopped prediction resumes to the same bytes."""

import codecs
import csv
import gzip
import io
import itertools
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from app.__main__ import _parser
from app.cli import predict as command
from app.evaluation.metrics import MetricStream
from app.scoring import batch_prediction as module
from app.scoring.batch_prediction import predict
from app.scoring.predictor import Predictor
from common.signals import StopSignal
from tests.kills import Killed, fails_at, in_child

BAD = {3: "not a line", 700: "2\t" + "1\t" * 13 + "\t".join(["0123abcd"] * 26)}


@pytest.fixture(scope="module")
def lines(tiny_log):
    return tiny_log.read_text().splitlines()[:1200]


@pytest.fixture
def log(tmp_path, lines):
    path = tmp_path / "log.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def bad_log(tmp_path, lines):
    path = tmp_path / "bad.txt"
    path.write_text("".join(f"{BAD.get(place, line)}\n" for place, line in enumerate(lines)))
    return path


def read(path):
    if path.suffix == ".parquet":
        return pq.read_table(path)
    return pa_csv.read_csv(
        path, convert_options=pa_csv.ConvertOptions(column_types={"score": pa.float32(), "reason": pa.string()})
    )


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_every_line_has_its_place(tiny_bundle, predictor, bad_log, tmp_path, lines, ending):
    output = tmp_path / f"scores{ending}"
    found = predict(tiny_bundle, [str(bad_log)], str(output), chunk_bytes=20_000)
    table = read(output)
    assert table.column_names == ["line", "score", "reason"]
    assert table["line"].to_pylist() == list(range(1, 1201))
    good = [place for place in range(1200) if place not in BAD]
    scores = table["score"].to_pylist()
    assert np.array_equal(np.array([scores[i] for i in good], np.float32), predictor.score([lines[i] for i in good]))
    reasons = [reason or None for reason in table["reason"].to_pylist()]
    assert {i: reason for i, reason in enumerate(reasons) if reason} == {3: "columns", 700: "label"}
    assert [scores[i] for i in BAD] == [None, None]
    assert (found["rows"], found["bad_lines"]) == (1200, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([bad_log.name, output.name])


def test_metrics_are_those_of_the_scores(tiny_bundle, predictor, log, tmp_path, lines):
    found = predict(tiny_bundle, [str(log)], str(tmp_path / "scores.csv"), chunk_bytes=20_000)
    stream = MetricStream()
    stream.add(predictor.logits(lines), np.array([line[0] == "1" for line in lines], np.float32))
    assert found["metrics"]["auc"] == stream.result().auc
    low, high = found["intervals"]["auc"]
    assert low < found["metrics"]["auc"] < high


def without_labels(lines):
    return "".join(line.split("\t", 1)[1] + "\n" for line in lines)


def test_a_row_with_an_empty_label_has_a_score_and_counts_in_no_metric(tiny_bundle, predictor, tmp_path, lines):
    some = [line if place % 3 else line[1:] for place, line in enumerate(lines)]
    (tmp_path / "some.txt").write_text("".join(f"{line}\n" for line in some))
    found = predict(tiny_bundle, [str(tmp_path / "some.txt")], str(tmp_path / "scores.parquet"))
    assert np.array_equal(pq.read_table(tmp_path / "scores.parquet")["score"].to_numpy(), predictor.score(lines))
    stream = MetricStream()
    labelled = [line for place, line in enumerate(lines) if place % 3]
    stream.add(predictor.logits(labelled), np.array([line[0] == "1" for line in labelled], np.float32))
    assert found["bad_lines"] == 0
    assert found["metrics"]["auc"] == stream.result().auc


def test_bad_first_lines_do_not_decide_whether_a_log_has_labels(tiny_bundle, predictor, tmp_path, lines):
    (tmp_path / "bare.txt").write_text("not a line\n" + without_labels(lines[:50]))
    found = predict(tiny_bundle, [str(tmp_path / "bare.txt")], str(tmp_path / "scores.parquet"))
    assert found == {"rows": 51, "bad_lines": 1}
    scores = pq.read_table(tmp_path / "scores.parquet")["score"].to_pylist()
    assert np.array_equal(np.array(scores[1:], np.float32), predictor.score(lines[:50]))


def test_packed_and_parquet_logs_and_globs_score_the_same(tiny_bundle, predictor, tmp_path, lines):
    (tmp_path / "part-0.txt.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in lines[:500]).encode()))
    (tmp_path / "part-1.txt").write_text("".join(f"{line}\n" for line in lines[500:]))
    predict(tiny_bundle, [str(tmp_path / "part-*")], str(tmp_path / "scores.parquet"), keep=["C1"])
    table = pq.read_table(tmp_path / "scores.parquet")
    assert table.column_names == ["line", "file", "C1", "score", "reason"]
    assert table["file"].to_pylist() == ["part-0.txt.gz"] * 500 + ["part-1.txt"] * 700
    assert table["line"].to_pylist() == [*range(1, 501), *range(1, 701)]
    assert np.array_equal(table["score"].to_numpy(), predictor.score(lines))

    names = list(predictor.log_format.columns)
    columns = dict(zip(names, zip(*(line.split("\t") for line in lines), strict=True), strict=True))
    for labelled in (True, False):
        output = tmp_path / f"{labelled}.parquet"
        table = pa.table({name: columns[name] for name in (names if labelled else names[1:])})
        pq.write_table(table.append_column("more", table["I1"]), tmp_path / "log.parquet")
        predict(tiny_bundle, [str(tmp_path / "log.parquet")], str(output))
        assert np.array_equal(pq.read_table(output)["score"].to_numpy(), predictor.score(lines))


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
def test_json_lines_score_the_same_and_keep_what_they_hold(tiny_bundle, predictor, tmp_path, lines, labelled, workers):
    names = list(predictor.log_format.columns)
    rows = [dict(zip(names, line.split("\t"), strict=True)) | {"n": number} for number, line in enumerate(lines)]
    texts = [json.dumps({k: v for k, v in row.items() if v != "" and (labelled or k != "label")}) for row in rows]
    texts[9] = "null"
    (tmp_path / "log.jsonl").write_text("\n".join(texts))
    predict(
        tiny_bundle, [str(tmp_path / "log.jsonl")], str(tmp_path / "scores.parquet"), keep=["n"], num_workers=workers
    )
    table = pq.read_table(tmp_path / "scores.parquet").to_pydict()
    assert table["line"] == list(range(1, 1201))
    assert table["n"] == [str(number) if number != 9 else "" for number in range(1200)]
    assert (table["score"].pop(9), table["reason"][9]) == (None, "columns")
    assert np.array_equal(np.array(table["score"], np.float32), predictor.score(lines[:9] + lines[10:]))


@pytest.mark.parametrize("labelled", [True, False])
def test_a_log_with_a_header_keeps_its_columns(text_bundle, make_avazu, tmp_path, labelled):
    header, *rows = make_avazu(200, seed=5).splitlines()
    rows[7] = "short,line"
    expected = Predictor.open(text_bundle).score(rows[:7] + rows[8:])
    if not labelled:
        header, *rows = (",".join(cells[:1] + cells[2:]) for cells in (line.split(",") for line in [header, *rows]))
    (tmp_path / "log.csv").write_text("\n".join([header, *rows]) + "\n")
    predict(text_bundle, [str(tmp_path / "log.csv")], str(tmp_path / "scores.parquet"), keep=["id", "C21"])
    table = pq.read_table(tmp_path / "scores.parquet")
    assert table["line"].to_pylist() == list(range(2, 202))  # the header is the first line
    cells = [row.split(",") for row in rows]
    assert table["id"].to_pylist() == [row[0] for row in cells]
    assert table["C21"].to_pylist() == [row[-1] if len(row) > 2 else "" for row in cells]
    scores = table["score"].to_pylist()
    assert scores[7] is None and table["reason"].to_pylist()[7] == "columns"
    assert np.array_equal(np.array(scores[:7] + scores[8:], np.float32), expected)


def test_a_test_file_with_another_column_and_no_label_scores(text_bundle, make_avazu, tmp_path):
    """Columns are found by name; those that change no score need not be there, and any may be kept."""
    header, *rows = make_avazu(200, seed=5).splitlines()
    expected = Predictor.open(text_bundle).score(rows)
    cells = dict(zip(header.split(","), zip(*(row.split(",") for row in rows), strict=True), strict=True))
    columns = {"number": [f"n{n}" for n in range(200)], **dict(reversed(cells.items())), "note, long": ["a,\tb"] * 200}
    del columns["click"], columns["id"]
    with (tmp_path / "test.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *zip(*columns.values(), strict=True)])
    columns["note, long"][7] = "two\nlines, and\r more"  # which no line holds, and a table does
    columns["number"] = pa.array([None if n == 3 else n for n in range(200)])
    pq.write_table(pa.table({**columns, "flag": [True] * 200}), tmp_path / "test.parquet")
    for name, number, note in (("test.csv", "n3", "a,\tb"), ("test.parquet", "", "two\nlines, and\r more")):
        output = tmp_path / f"{name}.scores.parquet"
        keep = ["note, long", "C21", "number"]
        assert predict(text_bundle, [str(tmp_path / name)], str(output), keep=keep)["bad_lines"] == 0
        table = pq.read_table(output)
        assert np.array_equal(table["score"].to_numpy(), expected)
        assert table["C21"].to_pylist() == list(cells["C21"])
        assert (table["number"][3].as_py(), table["note, long"][7].as_py()) == (number, note)
        with pytest.raises(ValueError, match=r"--keep nothing: .*has no such column; it has .*number"):
            predict(text_bundle, [str(tmp_path / name)], str(tmp_path / "none.csv"), keep=["nothing"])
    predict(text_bundle, [str(tmp_path / "test.parquet")], str(tmp_path / "flags.parquet"), keep=["flag"])
    assert pq.read_table(tmp_path / "flags.parquet")["flag"].to_pylist() == ["true"] * 200


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_other_columns_are_an_error_without_an_option_of_another_command(text_bundle, make_avazu, tmp_path, ending):
    header, *rows = make_avazu(20, seed=5).splitlines()
    path = tmp_path / f"log.{ending}"
    path.write_text("\n".join([header, *rows]).replace(",", ";"))
    if ending == "parquet":
        pq.write_table(pa.table({"C21": ["a"]}), path)
    with pytest.raises(ValueError, match=r"columns (than|of) the model: not found") as error:
        predict(text_bundle, [str(path)], str(tmp_path / "scores.csv"))
    assert "--data" not in str(error.value)


@pytest.mark.parametrize(("num_bad", "words", "status"), [
    (0, [], 0), (1, [], 0), (2, [], 2), (100, [], 2), (2, ["--max-reject-fraction", "0.02"], 0),
    (1, ["--max-reject-fraction", "0"], 2), (100, ["--max-reject-fraction", "1"], 0),
    (0, ["--max-reject-fraction", "-0.1"], 2), (0, ["--max-reject-fraction", "nan"], 2),
])  # fmt: skip
def test_too_many_bad_lines_end_with_a_status(tiny_bundle, tmp_path, lines, caplog, num_bad, words, status):
    (tmp_path / "log.txt").write_text("".join(f"{'bad' if n < num_bad else lines[n]}\n" for n in range(100)))
    output = tmp_path / "scores.parquet"
    words = [str(tiny_bundle), str(tmp_path / "log.txt"), str(output), "--workers", "1", *words]
    assert command.main(command.add_arguments, "app.cli.predict", words) == status
    assert (num_bad > 0 and status == 2) == (f"{num_bad} of 100 lines are bad" in caplog.text)
    if num_bad:
        assert pq.read_table(output)["reason"].to_pylist()[0] == "columns"  # it is there, to see why


class Binary:
    def __init__(self, buffer):
        self.buffer = buffer


def test_standard_input_to_standard_output(tiny_bundle, predictor, monkeypatch, lines, tmp_path):
    output = io.BytesIO()
    (tmp_path / "packed").write_bytes(gzip.compress(without_labels(lines).encode()))
    monkeypatch.setattr(sys, "stdin", Binary((tmp_path / "packed").open("rb")))
    monkeypatch.setattr(sys, "stdout", Binary(output))
    predict(tiny_bundle, ["-"], "-")
    rows = output.getvalue().decode().splitlines()[1:]
    assert np.array_equal(np.array([row.split(",")[1] for row in rows], np.float32), predictor.score(lines))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_standard_input_that_comes_slowly_at_first(tiny_bundle, predictor, lines, tmp_path, monkeypatch, ending):
    text = codecs.BOM_UTF8 + without_labels(lines).encode()
    packed = gzip.compress(text) if ending else text

    class Slow(io.FileIO):
        def readinto(self, buffer):
            return super().readinto(memoryview(buffer)[: 1 if self.tell() < 4 else 1000])

    (tmp_path / "packed").write_bytes(packed)
    monkeypatch.setattr(sys, "stdin", Binary(io.BufferedReader(Slow(tmp_path / "packed"))))
    predict(tiny_bundle, ["-"], str(tmp_path / "scores.parquet"))
    scores = pq.read_table(tmp_path / "scores.parquet")["score"].to_numpy()
    assert np.array_equal(scores, predictor.score(lines))


def test_standard_input_packed_in_another_way_is_refused_with_the_way_out(tiny_bundle, tmp_path, monkeypatch):
    (tmp_path / "packed").write_bytes(b"PK\x03\x04" + bytes(1000))
    monkeypatch.setattr(sys, "stdin", Binary((tmp_path / "packed").open("rb")))
    with pytest.raises(ValueError, match=r"stdin\.txt is no text.*; pack it by gzip or zstd instead: unzip -p OLD"):
        predict(tiny_bundle, ["-"], str(tmp_path / "scores.csv"))


def test_a_stopped_prediction_resumes_to_the_same_bytes(tiny_bundle, log, tmp_path, monkeypatch):
    words = (tiny_bundle, [str(log)])
    predict(*words, str(tmp_path / "whole.csv"), chunk_bytes=20_000)
    output = tmp_path / "scores.csv"
    with fails_at(module._ScoreWriter, "add", 6, Killed()), pytest.raises(Killed):
        predict(*words, str(output), chunk_bytes=20_000)
    assert not output.exists()
    with pytest.raises(ValueError, match=r"other settings.*--restart"):
        predict(*words, str(output), keep=["C1"], chunk_bytes=20_000)
    scored = []
    call = module.ChunkScorer.__call__
    monkeypatch.setattr(module.ChunkScorer, "__call__", lambda self, chunk: scored.append(chunk) or call(self, chunk))
    predict(*words, str(output), chunk_bytes=20_000)
    assert output.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    num_chunks = -(-log.stat().st_size // 20_000)
    assert 0 < len(scored) <= num_chunks - 5
    assert not (tmp_path / "scores.csv.partial").exists()


MOMENTS = [  # where it is killed: a function, and at which of its calls
    (module, "lock_folder", 1),
    (module, "write_whole", 1),
    (module._ScoreWriter, "add", 1),
    (module._ScoreWriter, "add", 3),
    (module, "sync_folder", 1),  # before the output has its name
    (module, "sync_folder", 2),
    (module, "_remove", 1),
    (module.shutil, "rmtree", 2),  # in the removal of what is left
    (module.shutil, "rmtree", 3),
]


@pytest.mark.parametrize(("owner", "name", "number"), MOMENTS)
def test_a_killed_prediction_is_ended_by_the_same_command(tiny_bundle, log, tmp_path, owner, name, number):
    """Whatever the kill leaves: no half of an output, and nothing beside it after the second run."""
    words, output, calls = (tiny_bundle, [str(log)]), tmp_path / "scores.csv", itertools.count(1)
    predict(*words, str(tmp_path / "whole.csv"), chunk_bytes=50_000)
    whole, function = (tmp_path / "whole.csv").read_bytes(), getattr(owner, name)

    def die(*arguments, **keywords):
        if next(calls) == number:
            os._exit(9)
        return function(*arguments, **keywords)

    def killed():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, die)
            predict(*words, str(output), chunk_bytes=50_000)

    _, status = os.waitpid(in_child(killed), 0)
    assert os.waitstatus_to_exitcode(status) == 9
    assert not output.exists() or output.read_bytes() == whole
    predict(*words, str(output), chunk_bytes=50_000)
    assert output.read_bytes() == whole
    assert {path.name for path in tmp_path.iterdir()} == {log.name, "whole.csv", "scores.csv"}
    with pytest.raises(FileExistsError, match="--overwrite"):
        predict(*words, str(output), chunk_bytes=50_000)


@pytest.mark.parametrize("limit", [300, 4_000])
def test_a_quota_names_the_output_and_the_way_out_and_is_resumed(tiny_bundle, log, tmp_path, limit):
    """Too little for a chunk's scores, or for the output alone."""
    output, whole = tmp_path / "scores.parquet", tmp_path / "whole.parquet"
    predict(tiny_bundle, [str(log)], str(whole), chunk_bytes=20_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match=r"cannot write .*scores\.parquet: File too large; raise the limit"):
            predict(tiny_bundle, [str(log)], str(output), chunk_bytes=20_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not output.exists()
    predict(tiny_bundle, [str(log)], str(output), chunk_bytes=20_000)
    assert output.read_bytes() == whole.read_bytes()


def test_a_stopped_prediction_of_standard_input_leaves_nothing(tiny_bundle, log, tmp_path, monkeypatch, caplog):
    """Lines from a pipe are gone, so the next run has nothing to resume, and must not be refused for it."""

    def stop(self, scored):
        raise StopSignal(signal.SIGINT)

    monkeypatch.setattr(sys, "stdin", Binary(log.open("rb")))
    monkeypatch.setattr(module._ScoreWriter, "add", stop)
    words = [str(tiny_bundle), "-", str(tmp_path / "scores.csv"), "--workers", "1"]
    assert command.main(command.add_arguments, "app.cli.predict", words) == 130
    assert "stopped by SIGINT" in caplog.text and "resumes" not in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == [log.name]


def test_a_signal_while_standard_input_is_read_leaves_nothing(tiny_bundle, log, tmp_path, monkeypatch, caplog):
    """The pipe stays open: its writer has not been stopped."""
    reading, writing = os.pipe()
    os.write(writing, log.read_bytes()[:5000])
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb"):
        monkeypatch.setattr(sys, "stdin", Binary(stream))
        timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        words = [str(tiny_bundle), "-", str(tmp_path / "scores.csv"), "--workers", "1"]
        assert command.main(command.add_arguments, "app.cli.predict", words) == 130
        timer.join()
    assert "stopped by SIGINT" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == [log.name]


def test_files_of_one_name_are_distinguished(tiny_bundle, tmp_path, lines):
    for day in "ab":
        (tmp_path / day).mkdir()
        (tmp_path / day / "log.txt").write_text("".join(f"{line}\n" for line in lines[:90]))
    inputs = [str(tmp_path / day / "log.txt") for day in "ab"]
    predict(tiny_bundle, inputs, str(tmp_path / "scores.parquet"))
    assert pq.read_table(tmp_path / "scores.parquet")["file"].to_pylist() == [
        path for path in inputs for _ in range(90)
    ]


@pytest.mark.slow
def test_an_environment_with_the_required_packages_alone_scores_the_same_bits(
    tiny_bundle, predictor, log, tmp_path, lines
):
    python = tmp_path / "environment" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "environment"], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "-r", tiny_bundle / "requirements.txt"]
    if (done := subprocess.run(install, capture_output=True, text=True)).returncode:
        pytest.skip(f"the packages cannot be had here: {done.stderr.splitlines()[-1]}")
    scores = tmp_path / "scores.parquet"
    for words in (["bundle", "verify", tiny_bundle], ["predict", tiny_bundle, log, scores]):
        command = [python, "-m", f"wide_deep_bundle.app.cli.{words[0]}", *words[1:]]
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(tiny_bundle / "code"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert np.array_equal(pq.read_table(scores)["score"].to_numpy(), predictor.score(lines))


def test_several_processes_write_the_same_bytes(tiny_bundle, log, tmp_path):
    outputs = [tmp_path / f"{workers}.parquet" for workers in (1, 2)]
    for workers, output in zip((1, 2), outputs, strict=True):
        predict(tiny_bundle, [str(log)], str(output), num_workers=workers, chunk_bytes=100_000)
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["log.txt", "scores.txt"], "must end in .csv or .parquet"),
        (["log.txt", "no/scores.csv"], "there is no folder"),
        (["nothing.txt", "scores.csv"], "no log at nothing.txt"),
        (["log.txt", "scores.csv", "--keep", "C99"], "no such column"),
        (["log.txt", "scores.csv", "--keep", "C1", "--keep", "C1"], "a column of that name already"),
        (["log.txt", "scores.csv", "--workers", "-1"], "--workers must be 1 or more"),
        (["log.txt", "there.csv"], "there.csv is there; replace it with --overwrite"),
        (["log.txt", "folder.csv", "--overwrite"], "folder.csv is a folder"),
        (["log.txt", "in_the_way.csv"], "in_the_way.csv.partial is in the way"),
    ],
)
def test_a_command_that_fails_ends_with_2_and_the_reason(
    tiny_bundle, log, tmp_path, monkeypatch, caplog, words, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").write_text("mine")
    (tmp_path / "in_the_way.csv.partial").mkdir()
    (tmp_path / "folder.csv").mkdir()
    caplog.set_level(logging.INFO)
    assert command.main(command.add_arguments, "app.cli.predict", [str(tiny_bundle), *words]) == 2
    assert message in caplog.text
    assert (tmp_path / "there.csv").read_text() == "mine"
    names = {"log.txt", "there.csv", "folder.csv", "in_the_way.csv.partial"}
    assert {path.name for path in tmp_path.iterdir()} == names  # nothing is left of it


def test_the_command_prints_metrics(tiny_bundle, log, tmp_path, capsys):
    words = ["predict", str(tiny_bundle), str(log), str(tmp_path / "scores.csv"), "--workers", "1"]
    arguments = _parser().parse_args(words)
    assert arguments.command(arguments) == 0
    printed = capsys.readouterr().out
    assert "1,200 rows, 0 of them bad lines" in printed
    assert "auc " in printed and "95 % within" in printed and "weight" not in printed


def test_a_log_that_the_model_was_trained_on_is_named(tiny_bundle, tiny_log, log, tmp_path, caplog):
    same = shutil.copy(tiny_log, tmp_path / "same.txt")
    other = tmp_path / "other.txt"
    other.write_bytes(tiny_log.read_bytes()[:-2] + b"0\n")  # another file of the same size
    for place, (path, names) in enumerate(((same, ["same.txt"]), (other, None), (log, None))):
        arguments = _parser().parse_args(["predict", str(tiny_bundle), str(path), str(tmp_path / f"{place}.csv")])
        caplog.clear()
        assert arguments.command(arguments) == 0
        assert ("trained on most of these rows" in caplog.text) == bool(names)
        assert (
            predict(tiny_bundle, [str(path)], str(tmp_path / f"{place}.csv"), overwrite=True).get("trained_on") == names
        )


def test_a_damaged_state_is_no_other_prediction_s(tiny_bundle, log, tmp_path):
    folder = tmp_path / "scores.csv.partial"
    folder.mkdir()
    (folder / "run.lock").touch()
    (folder / "run.json").write_text("{")
    with pytest.raises(ValueError, match="--restart"):
        predict(tiny_bundle, [str(log)], str(tmp_path / "scores.csv"))
    assert predict(tiny_bundle, [str(log)], str(tmp_path / "scores.csv"), restart=True)["rows"] == 1200
    assert json.dumps(sorted(path.name for path in tmp_path.iterdir())) == '["log.txt", "scores.csv"]'
