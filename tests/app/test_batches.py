"""Order, position and completeness of the batches, on a folder with several files a split."""

import itertools
import os
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.options.options_file import read_options
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.batches import Batch, num_batches, read_batches, slice_of_batch, training_order, written_order
from data_prep.prepared.data_files import all_files, block_sizes, check_files, data_file, verify_files, write_schema
from data_prep.prepared.reader import read_blocks, read_files
from data_prep.prepared.schema import SCHEMA_FILE, VOCABULARY_FILE, read_schema
from tests.conftest import TINY_CONFIG

POOL_BLOCKS = 4


def written_rows(folder, schema, split):
    """All rows of a split as the files hold them, read without `app`: [rows, N + C + 1]."""
    files = [file.name for file in schema.splits[split].files]
    return np.concatenate([joined(block) for block in read_files(folder, files)])


def joined(rows):
    return np.column_stack([rows.ids, rows.numeric, rows.labels])


def epoch_rows(folder, schema, batch_size=500, seed=1, epoch=1, first_batch=0, pool_blocks=POOL_BLOCKS):
    order = training_order(schema, seed, epoch, pool_blocks)
    return [joined(b) for b in read_batches(folder, schema, "train", order, batch_size, first_batch)]


def sorted_rows(rows):
    return rows[np.lexsort(rows.T)]


def test_the_folder_has_what_these_tests_are_about(tiny_schema):
    assert len(tiny_schema.splits["train"].files) > 1
    sizes = block_sizes(tiny_schema, "train")
    assert len(sizes) > 2 * POOL_BLOCKS
    assert sizes[-1] < tiny_schema.block_rows


def test_a_sampler_s_numbers_count_through_the_files_in_their_order(tiny_dataset, tiny_schema):
    """The order of an epoch stands on it: block b of the schema is block b of the reader."""
    expected = written_rows(tiny_dataset, tiny_schema, "train")
    order = written_order(tiny_schema, "train", POOL_BLOCKS)
    found = np.concatenate([joined(b) for b in read_batches(tiny_dataset, tiny_schema, "train", order, 333)])
    np.testing.assert_array_equal(found, expected)


def test_blocks_are_read_by_their_number(tiny_dataset, tiny_schema):
    """Whole blocks in a pool of one each come out in the permutation's order, but for their rows' mixing."""
    rows = written_rows(tiny_dataset, tiny_schema, "train")
    blocks = np.split(rows, np.cumsum(block_sizes(tiny_schema, "train"))[:-1])
    order = training_order(tiny_schema, seed=5, epoch=2, pool_blocks=1)
    found = np.concatenate(epoch_rows(tiny_dataset, tiny_schema, 100, seed=5, epoch=2, pool_blocks=1))
    start = 0
    for (number,) in order.pools:
        size = len(blocks[number])
        np.testing.assert_array_equal(sorted_rows(found[start : start + size]), sorted_rows(blocks[number]))
        start += size


@pytest.mark.parametrize("batch_size", [1, 37, 100, 500, 100_000])
def test_an_epoch_has_every_row_once_at_any_batch_size(tiny_dataset, tiny_schema, batch_size):
    batches = epoch_rows(tiny_dataset, tiny_schema, batch_size)
    assert len(batches) == num_batches(tiny_schema, "train", batch_size)
    assert {len(batch) for batch in batches[:-1]} <= {batch_size}
    assert 0 < len(batches[-1]) <= batch_size
    expected = written_rows(tiny_dataset, tiny_schema, "train")
    np.testing.assert_array_equal(sorted_rows(np.concatenate(batches)), sorted_rows(expected))


def test_the_rows_order_does_not_depend_on_the_batch_size(tiny_dataset, tiny_schema):
    one, other = (np.concatenate(epoch_rows(tiny_dataset, tiny_schema, size)) for size in (64, 500))
    np.testing.assert_array_equal(one, other)


def test_a_pool_is_read_between_the_batches_of_the_one_before(tiny_dataset, tiny_schema, monkeypatch):
    """Read all at once, it would keep the training waiting."""
    num_read = [0]

    def counted(*arguments):
        for block in read_blocks(*arguments):
            num_read[0] += 1
            yield block

    monkeypatch.setattr("data_prep.prepared.batches.read_blocks", counted)
    order = training_order(tiny_schema, 1, 1, POOL_BLOCKS)
    batch_size = int(order.block_sizes.max())
    reads = [num_read[0] for _ in read_batches(tiny_dataset, tiny_schema, "train", order, batch_size)]
    assert reads[0] == POOL_BLOCKS
    assert reads[-1] == len(order.block_sizes)
    assert max(np.diff(reads)) <= 2  # a batch may have rows of two pools


def test_rows_are_mixed_anew_by_seed_and_epoch(tiny_dataset, tiny_schema):
    written = written_rows(tiny_dataset, tiny_schema, "train")
    orders = [
        np.concatenate(epoch_rows(tiny_dataset, tiny_schema, seed=seed, epoch=epoch))
        for seed, epoch in ((1, 1), (1, 2), (2, 1))
    ]
    again = np.concatenate(epoch_rows(tiny_dataset, tiny_schema, seed=1, epoch=1))
    np.testing.assert_array_equal(orders[0], again)
    for one, other in ((orders[0], orders[1]), (orders[0], orders[2]), (orders[1], orders[2]), (orders[0], written)):
        assert np.mean((one == other).all(axis=1)) < 0.05


@given(batch_size=st.integers(1, 900), first_batch=st.integers(0, 30), epoch=st.integers(1, 3))
@settings(max_examples=15)
def test_starting_at_a_step_is_skipping_those_before(tiny_dataset, tiny_schema, batch_size, first_batch, epoch):
    whole = epoch_rows(tiny_dataset, tiny_schema, batch_size, epoch=epoch)
    later = epoch_rows(tiny_dataset, tiny_schema, batch_size, epoch=epoch, first_batch=first_batch)
    assert len(later) == max(len(whole) - first_batch, 0)
    for found, expected in zip(later, whole[first_batch:], strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_batch_has_the_schema_s_types(tiny_dataset, tiny_schema):
    batch = next(read_batches(tiny_dataset, tiny_schema, "valid", written_order(tiny_schema, "valid"), 50))
    assert batch.num_rows == 50
    assert batch.ids.shape == (50, tiny_schema.num_categorical)
    assert batch.ids.dtype == tiny_schema.ids_dtype
    assert batch.numeric.shape == (50, tiny_schema.num_numeric)
    assert batch.numeric.dtype == batch.labels.dtype == np.float32


@pytest.mark.parametrize("name", ["train-00001.mindrecord", "valid-00000.mindrecord.db"])
def test_a_file_that_is_missing_or_cut_is_named(tiny_dataset, tiny_schema, tmp_path, name):
    """Before a training, and whenever a reader of its split is opened, as MindSpore's may end the process."""
    folder, split = tmp_path / "copy", name.partition("-")[0]
    shutil.copytree(tiny_dataset, folder)
    check_files(folder, tiny_schema)
    next(read_blocks(folder, tiny_schema, split))
    size = (folder / name).stat().st_size
    for num_bytes in (size - 1, 1000, 0, None):
        (folder / name).unlink()
        if num_bytes is not None:
            shutil.copy(tiny_dataset / name, folder / name)
            os.truncate(folder / name, num_bytes)
        found = "is missing" if num_bytes is None else f"has {num_bytes} bytes"
        with pytest.raises(ValueError, match=f"{name} {found}, expected {size} bytes; see .*prepare LOG {folder}"):
            check_files(folder, tiny_schema)
        with pytest.raises(ValueError, match=f"{name} is (missing|damaged).*prepare LOG {folder}"):
            next(read_blocks(folder, tiny_schema, split))
        other = "valid" if split == "train" else "train"
        assert next(read_blocks(folder, tiny_schema, other)).ids.size


def damage(folder, name, rng):
    """Change a file of a prepared folder as a bad disk, a broken copy or a hasty hand does."""
    path = folder / name
    content, kind = bytearray(path.read_bytes()), rng.choice(["flip", "zeros", "noise", "cut", "other", "none"])
    place, length = int(rng.integers(len(content))), int(rng.choice([8, 300, 20_000]))
    if kind == "flip":
        content[place] ^= 1 << rng.integers(8)
    elif kind in ("zeros", "noise"):
        length = min(length, len(content) - place)
        content[place : place + length] = bytes(length) if kind == "zeros" else rng.bytes(length)
    elif kind == "cut":
        del content[place:]
    elif kind == "other":
        others = [other for other in folder.iterdir() if other.suffix == path.suffix and other.stat().st_size]
        content = others[rng.integers(len(others))].read_bytes()
    path.unlink()
    if kind != "none":
        path.write_bytes(content)


def all_rows(folder):
    """The training rows as a training reads them."""
    schema = read_schema(folder)
    check_files(folder, schema)
    return schema, [column.tobytes() for rows in read_blocks(folder, schema, "train") for column in rows.columns()]


@pytest.fixture(scope="module", params=["blocks", "zoo"])
def prepared(request, tiny_dataset, tiny_log, tmp_path_factory):
    """A folder of each layout, and its rows."""
    folder = tiny_dataset
    if request.param == "zoo":
        folder = tmp_path_factory.mktemp("zoo") / "prepared"
        words = ("layout=zoo", "workers=1")
        prepare(tiny_log, folder, read_options(TINY_CONFIG, [f"prepare.{word}" for word in words]))
    return folder, all_rows(folder)


def outcome(copy, whole, name):
    """Return whether a damaged copy has the same rows, or "named" if an error names the damaged file."""
    try:
        return all_rows(copy) == whole
    except (ValueError, FileNotFoundError) as error:
        assert name in str(error)
        assert name == SCHEMA_FILE or " -m data_prep inspect" in str(error)
        return "named"


def test_damage_is_named_or_changes_nothing(prepared, tmp_path):
    """Most of a small file is room that holds nothing, so damage often changes nothing.

    The draws are the same each time: one in two hundred hits the lengths before a block's arrays such that MindSpore's
    reader ends the process.
    """
    (folder, whole), copy = prepared, tmp_path / "copy"
    train = [file.name for file in all_files(read_schema(folder)) if file.name.startswith("train")]
    outcomes = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        name = str(rng.choice([*train, VOCABULARY_FILE, SCHEMA_FILE]))
        shutil.copytree(folder, copy)
        damage(copy, name, rng)
        outcomes.append(outcome(copy, whole, name))
        shutil.rmtree(copy)
    assert False not in outcomes
    assert outcomes.count("named") > 10


@pytest.mark.parametrize("column", ["ids", "numeric", "labels"])
def test_one_bit_of_a_row_is_enough(prepared, tmp_path, column):
    folder, whole = prepared
    schema = read_schema(folder)
    if (schema.layout, column) == ("zoo", "ids"):
        pytest.skip("MindRecord packs these")
    name = schema.splits["train"].files[0].name
    rows = getattr(next(read_blocks(folder, schema, "train")), column)
    values = rows[:1].tobytes() if rows.ndim > 1 else rows[:50].tobytes()
    shutil.copytree(folder, tmp_path / "copy")
    content = bytearray((folder / name).read_bytes())
    content[content.index(values)] ^= 1
    (tmp_path / "copy" / name).write_bytes(content)
    assert outcome(tmp_path / "copy", whole, name) == "named"


def test_a_file_that_cannot_be_read_is_reported_with_advice(tiny_dataset, tiny_schema, tmp_path):
    """Same size, other bytes: found while reading, as checksums of all files would take as long as an epoch."""
    folder = tmp_path / "copy"
    shutil.copytree(tiny_dataset, folder)
    index = folder / f"{tiny_schema.splits['train'].files[0].name}.db"
    index.write_bytes(bytes(index.stat().st_size))
    other = folder / tiny_schema.splits["valid"].files[-1].name
    other.write_bytes(bytes(other.stat().st_size))
    check_files(folder, tiny_schema)
    with pytest.raises(
        ValueError, match=r"split 'train' in .*: .*train-00000.mindrecord.db is damaged.*inspect"
    ) as caught:
        epoch_rows(folder, tiny_schema)
    assert not re.search("MindSpore|meta file|ERROR|" + re.escape(other.name), str(caught.value))
    with pytest.raises(ValueError, match="is damaged") as caught:
        verify_files(folder, tiny_schema)
    assert all(f"{path} is damaged" in str(caught.value) for path in (index, other))


def test_a_folder_that_is_prepared_anew_beside_a_reader_is_not_called_damaged(tiny_dataset, tiny_schema, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(tiny_dataset, folder)
    train = tiny_schema.splits["train"]
    file = folder / train.files[0].name
    file.write_bytes(bytes(file.stat().st_size))
    files = (data_file(folder, file.name, train.files[0].rows), *train.files[1:])
    write_schema(replace(tiny_schema, splits={**tiny_schema.splits, "train": replace(train, files=files)}), folder)
    with pytest.raises(ValueError, match=r"copy was prepared anew while split 'train' was read: .* run the same"):
        epoch_rows(folder, tiny_schema)


def batch_of(weights, **of_batch):
    rows = np.zeros((len(weights), 1), np.int32), np.zeros((len(weights), 0), np.float32)
    return Batch(*rows, np.zeros(len(weights), np.float32), np.array(weights, np.float32), **of_batch)


@given(
    weights=st.lists(st.one_of(st.just(0.0), st.floats(2**-10, 2**10, width=32)), min_size=1, max_size=60),
    batch_size=st.integers(1, 20),
    ranks=st.integers(1, 4),
)
def test_shares_add_up_to_the_weighted_mean_however_rows_are_cut(weights, batch_size, ranks):
    """Over batches and ranks: Σ share · loss, averaged by rows that count, is Σ weight · loss / Σ weight."""
    counting = np.array([weight for weight in weights if weight], np.float64)
    mean = counting.mean() if len(counting) else 1.0
    found = []
    for start in range(0, len(weights), batch_size):
        batch = batch_of(weights[start : start + batch_size]).rows_that_count(mean)
        bounds = np.linspace(0, batch.num_rows, ranks + 1).astype(int)
        slices = [slice_of_batch(batch, slice(*ends)).shares() for ends in itertools.pairwise(bounds)]
        np.testing.assert_array_equal(np.concatenate(slices), batch.shares())
        found += [batch.num_rows * batch.shares()]
    np.testing.assert_allclose(np.concatenate(found), counting / mean, rtol=1e-6)


@given(st.floats(2**-120, 2**120, width=32), st.integers(1, 3_000))
def test_equal_weights_are_no_weights(weight, num_rows):
    """To the bit: each share is 1 / rows, whatever the weight is."""
    batch = batch_of([weight, 0.0] * num_rows)
    found = batch.rows_that_count(float(batch.weights.sum(dtype=np.float64)) / num_rows).shares()
    assert found.tolist() == [np.float32(1 / num_rows)] * num_rows


def test_a_slice_keeps_what_stands_beside_its_rows():
    batch = batch_of([0, 1, 3], keys={"user": np.arange(3)})
    assert slice_of_batch(batch, slice(1, 2)).keys["user"].tolist() == [1]
    assert batch_of([0, 0]).rows_that_count(1.0).shares().tolist() == []
