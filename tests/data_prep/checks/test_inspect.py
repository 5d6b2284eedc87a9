import re
import shutil

import numpy as np
import pytest

from data_prep.checks.inspect import inspect, summarize
from data_prep.prepared.data_files import verify_files
from data_prep.prepared.schema import read_schema
from tests.damage import flip_bit


@pytest.fixture
def folder(tmp_path, prepared):
    """A copy that a test may damage."""
    return shutil.copytree(prepared, tmp_path / "copy")


def training_lines(prepared, log_path):
    """Lines of the splits valid and test are known by number; the others are training rows."""
    lines = [line.split("\t") for line in log_path.read_text().splitlines()]
    others = np.concatenate([np.load(prepared / f"row_numbers-{split}.npy") for split in ("valid", "test")])
    return [line for row, line in enumerate(lines) if row not in set(others.tolist())]


def test_shares_and_quantiles_are_those_of_the_log(prepared, log_path):
    schema = read_schema(prepared)
    summary = summarize(prepared, schema, "train")
    lines = training_lines(prepared, log_path)
    cells = [line[14] for line in lines]
    assert summary.missing_percent[0] == pytest.approx(100 * cells.count("") / len(cells), abs=0.005)
    rare = [cell for cell in cells if cell and cells.count(cell) < 3]
    assert summary.oov_percent[0] == pytest.approx(100 * len(rare) / len(cells), abs=0.005)
    assert schema.categorical[0].num_values == len({cell for cell in cells if cells.count(cell) >= 3} | {""})

    present = [int(line[2]) for line in lines if line[2]]
    missing, lowest, *_, highest = summary.numeric["I2"]
    assert missing == pytest.approx(100 * (1 - len(present) / len(lines)), abs=0.005)
    assert highest == pytest.approx(np.log1p(max(present)), abs=0.001)
    assert lowest == pytest.approx(-np.log(2), abs=0.001)


def test_the_tables_are_printed(prepared, capsys):
    inspect(prepared)
    printed = capsys.readouterr().out
    for words in ("files with the right size and checksum", "click rate", "oov test", "C26", "I13"):
        assert words in printed
    (splits,) = re.findall(r"\nSplits\n.*\ntrain +([\d,]+) +([\d.]+) .*\nvalid +(\d+) .*\ntest +(\d+) ", printed)
    assert [int(cell.replace(",", "")) for cell in (splits[0], *splits[2:])] == [
        read_schema(prepared).splits[split].rows for split in ("train", "valid", "test")
    ]
    assert float(splits[1]) == pytest.approx(0.8, abs=0.05)


def test_damaged_and_missing_files_are_named(folder):
    schema = read_schema(folder)
    assert verify_files(folder, schema) == len(list(folder.iterdir())) - 1
    path = folder / "train-00000.mindrecord"
    flip_bit(path)
    with pytest.raises(ValueError, match=r"train-00000.mindrecord is damaged: .* schema.json expects"):
        verify_files(folder, schema)
    path.unlink()
    with pytest.raises(ValueError, match=r"train-00000.mindrecord is missing"):
        verify_files(folder, schema)
