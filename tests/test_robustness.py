"""Misuses of a user's day that belong to no single file, and the page that names the tests of all of them."""

import os
import re
import sysconfig
from pathlib import Path

import pytest

from data_prep.__main__ import main
from data_prep.prepared.schema import read_schema
from tests.programs import run_python

ROOT = Path(__file__).parents[1]


def test_the_page_names_tests_that_are_there():
    named = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", (ROOT / "docs" / "robustness.md").read_text())
    assert len(named) >= 25 and len(set(named)) == len(named)
    assert [name for file, name in named if f"def {name}(" not in (ROOT / file).read_text()] == []


@pytest.mark.skipif(
    not Path(sysconfig.get_path("purelib"), "wide_deep.pth").exists(), reason="this Python is not that of `make setup`"
)
@pytest.mark.parametrize("package", ["app", "data_prep"])
def test_the_python_of_make_setup_finds_the_commands_from_any_folder(tmp_path, package):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = run_python("-m", package, "--help", cwd=tmp_path, env=environment, status=None)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: python -m {package}")


@pytest.fixture
def prepare_described(tmp_path, monkeypatch, capsys):
    """Write a log into a folder of any name, describe it, prepare it by the description, and return the schema."""

    def prepare(header, rows):
        folder = tmp_path / "Ünï côde и пробел"
        folder.mkdir()
        monkeypatch.chdir(folder)
        Path("mein löß.csv").write_text("\n".join(map(",".join, [header, *rows])) + "\n", encoding="utf-8")
        assert main(["describe", "mein löß.csv"]) == 0
        Path("größe.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
        words = ["prepare", "mein löß.csv", "vor bereitet", "--data", "größe.yaml", "prepare.workers=1"]
        assert main([*words, "prepare.min_count=1"]) == 0, capsys.readouterr().err
        return read_schema(Path("vor bereitet"))

    return prepare


def test_three_hundred_columns_with_names_that_are_not_ascii(prepare_described):
    names = ["click", *(f"sp älte {number}" for number in range(299))]
    rows = [[str(row % 2), *("äöü"[(row * 7 + number) % 3] for number in range(299))] for row in range(200)]
    schema = prepare_described(names, rows)
    assert sum(split.rows for split in schema.splits.values()) == 200
    assert [field.name for field in schema.categorical] == names[1:]
    assert {field.num_values for field in schema.categorical} == {4}  # missing is one


def test_ten_rows_lose_none(prepare_described):
    schema = prepare_described(["click", "farbe"], [[str(row % 2), "rot" if row % 3 else "grün"] for row in range(10)])
    assert sum(split.rows for split in schema.splits.values()) == 10


def test_one_column_is_refused_with_the_line_and_what_was_tried(tmp_path, capsys):
    log = tmp_path / "one.csv"
    log.write_text("click\n" + "1\n0\n" * 50)
    assert main(["describe", str(log)]) == 2
    shown = capsys.readouterr().err
    assert "no separator divides its lines into columns; tried" in shown and "The first line is 'click'" in shown


@pytest.mark.parametrize("words", [("synthesize", "{}", "--rows", "10"), ("prepare", "log.txt", "{}")])
def test_an_output_that_cannot_be_written_is_named_without_the_system_s_number(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    assert main(["synthesize", "log.txt", "--rows", "10", "--workers", "1"]) == 0
    assert main([word.format("/proc/self/made") for word in words]) == 2
    shown = capsys.readouterr().err
    assert "No such file or directory" in shown and "/proc/self/made" in shown
    assert "Errno" not in shown
