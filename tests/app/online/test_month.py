"""A month of parts, compressed in time, in which ten times as many values come as may have ids: nothing grows."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import step_folders
from app.online import online_trainer
from app.online.online_trainer import OnlineTrainer
from app.scoring.bundle_folder import chains, read_manifests
from app.training.start import plan_launch
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from tests.app.online.conftest import Online
from tests.app.online.test_online_trainer import metrics_of

NUM_PARTS, ROWS, FULL_EVERY, KEEP = 60, 50_000, 6, 3
COLUMNS, POOL, BORN_A_PART = 4, 6_000, 1_500  # values of each column that live at a time, and that are born with a part
MOST_IDS = COLUMNS * POOL
PREPARE = PrepareOptions(
    data=LogFormat(columns={"click": "label", **{f"c{n}": "hex32" for n in range(COLUMNS)}, "age": "integer"}),
    min_count=4,
    workers=1,
    train_fraction=1.0,
    valid_fraction=0.0,
    test_fraction=0.0,
)


def rows_of_part(number):
    """A part's rows: a click depends on the values, the most frequent of which are the youngest."""
    chance = np.random.default_rng(number)
    ages = np.minimum(POOL * chance.random((COLUMNS, ROWS)) ** 3, POOL - 1).astype(np.uint64)
    columns = np.arange(COLUMNS, dtype=np.uint64)[:, None] << np.uint64(28)
    values = np.uint64(POOL + number * BORN_A_PART) - ages + columns
    effects = (values * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)).astype(np.float64) / 2**24 - 0.5
    clicks = chance.random(ROWS) < 1 / (1 + np.exp(1.5 - 2.5 * effects.sum(axis=0)))
    columns = {"click": clicks.astype(np.int64)}
    columns |= {f"c{n}": pa.array([f"{value:08x}" for value in values[n].tolist()]) for n in range(COLUMNS)}
    return pa.table(columns | {"age": chance.integers(0, 9, ROWS)}), values


def bytes_below(folder):
    return sum(path.lstat().st_size for path in Path(folder).rglob("*") if path.is_file())


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.fixture(scope="module")
def warm(tmp_path_factory, cpu, tiny_config):
    """A run that was trained on the part before the first."""
    folder = tmp_path_factory.mktemp("month")
    (folder / "log").mkdir()
    pq.write_table(rows_of_part(0)[0], folder / "log/part-000.parquet")
    prepare(folder / "log", folder / "prepared", PREPARE)
    settings = ("train.batch_size=1000", "eval.bootstrap=0", "model.embedding_dim=4", "model.hidden_widths=[8]")
    assert plan_launch(tiny_config(*settings), folder / "prepared", folder / "device_0").train(cpu) == 0
    return folder / "device_0"


class Month:
    """An online run over all parts, each of which is there for its time, and what was seen after each of them."""

    def __init__(self, folder, *words):
        self.folder, self.words, self.number, self.seen = folder, words, 0, []
        self.has_come = np.zeros((COLUMNS, POOL + (NUM_PARTS + 1) * BORN_A_PART), bool)

    def run(self):
        take_part = OnlineTrainer._take_part

        def take(trainer, *arguments):
            take_part(trainer, *arguments)
            self.look(trainer)
            if self.number < NUM_PARTS:
                self.deliver()

        self.deliver()
        words = ("--keep", KEEP, "--admission-mib", 4, *self.words)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OnlineTrainer, "_take_part", take)
            patch.setattr(online_trainer, "FULL_EVERY", FULL_EVERY)
            assert self.folder.run(*words) == 0
        return self

    def deliver(self):
        self.number += 1
        table, values = rows_of_part(self.number)
        for of_column, seen in zip(values, self.has_come, strict=True):
            seen[of_column.astype(np.int64) & ((1 << 28) - 1)] = True
        pq.write_table(table, self.folder.source / ".coming")
        for old in self.folder.source.glob("part-*"):
            old.unlink()
        (self.folder.source / ".coming").rename(self.folder.source / f"part-{self.number:03d}.parquet")

    def look(self, trainer):
        newest = Checkpoint.open(max(step_folders(self.folder.path / "online/checkpoints")))
        bundles = chains(read_manifests(self.folder.path / "bundles")).values()
        tables = trainer.training.step.tables.state().values()
        self.seen.append(
            {
                "rows": len(np.union1d(*(state.row_ids for state in tables))),
                "ids": trainer.schema.vocabulary_size,
                "chain": max(len(newest.chain), *map(len, bundles)),
                "disk": bytes_below(self.folder.path / "online") + bytes_below(self.folder.path / "bundles"),
                "memory": resident_bytes(),
                "schema": (trainer.vocabulary.folder / "schema.json").stat().st_size,
            }
        )

    def of(self, name):
        return [each[name] for each in self.seen]


@pytest.fixture(scope="module")
def month(warm, tmp_path_factory):
    folder = Online(tmp_path_factory.mktemp("forgetful") / "run", warm)
    return Month(folder, "--most-ids", MOST_IDS, "--expire-after", 8 * ROWS).run()


@pytest.mark.slow
def test_a_month_of_new_values_fits_in_memory_disk_and_chains(month):
    lines = metrics_of(month.folder)
    assert len(month.seen) == len(lines) == NUM_PARTS
    assert month.has_come.sum() > 10 * MOST_IDS
    most_new, beside = max(line["new_values"] for line in lines), 2 * COLUMNS  # missing, out of vocabulary
    assert max(line["ids_in_use"] for line in lines) <= MOST_IDS + beside
    assert max(month.of("rows")) <= MOST_IDS + beside
    assert max(month.of("ids")) <= MOST_IDS + beside + 2 + FULL_EVERY * most_new
    assert max(month.of("chain")) <= FULL_EVERY
    for name in ("disk", "memory", "schema"):  # as after the first third, in which everything has happened that will
        assert max(month.of(name)) <= 1.05 * max(month.of(name)[: NUM_PARTS // 3]), name
