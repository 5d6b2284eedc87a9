import re
import shutil

import numpy as np
import pyarrow as pa
import pytest

from data_prep.checks.inspect import inspect, summarize
from data_prep.options.log_format import LogFormat, VectorForm
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare_table
from data_prep.prepared.data_files import verify_files
from data_prep.prepared.schema import NORM_RANKS, read_schema
from data_prep.report import write_report
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


@pytest.mark.parametrize("share_missing", [0.0, 0.25, 1.0])
def test_vectors_are_in_tables_and_report(tmp_path, capsys, share_missing):
    random = np.random.default_rng(5)
    values, missing = random.normal(size=(400, 3)), random.random(400) < share_missing
    vectors = [None if gap else vector for vector, gap in zip(values.tolist(), missing, strict=True)]
    log_format = LogFormat({"click": "label", "v": "vector"}, vectors={"v": VectorForm(3, "norm")})
    table = pa.table({"click": random.integers(0, 2, 400), "v": pa.array(vectors, pa.list_(pa.float64()))})
    prepare_table(table, tmp_path / "out", PrepareOptions(data=log_format, workers=1))
    others = np.concatenate([np.load(tmp_path / "out" / f"row_numbers-{split}.npy") for split in ("valid", "test")])
    is_train = ~np.isin(np.arange(400), others)
    schema = read_schema(tmp_path / "out")
    (percent,) = summarize(tmp_path / "out", schema, "train").vectors_missing_percent
    assert percent == pytest.approx(100 * missing[is_train].mean())
    norms = np.linalg.norm(values[is_train & ~missing].astype(np.float32), axis=1)
    assert schema.vectors[0].norms == pytest.approx(np.quantile(norms, NORM_RANKS) if len(norms) else [])
    capsys.readouterr()
    inspect(tmp_path / "out")
    (row,) = re.findall(r"Vector columns.*\n.*missing train.* 100 %\nv +(.*)", capsys.readouterr().out)
    assert row.split()[:2] == ["3", f"{percent:.4g}"]
    assert row.split()[4:] == ([f"{each:.4g}" for each in schema.vectors[0].norms] or ["–"] * len(NORM_RANKS))
    report = write_report(tmp_path / "out").read_text()
    assert "Vector columns" in report and ("Norms of v" in report) == (share_missing < 1)


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
