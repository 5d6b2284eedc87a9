"""Deltas: a chain scores the bits of a whole bundle, and what does not follow what is open is refused by name."""

import copy
import dataclasses
import json
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

from app.__main__ import _parser
from app.checkpoint.write import ModelState
from app.scoring import bundle_folder, bundle_writer
from app.scoring.bundle_writer import fold
from app.scoring.predictor import Predictor
from app.tables.interface import TableState
from data_prep.options.log_format import ListForm, LogFormat, VectorForm
from data_prep.options.options_file import read_options
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import read_schema

KINDS = [("numbers", "float32"), ("texts", "int8"), ("vectors and lists", "float32")]


@pytest.fixture(scope="module", params=KINDS, ids=[name for name, _ in KINDS])
def days(request, tmp_path_factory, tiny_log, make_avazu, project):
    """Lines of three days' logs, their folders, each extending the vocabulary before, and how rows are stored."""
    folder = tmp_path_factory.mktemp("days")
    values, stored_as = request.param
    if values == "numbers":
        options, header, lines = PrepareOptions(min_count=2, workers=1), [], tiny_log.read_text().splitlines()[:900]
    elif values == "vectors and lists":
        kinds = {"label": "label", "site": "string", "item": "vector", "genres": "list", "seen": "list"}
        lists = {"genres": ListForm(max_length=3, pool="sum"), "seen": ListForm(separator=" ", max_length=2)}
        log_format = LogFormat(kinds, lists=lists, shares={"seen": "site"}, vectors={"item": VectorForm(3)})
        options, header = PrepareOptions(data=log_format, min_count=1, workers=1), []
        sites = [f"s{row % 280 + row // 12}" for row in range(900)]
        genres = ["|".join(f"g{(row + place) % (20 + row // 30)}" for place in range(row % 5)) for row in range(900)]
        cells = zip(sites, genres, sites[7:] + sites[:7], strict=True)
        lines = [
            f"{row % 3 // 2}\t{site}\t[{row % 7} -0.5 {row / 900}]\t{genre}\t{site} {seen}"
            for row, (site, genre, seen) in enumerate(cells)
        ]
    else:
        options = read_options(None, ["prepare.min_count=2", "prepare.workers=1"], project / "configs/data/avazu.yaml")
        header, *lines = make_avazu(900).splitlines()
        header = [header]
    for day in range(3):
        (folder / "log").write_text("\n".join([*header, *lines[300 * day : 300 * day + 300]]) + "\n")
        given = {"vocabulary_of": folder / f"{day - 1}", "extend": True} if day else {}
        prepare(folder / "log", folder / f"{day}", options, **given)
    return lines, [folder / f"{day}" for day in range(3)], stored_as


def next_day(state, schema, dense, day):
    """Return a state in which some rows changed, some are gone, and the new ids have rows."""
    generator = np.random.default_rng(day)
    tables = {}
    for name, table in state.tables.items():
        rows = table.arrays["rows"].copy()
        rows[generator.random(len(rows)) < 0.1] += 1
        kept = generator.random(len(rows)) > 0.05
        new = np.arange(table.row_ids[-1] + 1, schema.vocabulary_size)
        values = generator.standard_normal((len(new), rows.shape[1])).astype(np.float32)
        tables[name] = TableState(
            np.concatenate([table.row_ids[kept], new]), {"rows": np.concatenate([rows[kept], values])}
        )
    return ModelState(dense, tables)


@pytest.fixture(scope="module")
def chain(days, make_bundle, make_state, tiny_config, tmp_path_factory):
    """A folder with a whole bundle `0` and its deltas `1` and `2`, and whole bundles of the same three models."""
    lines, prepared, dtype = days
    folder, config = tmp_path_factory.mktemp("chain"), tiny_config()
    wholes, state, parent = [], None, None
    for day, data in enumerate(prepared):
        schema = read_schema(data)
        fresh = make_state(schema, config, seed=day)
        state = next_day(state, schema, fresh.dense, day) if day else fresh
        wholes.append(make_bundle(data, config, state, dtype))
        make_bundle(data, config, state, dtype, parent=parent, folder=folder / f"{day}")
        parent = Predictor.open(folder / f"{day}")
    return lines, folder, wholes


def test_a_chain_scores_the_bits_of_a_whole_bundle(chain):
    lines, folder, wholes = chain
    predictor = Predictor.open(folder / "0")
    for day, whole in enumerate(wholes):
        if day:
            earlier, before = predictor, predictor.logits(lines)
            predictor = predictor.with_delta(folder / f"{day}")
            assert predictor.tables[0] is earlier.tables[0]  # what is mapped is shared
            assert np.array_equal(earlier.logits(lines), before)  # and the earlier generation stays as it is
        expected = Predictor.open(whole).logits(lines)
        assert np.array_equal(predictor.logits(lines), expected)
        assert np.array_equal(Predictor.open(folder / f"{day}").logits(lines), expected)
        assert (predictor.generation, predictor.verify()) == (day, 100)
    specs = [tables.spec for tables in predictor.tables]
    rows = [Predictor.open(whole).tables[0].spec.num_rows for whole in wholes]
    assert all(spec.num_deleted and spec.num_rows < 0.7 * rows[day + 1] for day, spec in enumerate(specs[1:]))
    assert specs[0].num_ids < specs[1].num_ids < specs[2].num_ids  # there were additions
    assert predictor.changed_share == sum(s.num_rows + s.num_deleted for s in specs[1:]) / specs[0].num_rows


def test_a_folded_chain_is_the_whole_bundle(chain, tmp_path):
    lines, folder, wholes = chain
    for day in (1, 2):
        shutil.copytree(folder / f"{day}", tmp_path / f"{day}")
    shutil.copytree(folder / "0", tmp_path / "0")
    fold(tmp_path / "1", tmp_path / "folded")
    folded = Predictor.open(tmp_path / "folded")
    assert folded.verify() == 100
    assert folded.manifest.format_version == bundle_folder.read_manifest(wholes[1]).format_version
    for name in ("tables.safetensors", "checksums.safetensors", "lookup.bin"):
        assert (tmp_path / "folded" / name).read_bytes() == (wholes[1] / name).read_bytes(), name
    assert (folded.version, folded.generation) == (Predictor.open(folder / "1").version, 1)
    # What came after the deltas comes after the folded bundle as well.
    expected = Predictor.open(wholes[2]).logits(lines)
    assert np.array_equal(folded.with_delta(tmp_path / "2").logits(lines), expected)
    for name in "01":
        shutil.rmtree(tmp_path / name)
    assert np.array_equal(Predictor.open(tmp_path / "2").logits(lines), expected)


@pytest.fixture
def copies(chain, tmp_path):
    return shutil.copytree(chain[1], tmp_path / "chain")


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("02", r"2 \(generation 2\) holds changes of 1 .*what is open has generation 0"),
        ("011", "apply every delta once"),
        ("00", "is a whole bundle"),
        ("0121", "holds changes of 0"),
    ],
)
def test_a_gap_or_another_order_is_refused(copies, order, message):
    predictor = Predictor.open(copies / order[0])
    for name in order[1:-1]:
        predictor = predictor.with_delta(copies / name)
    with pytest.raises(ValueError, match=message):
        predictor.with_delta(copies / order[-1])


def test_a_delta_whose_parent_is_not_beside_it_is_refused(copies):
    shutil.rmtree(copies / "1")
    with pytest.raises(ValueError, match=r"delta .*2 holds changes of 1 .*not beside it"):
        Predictor.open(copies / "2")


def test_a_parent_is_found_by_its_id(copies, chain):
    (copies / "0").rename(copies / "renamed")
    (copies / "0").mkdir()
    assert Predictor.open(copies / "1").version == Predictor.open(chain[1] / "1").version


UNPICKLE = """
import pickle, sys
predictor, lines = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(predictor.logits(lines).tobytes())
"""


def test_a_pickled_predictor_scores_the_same_bits_in_another_process(chain, project, monkeypatch):
    lines, folder, _ = chain
    monkeypatch.chdir(folder)
    predictor = Predictor.open("1").with_delta("2")
    pickled = pickle.dumps((predictor, lines))
    assert len(pickled) < len(pickle.dumps(lines)) + 1000  # no table is in it
    command = [sys.executable, "-c", UNPICKLE]
    found = subprocess.run(command, input=pickled, capture_output=True, check=True, cwd=project).stdout
    assert found == predictor.logits(lines).tobytes()


def test_a_copied_predictor_is_the_same_one(chain):
    predictor = Predictor.open(chain[1] / "2")
    assert copy.copy(predictor) is predictor
    assert copy.deepcopy({"model": predictor})["model"] is predictor


@pytest.mark.parametrize("change", ["gone", "another", "damaged"])
def test_a_pickled_predictor_names_the_bundle_that_it_lacks(copies, change):
    pickled = pickle.dumps(Predictor.open(copies / "2"))
    expected = bundle_folder.read_manifest(copies / "1").id
    if change == "damaged":
        (copies / "1" / "tower.onnx").write_bytes(b"")
    else:
        shutil.rmtree(copies / "1")
    if change == "another":
        shutil.copytree(copies / "0", copies / "1")
    with pytest.raises(ValueError, match=rf"needs {copies}/1 with the id {expected}: .*copy it there"):
        pickle.loads(pickled)


def test_every_byte_of_a_delta_is_checked_when_it_is_applied(copies):
    predictor = Predictor.open(copies / "0")
    for path in sorted(path for path in (copies / "1").iterdir() if path.is_file()):
        content = path.read_bytes()
        for place in {0, len(content) // 2, len(content) - 1}:
            path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
            with pytest.raises(ValueError, match=path.name):
                predictor.with_delta(copies / "1")
        path.write_bytes(content)
    predictor.with_delta(copies / "1")


def test_what_is_no_change_of_the_parent_is_refused(days, chain, make_bundle, make_state, tiny_config, tmp_path):
    _, prepared, dtype = days
    parent = Predictor.open(chain[1] / "1")

    def export(data, message, *settings, rows=dtype):
        config = tiny_config(*settings)
        with pytest.raises(ValueError, match=message):
            make_bundle(data, config, make_state(read_schema(data), config), rows, parent=parent)

    export(prepared[0], "another one than the parent's")  # a vocabulary that is older
    export(prepared[1], "width 3, there", "model.embedding_dim=3")
    export(prepared[1], "dtype float16, there", rows="float16")


def test_another_vocabulary_of_the_same_size_is_refused(copies, days, make_bundle, make_state, tiny_config):
    parent = Predictor.open(copies / "0")
    manifest = parent.manifest
    other = dataclasses.replace(manifest, vocabulary={**manifest.vocabulary, "values": "0"})
    (copies / "0" / bundle_folder.MANIFEST).unlink()
    bundle_writer.write_manifest(copies / "0", dataclasses.replace(other, files={}, id=""))
    schema = read_schema(days[1][1])
    with pytest.raises(ValueError, match="export a whole bundle"):
        make_bundle(
            days[1][1], tiny_config(), make_state(schema, tiny_config()), parent.tables[0].spec.dtype,
            parent=Predictor.open(copies / "0"),
        )  # fmt: skip


def test_the_command_folds(copies, capsys):
    arguments = _parser().parse_args(["bundle", "fold", str(copies / "2"), str(copies / "whole")])
    assert arguments.command(arguments) == 0
    assert "generation 2" in capsys.readouterr().out
    assert json.loads((copies / "whole" / "manifest.json").read_text())["parent"] is None


@pytest.mark.parametrize(("share", "is_told"), [(0.4, False), (0.6, True)])
def test_a_delta_that_is_no_smaller_is_reported(
    make_bundle, tiny_dataset, tiny_config, tiny_state, predictor, tmp_path, caplog, share, is_told
):
    tables = {}
    for name, table in tiny_state.tables.items():
        rows = table.arrays["rows"].copy()
        rows[: int(len(rows) * share)] += 1
        tables[name] = TableState(table.row_ids, {"rows": rows})
    state = ModelState(tiny_state.dense, tables)
    make_bundle(tiny_dataset, tiny_config(), state, parent=predictor, folder=tmp_path / "delta")
    assert ("a whole bundle is about as small" in caplog.text) == is_told
