"""A bundle is whole, or refused by name: never a wrong score. And it opens at once, however large it is."""

import contextlib
import dataclasses
import json
import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash

from app.scoring import bundle_folder, bundle_writer
from app.scoring.bundle_folder import check_files
from app.scoring.bundle_tables import CHECKSUMS, TABLES, BundleTables, BundleTablesSpec, lookup
from app.scoring.bundle_writer import write_rows
from app.scoring.predictor import Predictor
from app.scoring.trained import write_tower
from app.scoring.trained.write_bundle import stored_as
from app.tables.initial import initial_rows
from common.arrays.format import read_entries
from common.files import FolderInUse, checksum
from tests.programs import run_python


def rewrite_manifest(folder, **changes):
    """Change the manifest, its checksum included."""
    path = folder / bundle_folder.MANIFEST
    content = json.loads(path.read_text()) | changes
    content.pop("checksum")
    path.write_text(json.dumps({**content, "checksum": bundle_folder.checksum_of(content)}))


def test_a_bundle_is_whole(predictor):
    assert predictor.verify() == 100


def test_every_file_is_in_the_manifest(tiny_bundle):
    files = {str(path.relative_to(tiny_bundle)) for path in tiny_bundle.rglob("*") if path.is_file()}
    assert files == {*bundle_folder.read_manifest(tiny_bundle).files, bundle_folder.MANIFEST}


FILES = ["manifest.json", "schema.json", "tower.onnx", TABLES, CHECKSUMS, "lookup.bin", "golden.parquet", "README.md"]


@pytest.fixture(scope="module")
def many_lines(tiny_log):
    return tiny_log.read_bytes().splitlines()


def regions(path):
    """16 places of a file, its first and last 8 bytes, and both ends of a safetensors file's header and arrays."""
    size = path.stat().st_size
    places = (
        {int(place) for place in np.linspace(0, size - 1, 16)}
        | set(range(min(8, size)))
        | set(range(max(size - 8, 0), size))
    )
    if path.suffix == ".safetensors":
        arrays = [place for place in read_entries(path).values() if place.num_bytes]
        places |= {8, arrays[0].start - 1} | {array.start + at for array in arrays for at in (0, array.num_bytes - 1)}
    return sorted(places)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_never_makes_a_wrong_score(copied, predictor, many_lines, name):
    """In every region of each file: refused at open, at first touch, or by verify."""
    content = bytearray((copied / name).read_bytes())
    expected = predictor.logits(many_lines)
    outcomes = set()
    for place in regions(copied / name):
        content[place] ^= 0x10
        (copied / name).write_bytes(content)
        with pytest.raises((ValueError, FileNotFoundError), match=name.split(".")[0]) as refused:
            opened = Predictor.open(copied)
            try:
                assert np.array_equal(opened.logits(many_lines), expected)
            except ValueError:
                outcomes.add("touched")
                raise
            outcomes.add("verified")
            opened.verify()
        outcomes.add(type(refused.value).__name__)
        content[place] ^= 0x10
    assert ("touched" in outcomes) == (name == TABLES)


def test_a_byte_flipped_in_any_other_file_is_refused_at_open(copied):
    """The code, too: it is what scores elsewhere."""
    others = [path for path in copied.rglob("*") if path.is_file() and path.name not in FILES and path.stat().st_size]
    assert len(others) > 40
    for path in others:
        content = path.read_bytes()
        for place in {0, len(content) // 2, len(content) - 1}:
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(ValueError, match=path.name):
                check_files(copied, bundle_folder.read_manifest(copied), every_byte=False)
        path.write_bytes(content)
    Predictor.open(copied)


def test_a_tower_beyond_protobuf_s_limit_is_checked_as_the_others(
    make_bundle, tiny_dataset, tiny_config, tiny_state, predictor, many_lines, monkeypatch
):
    monkeypatch.setattr(write_tower, "MOST_BYTES", 1000)
    folder = make_bundle(tiny_dataset, tiny_config(), tiny_state)
    assert np.array_equal(Predictor.open(folder).logits(many_lines[:50]), predictor.logits(many_lines[:50]))
    weights = folder / "tower.onnx.data"
    content = bytearray(weights.read_bytes())
    for place in regions(weights):
        content[place] ^= 1
        weights.write_bytes(content)
        with pytest.raises(ValueError, match=r"tower.onnx.data is damaged"):
            Predictor.open(folder)
        content[place] ^= 1
    weights.unlink()
    with pytest.raises(ValueError, match=r"tower.onnx.data is missing"):
        Predictor.open(folder)


def test_the_format_version_rises_with_the_form(predictor, text_bundle, copied):
    """If this fails, raise FORMAT_VERSION, see that bundles of older versions are read or refused, and pin again."""
    schema = json.loads((copied / "schema.json").read_text())
    text_table = next(table for table in Predictor.open(text_bundle).manifest.vocabulary["tables"] if table["is_text"])
    form = {
        "manifest": [field.name for field in dataclasses.fields(bundle_folder.BundleManifest)],
        "model": sorted(predictor.manifest.model),
        "rows": [field.name for field in dataclasses.fields(BundleTablesSpec)],
        "tables": list(BundleTablesSpec(1, 1, 1, "int8", 0, 0.1, 1).layout()),
        "vocabulary": [(len(table["arrays"]), len(table["numbers"])) for table in (
            predictor.manifest.vocabulary["tables"][0], text_table)],
        "fields": [sorted({key for field in schema[kind] for key in field}) for kind in ("categorical", "numeric")],
        "tower": [value.name for value in predictor._tower._session.get_inputs()],
    }  # fmt: skip
    assert (bundle_folder.FORMAT_VERSION, xxhash.xxh3_64_hexdigest(json.dumps(form).encode())) == (
        3,
        "35ce378ced611752",
    )


def test_a_bundle_with_vectors_has_another_version(typed_bundle):
    """Earlier releases would score its rows without the vectors."""
    manifest = bundle_folder.read_manifest(typed_bundle)
    assert (manifest.format_version, manifest.model["vectors"]) == (6, {"item": 3})


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [0, 0.5, -2])
def test_a_file_that_was_cut_is_refused_at_open(copied, name, size):
    content = (copied / name).read_bytes()
    (copied / name).write_bytes(content[: int(len(content) * size) if size >= 0 else size])
    with pytest.raises(ValueError, match=name):
        Predictor.open(copied)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format version 2, this program reads 3 to 7; score with .*code.*or export again"),
        ({"format": "other"}, "is of 'other'"),
    ],
)
def test_a_bundle_of_another_version_is_refused(copied, changes, message):
    rewrite_manifest(copied, **changes)
    with pytest.raises(ValueError, match=message):
        Predictor.open(copied)


def test_a_vocabulary_that_is_not_the_tables_is_refused(copied):
    rows = json.loads((copied / bundle_folder.MANIFEST).read_text())["rows"]
    rewrite_manifest(copied, rows={**rows, "num_ids": rows["num_ids"] - 64})
    with pytest.raises(ValueError, match=r"tables.safetensors holds|tables of"):
        Predictor.open(copied)


def test_golden_rows_that_score_otherwise_are_found(copied, monkeypatch):
    predictor = Predictor.open(copied)
    logits = predictor.logits_of_encoded
    monkeypatch.setattr(predictor, "logits_of_encoded", lambda rows: logits(rows) + np.float32(2e-5))
    with pytest.raises(ValueError, match=r"row 0 of .*golden.parquet has logit"):
        predictor.verify()


def test_a_folder_of_bundles_names_the_newest(tmp_path, tiny_bundle):
    """Whatever their names are: a copy of a bundle with a later serial number is newer."""
    for name, serial in (("a", 7), ("b", 5)):
        shutil.copytree(tiny_bundle, tmp_path / name)
        rewrite_manifest(tmp_path / name, serial=serial, whole_serial=serial)
    with pytest.raises(FileNotFoundError, match=rf"is no bundle.*the newest one in it is {tmp_path}/a$"):
        Predictor.open(tmp_path)


def test_a_bundle_is_there_whole_or_not_at_all(tmp_path, tiny_bundle):
    output = tmp_path / "out"
    with pytest.raises(RuntimeError), bundle_writer.new_bundle(output, overwrite=False) as folder:
        (folder / "file").write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    shutil.copytree(tiny_bundle, output)
    with pytest.raises(FileExistsError, match="--overwrite"), bundle_writer.new_bundle(output, overwrite=False):
        pass
    with bundle_writer.new_bundle(output, overwrite=True) as folder:
        (folder / "file").write_text("new")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "file"]
    with pytest.raises(FileExistsError, match="no bundle"), bundle_writer.new_bundle(output, overwrite=True):
        pass


def test_a_bundle_that_is_being_written_shows_no_manifest_beside_others(tmp_path, tiny_bundle):
    """A service of an earlier release looks for */manifest.json."""
    output = shutil.copytree(tiny_bundle, tmp_path / "models" / "1")
    with bundle_writer.new_bundle(output, overwrite=True) as folder:
        shutil.copytree(tiny_bundle, folder, dirs_exist_ok=True)
        assert list(output.parent.glob("*/manifest.json")) == [output / "manifest.json"]
        assert bundle_folder.bundles_in(output.parent) == [output]
        with pytest.raises(FolderInUse), bundle_writer.new_bundle(output, overwrite=True):
            pass
    for name in ("1.77.partial", "1.77.replaced"):  # of an earlier release that was killed
        shutil.copytree(tiny_bundle, output.parent / name)
    assert bundle_folder.bundles_in(output.parent) == [output]


@pytest.mark.parametrize("killed_at", range(1, 4))
def test_what_a_killed_export_left_is_taken_up(tmp_path, tiny_bundle, killed_at, monkeypatch):
    """Killed before its renames, between them, and after them."""
    output = shutil.copytree(tiny_bundle, tmp_path / "models" / "1")
    rename, calls = Path.rename, []

    def rename_or_die(path, target):
        calls.append(path)
        if len(calls) >= killed_at:
            raise KeyboardInterrupt
        return rename(path, target)

    def write(text):
        with bundle_writer.new_bundle(output, overwrite=True) as folder:
            shutil.copytree(tiny_bundle, folder, dirs_exist_ok=True)
            (folder / "README.md").write_text(text)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename_or_die)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        with contextlib.suppress(KeyboardInterrupt):
            write("first")
    assert output.is_dir() == (killed_at != 2)
    with pytest.raises(RuntimeError), bundle_writer.new_bundle(output, overwrite=True):
        raise RuntimeError
    assert bundle_folder.read_manifest(output) == bundle_folder.read_manifest(
        tiny_bundle
    )  # the old one, or the whole new one
    write("second")
    assert ((output / "README.md").read_text(), list(output.parent.iterdir())) == ("second", [output])


@pytest.mark.parametrize("failure", [OSError(5, "Input/output error"), KeyboardInterrupt()], ids=repr)
def test_a_bundle_that_cannot_be_replaced_stays(tmp_path, tiny_bundle, failure, monkeypatch):
    output = shutil.copytree(tiny_bundle, tmp_path / "models" / "1")
    rename = Path.rename

    def fail_for_the_new_one(path, target):
        if path.name == "new":
            raise failure
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new_one)
    with pytest.raises(type(failure)), bundle_writer.new_bundle(output, overwrite=True) as folder:
        (folder / "file").write_text("new")
    assert bundle_folder.read_manifest(output) == bundle_folder.read_manifest(tiny_bundle)
    assert list(output.parent.iterdir()) == [output]


def test_serial_numbers_rise_beside_others_whatever_the_clock(tmp_path, tiny_bundle, monkeypatch):
    manifest = bundle_folder.read_manifest(tiny_bundle)
    assert manifest.serial == manifest.whole_serial > 0
    later = bundle_writer.numbered(manifest, tmp_path)
    assert later.serial == later.whole_serial > manifest.serial
    shutil.copytree(tiny_bundle, tmp_path / "1")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    monkeypatch.setattr(bundle_writer.time, "time_ns", lambda: 0)
    assert bundle_writer.numbered(manifest, tmp_path).serial == manifest.serial + 1
    delta = dataclasses.replace(manifest, parent={"id": manifest.id, "name": "1"}, generation=1)
    assert bundle_writer.numbered(delta, tmp_path).whole_serial == manifest.whole_serial


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("width", [1, 5, 16])
def test_rows_are_found_by_their_ids(tmp_path, dtype, width):
    generator = np.random.default_rng(width)
    ids = np.unique(generator.integers(0, 300_000, 70_000))  # several blocks of rows and of ids
    spec = BundleTablesSpec(len(ids), 300_000, width, dtype, seed=3, initial_scale=0.5)
    deep, wide = initial_rows(3, np.arange(300_000), width, 0.5), np.zeros(300_000, np.float32)
    deep[ids], wide[ids] = generator.standard_normal((len(ids), width)), generator.standard_normal(len(ids))
    stored = stored_as(dtype, lambda table, chosen: (deep if table == "deep" else wide)[chosen])
    write_rows(tmp_path, spec, ids, stored)
    tables = BundleTables(tmp_path, spec)
    asked = generator.integers(0, 300_000, (500, 7)).astype(np.int32)
    asked[0] = [0, 63, 64, 299_999, ids[0], ids[-1], ids[-1]]
    found_deep, found_wide = lookup([tables], asked)
    assert np.array_equal(found_wide, wide[asked])
    expected = deep[asked].reshape(500, -1)
    steps = (deep.max() - deep.min()) / 255  # of the widest row
    tolerance = {"float32": 0, "float16": 4e-3, "int8": steps}[dtype]
    np.testing.assert_allclose(found_deep, expected, rtol=0, atol=tolerance)
    places = read_entries(tmp_path / TABLES)
    assert all(place.start % 64 == 0 for name, place in places.items() if not name.endswith(".padding"))
    tables.check_all()


def test_no_row_at_all_is_a_table_too(tmp_path):
    spec = BundleTablesSpec(0, 10, 2, "float32", 1, 0.1)
    write_rows(tmp_path, spec, np.zeros(0, np.int64), lambda table, ids: np.zeros((0, 2), np.float32))
    deep, wide = lookup([BundleTables(tmp_path, spec)], np.array([[0, 9]]))
    assert np.array_equal(deep.reshape(2, 2), initial_rows(1, np.array([0, 9]), 2, 0.1))
    assert not wide.any()


def test_a_row_beyond_float16_is_refused(tmp_path):
    spec = BundleTablesSpec(1, 10, 2, "float16", 1, 0.1)
    with pytest.raises(ValueError, match=r"row 4 .*float16"):
        write_rows(tmp_path, spec, np.array([4]), stored_as("float16", lambda *_: np.full((1, 2), 1e5, np.float32)))


MEASURE = """
import sys
from app.scoring.predictor import Predictor
from app.scoring.trained import write_tower
def rss(kind):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(kind)) / 1024
predictor = Predictor.open(sys.argv[1])
predictor.score([sys.stdin.readline()])
print(rss("VmRSS"), rss("VmSize"))
"""


def test_50_gb_open_without_being_read(copied, tiny_log, command_environment):
    """A sparse file: every row is 0, and the checksums are those of zeros."""
    manifest = bundle_folder.read_manifest(copied)
    spec = BundleTablesSpec(**manifest.rows)
    # As many ids as the vocabulary has, and rows for ids far beyond it: only the file's size is to be large.
    spec = dataclasses.replace(spec, num_rows=50 * 10**9 // (4 * spec.width + 4))
    layout, start = spec.layout(), 0
    header = {}
    for name, (dtype, shape) in layout.items():
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        short = {"float32": "F32", "uint64": "U64", "uint8": "U8"}[dtype]
        header[name] = {"dtype": short, "shape": shape, "data_offsets": [start, start + size]}
        start += size
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    index = np.zeros(layout["index"][1], np.uint64)
    index[:, 0] = np.iinfo(np.uint64).max
    index[:, 1] = np.arange(len(index)) * 64
    with (copied / TABLES).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + index.tobytes())
        file.truncate(8 + len(text) + start)
    assert (copied / TABLES).stat().st_size > 49 * 10**9
    assert (copied / TABLES).stat().st_blocks * 512 < 10**8

    rows, blocks = spec.rows_a_block, -(-spec.num_rows // spec.rows_a_block)
    last = spec.num_rows - (blocks - 1) * rows
    sums = {"index": np.array([xxhash.xxh3_64_intdigest(index.data)], np.uint64)}
    for name, width in (("wide", 1), ("deep", spec.width)):
        sums[name] = np.full(blocks, xxhash.xxh3_64_intdigest(bytes(rows * width * 4)), np.uint64)
        sums[name][-1] = xxhash.xxh3_64_intdigest(bytes(last * width * 4))
    from common.arrays.disk import column_of, write_arrays

    write_arrays(copied / CHECKSUMS, {name: column_of(array.view(np.int64)) for name, array in sums.items()})
    files = dict(manifest.files)
    files[TABLES] = {"size_bytes": (copied / TABLES).stat().st_size, "checksum": "xxh3:of no use"}
    files[CHECKSUMS] = {
        "size_bytes": (copied / CHECKSUMS).stat().st_size,
        "checksum": bundle_folder.checksum(copied / CHECKSUMS),
    }
    rewrite_manifest(copied, rows=dataclasses.asdict(spec), files=files)
    line = tiny_log.read_text().splitlines()[0]
    measured = run_python("-c", MEASURE, copied, env=command_environment, input=line)
    resident, mapped = map(float, measured.stdout.split())
    assert resident <= 300
    assert mapped > 45_000  # it is the whole file that was opened


ODD_VALUES = (None, True, -1, 2**63, 1.5, "x", [], {}, [[]], {"x": 1})


def odd_variants(content):
    """Yield copies of a JSON value in which one key is missing or unknown, or one value is odd, at any depth."""

    def with_value(key, value):
        return [*content[:key], value, *content[key + 1 :]] if isinstance(content, list) else {**content, key: value}

    items = list(enumerate(content[:1])) if isinstance(content, list) else list(content.items())[:20]
    if isinstance(content, dict):
        yield {**content, "unknown": 1}
        yield from ({key: content[key] for key in content if key != missing} for missing, _ in items)
    for key, value in items:
        yield from (with_value(key, odd) for odd in ODD_VALUES)
        if isinstance(value, dict | list) and len(value) < 20:
            yield from (with_value(key, inner) for inner in odd_variants(value))


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_an_odd_manifest_refuses_its_folder_alone(copied, predictor, many_lines, every):
    """Keys and values that no release writes, with right checksums: a ValueError that names the folder, or no harm."""
    path, expected = copied / bundle_folder.MANIFEST, predictor.logits(many_lines[:20])
    content, outcomes = json.loads(path.read_text()), Counter()
    content.pop("checksum")
    parts = {"parent": {"id": content["id"], "name": "x"}}, {"files": {TABLES: content["files"][TABLES]}}
    of_parts = (content | variant for part in parts for variant in odd_variants(part))
    for variant in [*odd_variants(content), *of_parts][::every]:
        path.write_text(json.dumps({**variant, "checksum": bundle_folder.checksum_of(variant)}))
        bundle_folder.chains(bundle_folder.read_manifests(copied.parent))
        try:
            opened = Predictor.open(copied)
            opened.check_golden()
            logits = opened.logits(many_lines[:20])
        except ValueError as error:
            assert str(copied) in str(error)
            outcomes["refused"] += 1
        else:
            assert np.array_equal(logits, expected), variant
            outcomes["harmless"] += 1
    assert outcomes["refused"] > outcomes["harmless"] > 0
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"manifest.json is damaged"):
        Predictor.open(copied)


@pytest.mark.parametrize("seed", range(3))
def test_search_tables_that_lead_elsewhere_are_refused_by_name(text_bundle, tmp_path, seed):
    """Words of lookup.bin changed, with the right checksum of the file: refused, or every id is in the tables."""
    folder, chance, outcomes = shutil.copytree(text_bundle, tmp_path / "copy"), random.Random(seed), Counter()
    original, files = (folder / "lookup.bin").read_bytes(), bundle_folder.read_manifest(folder).files
    rows = pq.read_table(folder / "golden.parquet")
    for _ in range(40):
        words = np.frombuffer(original, np.uint64, len(original) // 8).copy()
        words[chance.randrange(len(words))] = chance.choice([2**62, 2**64 - 1, 2**40, 2**31, 10**5])
        (folder / "lookup.bin").write_bytes(words.tobytes() + original[len(words) * 8 :])
        record = {"size_bytes": len(original), "checksum": checksum(folder / "lookup.bin")}
        rewrite_manifest(folder, files=files | {"lookup.bin": record})
        try:
            opened = Predictor.open(folder)
        except ValueError as error:
            assert str(folder) in str(error)
            outcomes["refused"] += 1
        else:
            assert np.isfinite(opened.score(rows.drop_columns(["logit", "score", "tolerance"]))).all()
            outcomes["harmless"] += 1
    assert outcomes["refused"] > 5
