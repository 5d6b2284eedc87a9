"""Every kind of column in one log: from raw text to trained rows, and back to values by export-rows."""

import dataclasses
import random
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from app import train
from app.__main__ import main as app
from app.checkpoint.read import Checkpoint
from data_prep.options.log_format import ListForm, LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from tests.data_prep.kernels.slow_reader import read_log
from tests.data_prep.kernels.test_third_voice import KERNELS, check_folder, contents
from tests.prepared_folders import field_options

COLUMNS = {
    "item": "string", "history": "list", "genres": "list", "ad": "hex32", "site": "string", "count": "integer",
    "price": "float", "seen": "timestamp", "importance": "weight", "user": "id", "rating": "label",
}  # fmt: skip
OPTIONS = PrepareOptions(
    data=LogFormat(
        COLUMNS,
        ",",
        header=True,
        others="ignored",
        quotes=True,
        missing=("NA",),
        clicked=">= 4",
        label="optional",
        lists={"genres": ListForm("|", 3, "sum"), "history": ListForm(" ", 2)},
        shares={"history": "item"},
        timestamps={"seen": "%Y-%m-%d %H:%M"},
        features={"seen": ("hour", "weekday", "age")},
    ),
    crosses=(("ad", "item"), ("history", "genres"), ("seen_hour", "site")),
    fields=field_options(max_length={"history*genres": 4}, hash_size={"seen_hour*site": 5}),
    numeric_transform="quantile",
    integer_buckets=True,
    min_count=2,
    split="chronological",
    shuffle_window_rows=64,
    max_reject_fraction=1,
    workers=1,
)
# The fields with a vocabulary, in the order of their ids, after price, seen and count with an indicator each.
OWNERS = ["item", "genres", "ad", "site", "seen_hour", "seen_weekday", "count_bucket"]
OWNERS += ["ad*item", "history*genres", "seen_hour*site"]
NUM_NUMERIC = 6
BAD_CELLS = {"price": "nan", "seen": "2024-02-30 00:00", "importance": "-1", "rating": "good", "ad": "XYZ"}


def make_log(num_rows):
    """Rows of the site `loved` are clicks and those of `hated` are none; others weigh nothing, or have no label."""
    draw = random.Random(1)
    columns = [*COLUMNS, "more"]
    draw.shuffle(columns)
    lines = [",".join(columns)]
    for number in range(num_rows):
        site = draw.choice(["loved", "hated", "weightless", "unlabelled", f"rare {number}", "NA"])
        cells = {
            "item": draw.choice(["a", "b*c", '"say ""a, b"""', f"item {number}", ""]),
            "history": " ".join(draw.choices(["a", "b*c", "old"], k=draw.randrange(4))),
            "genres": draw.choice(["war", "war|love|war", "a|b|c|love", "||", ""]),
            "ad": draw.choice(["0000000a", "ffffffff", f"{number:08x}", ""]),
            "site": site,
            "count": draw.choice(["-3", "0", "17", str(number), "NA"]),
            "price": draw.choice([f"{draw.gauss(0, 10):.3f}", "1e-3", ""]),
            "seen": draw.choice([f"2024-02-{1 + number % 29:02} {draw.randrange(3):02}:59", "NA"]),
            "importance": "0" if site == "weightless" else draw.choice(["1", "0.25", "2e0"]),
            "user": f"user {number % 7}",
            "rating": {"loved": "4.5", "hated": "3", "unlabelled": ""}.get(site, draw.choice(["1", "4"])),
            "more": "x",
        }
        if number % 50 == 0:
            name = draw.choice([*BAD_CELLS])
            cells[name] = BAD_CELLS[name]
        lines.append(",".join(cells[name] for name in columns))
    return "\n".join([*lines, ""]).encode()


@pytest.fixture(scope="module")
def way(cpu, tiny_config, tmp_path_factory):
    """The log prepared by all kernels and by the plain reader; a run on it; both tables exported."""
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "log.csv").write_bytes(make_log(600))
    plain = read_log({"log.csv": (folder / "log.csv").read_bytes()}, OPTIONS)
    for kernels in KERNELS:
        options = dataclasses.replace(OPTIONS, kernels=kernels)
        check_folder(folder / kernels, prepare(folder / "log.csv", folder / kernels, options), plain)
        assert contents(folder / kernels) == contents(folder / KERNELS[0])
    train(tiny_config(), folder / KERNELS[0], folder / "run", device={"threads": 2}, train={"batch_size": 50})
    checkpoint = max((folder / "run" / "checkpoints").glob("step-*"))
    exported = {}
    for table in ("wide", "deep"):
        path = folder / f"{table}.parquet"
        assert app(["checkpoint", "export-rows", str(checkpoint), str(path), "--table", table]) == 0
        exported[table] = pq.read_table(path).to_pylist()
    return SimpleNamespace(plain=plain, exported=exported, tables=Checkpoint.open(checkpoint).state().tables)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("string", ["site"]),
        ("list", ["genres"]),
        ("shares", ["item"]),
        ("hex32", ["ad"]),
        ("timestamp", ["seen_hour", "seen_weekday"]),
        ("integer", ["count_bucket"]),
        ("cross", ["ad*item"]),
        ("cross of lists", ["history*genres"]),
        ("hashed cross", ["seen_hour*site"]),
    ],
)
def test_a_kind_comes_back_as_its_values(way, kind, fields):
    """Every value of the training rows that weigh something, and no other; each has moved in the wide part."""
    training = way.plain.rows["train"]
    used = {id_ for row in training if row[4] > 0 for id_ in row[2]}
    names = {row: (name, None) for row, name in enumerate([*OWNERS, *OWNERS[-1:] * 4], NUM_NUMERIC)}
    names |= {row: (name, value) for name, value, _, row in way.plain.vocabulary}
    expected = {(*names[row], row) for row in used if row in names and names[row][0] in fields}
    assert {name for name, value, _ in expected if bool(value) != (kind == "hashed cross")} == set(fields)
    for table, exported in way.exported.items():
        found = {(line["field"], line["value"], line["row"]): line["vector"] for line in exported}
        found = {name: vector for name, vector in found.items() if name[0] in fields}
        assert found.keys() == (set() if table == "deep" and "cross" in kind else expected)
        saved = way.tables[table]
        for (_, _, row), vector in found.items():
            (place,) = np.flatnonzero(saved.row_ids == row)
            assert vector == saved.read("rows", [place])[0].tolist()
            assert table == "deep" or vector != [0]


def test_labels_by_rule_and_weights_decide_what_is_learned(way):
    found = {line["value"]: line["vector"][0] for line in way.exported["wide"] if line["field"] == "site"}
    assert found["hated"] < 0 < found["loved"]
    assert found.keys().isdisjoint(("weightless", "unlabelled"))  # no step touched them


def test_numbers_weights_and_ids_have_no_rows(way):
    assert {line["field"] for line in way.exported["wide"]} == set(OWNERS)
    assert way.plain.rejects.count(b"\n") == 12
    assert "old" in {line["value"] for line in way.exported["deep"] if line["field"] == "item"}  # of `history` alone
