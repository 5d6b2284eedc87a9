"""Checks in benchmarks.preparation.prepare: agreement of the contenders, memory limits, the summary."""

import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.harness.results import figure, prepare_ratio
from benchmarks.preparation.prepare import Contender, Run, run, summarize
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.sources.synthetic import synthesize
from tests.programs import run_python


@pytest.fixture(scope="module")
def peer():
    return pytest.importorskip("benchmarks.peers.prepare_polars", reason="polars is not installed")


@pytest.fixture(scope="module")
def folders(peer, tmp_path_factory):
    """A log prepared by data_prep and by the polars pipeline, both forms of it."""
    folder = tmp_path_factory.mktemp("agreement")
    log = synthesize(folder / "log.txt", 3_000, seed=5, workers=1).log_path
    prepare(log, folder / "ours", PrepareOptions(workers=1))
    for form in ("eager", "streaming"):
        peer.prepare(log, folder / form, PrepareOptions().min_count, form)
    return folder


@pytest.mark.parametrize("form", ["eager", "streaming"])
def test_polars_gives_the_same_ids_and_numbers(peer, folders, form):
    assert peer.check_agreement(folders / "ours", folders / form) == 3_000


@pytest.mark.parametrize(("split", "column"), [("train", "C3"), ("test", "I2"), ("valid", "label")])
def test_one_other_cell_is_found(peer, folders, tmp_path, split, column):
    for name in ("train", "valid", "test"):
        table = pq.read_table(folders / "eager" / f"{name}.parquet")
        if name == split:
            values = table[column].to_numpy().copy()
            values[7] += 1
            table = table.set_column(table.column_names.index(column), column, pa.array(values))
        pq.write_table(table, tmp_path / f"{name}.parquet")
    with pytest.raises(ValueError, match=rf"split {split} is not the same: (.|\n)*\"{column}\""):
        peer.check_agreement(folders / "ours", tmp_path)


def test_who_takes_more_memory_than_allowed_is_stopped(tmp_path):
    greedy = Contender(1, ("-c", "import time; room = bytearray(b'1') * (300 << 20); time.sleep(100)"))
    stopped = run(greedy, tmp_path, tmp_path, limit_mib=150)
    assert not stopped.finished and stopped.peak_mib > 150 and stopped.seconds < 60
    assert run(Contender(1, ("-c", "pass")), tmp_path, tmp_path, limit_mib=150).finished


def test_a_failing_contender_is_an_error(tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        run(Contender(1, ("-c", "raise SystemExit(3)")), tmp_path, tmp_path)


def test_ratios_of_who_did_not_finish(tmp_path):
    chosen = {"data_prep": Contender(1000, ()), "zoo": Contender(10, ()), "polars streaming": Contender(1000, ())}
    runs = {
        "data_prep": [Run(2.0, 3.0, 100.0), Run(4.0, 5.0, 300.0), Run(3.0, 4.0, 200.0)],
        "zoo": [Run(1.0, 1.0, 50.0)],
        "polars streaming": [Run(9.0, 9.0, 5000.0, finished=False)],
    }
    results = {"prepare": {"contenders": summarize(chosen, runs)}}
    assert figure(results, "prepare", "contenders", "data_prep", "rows_per_second") == pytest.approx(1000 / 3)
    assert prepare_ratio(results, "prepare", "zoo") == pytest.approx(100 / 3)
    assert prepare_ratio(results, "prepare", "polars streaming") == float("inf")
    with pytest.raises(KeyError):
        prepare_ratio(results, "prepare", "polars eager")


def test_the_command_is_one_of_the_benchmarks(project):
    assert "prepare_large" in run_python("-m", "benchmarks", "--help", cwd=project).stdout
