"""`layout: zoo`, read as the MindSpore model zoo's Wide&Deep reads it and as `app` does."""

import logging
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.__main__ import main
from data_prep.checks.inspect import inspect
from data_prep.pipeline.zoo_layout import check_ids_fit, num_shards, part_files, rest_file
from data_prep.prepared.batches import read_batches, training_order, written_order
from data_prep.prepared.data_files import all_files
from data_prep.prepared.schema import SPLITS, read_schema
from data_prep.sources.synthetic import synthesize

NUM_ROWS = 54_321  # some samples a shard, and rest in every split
SETTINGS = ("prepare.workers=1", "prepare.shuffle_window_rows=20000", "prepare.integer_buckets=false")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.txt"
    synthesize(path, NUM_ROWS, seed=1, workers=1)
    return path


@pytest.fixture(scope="module")
def zoo(log):
    folder = log.with_name("zoo")
    assert main(["prepare", str(log), str(folder), "--layout", "zoo", *SETTINGS]) == 0
    return folder


@pytest.fixture(scope="module")
def own(log):
    """The same rows in this project's layout, whose ids come after 13 more numeric columns."""
    folder = log.with_name("own")
    with mock.patch("data_prep.options.prepare_options.BLOCK_ROWS", 1000):
        assert main(["prepare", str(log), str(folder), *SETTINGS]) == 0
    return folder


def read_like_the_zoo(folder, train, batch_size):
    """The zoo's way (src/datasets.py there): one file by its fixed name, samples joined to batches, 39 columns.

    But for its 4 workers, which MindSpore refuses on 2 cores.
    """
    import mindspore.dataset as ds

    name = "train_input_part.mindrecord00" if train else "test_input_part.mindrecord0"
    columns = ["feat_ids", "feat_vals", "label"]
    data = ds.MindDataset(str(folder / name), columns_list=columns, shuffle=train, num_parallel_workers=2)
    data = data.batch(batch_size // 1000, drop_remainder=True)

    def shape(ids, values, labels):
        return (
            np.array(ids).flatten().reshape(batch_size, 39),
            np.array(values).flatten().reshape(batch_size, 39),
            np.array(labels).flatten().reshape(batch_size, 1),
        )

    data = data.map(shape, input_columns=columns, num_parallel_workers=2)
    return list(data.create_tuple_iterator(num_epochs=1, output_numpy=True))


def sorted_rows(*columns):
    rows = np.column_stack(columns)
    return rows[np.lexsort(rows.T)]


def all_batches(folder, split, order_of=written_order):
    schema = read_schema(folder)
    return list(read_batches(folder, schema, split, order_of(schema, split), 700))


@pytest.mark.parametrize(("split", "batch_size"), [("train", 2000), ("train", 1000), ("test", 1000)])
def test_the_zoo_reads_every_whole_sample(zoo, own, split, batch_size):
    batches = read_like_the_zoo(zoo, split == "train", batch_size)
    rows = read_schema(own).splits[split].rows
    shards = num_shards(split, rows // 1000)
    assert len(batches) == rows // 1000 // shards * shards * 1000 // batch_size
    ids, values, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    assert (ids.dtype, values.dtype, labels.dtype) == (np.int32, np.float32, np.float32)
    np.testing.assert_array_equal(ids[:, :13], np.tile(np.arange(13), (len(ids), 1)))
    np.testing.assert_array_equal(values[:, 13:], 1)
    if batch_size == 1000:  # no whole sample is left out: the rows are the first ones of our own layout
        ours = all_batches(own, split)
        expected = [
            np.concatenate([getattr(b, name) for b in ours])[: len(ids)] for name in ("ids", "numeric", "labels")
        ]
        expected[0], expected[1] = expected[0] - 13, expected[1][:, :13]
        np.testing.assert_array_equal(
            sorted_rows(ids[:, 13:], values[:, :13], labels), sorted_rows(expected[0], expected[1], expected[2])
        )


def test_ids_are_numbered_as_the_zoo_does(zoo):
    """13 constant ids of the integers, 26 for what is out of vocabulary, then the values."""
    schema = read_schema(zoo)
    assert (schema.num_numeric, schema.num_categorical) == (13, 26)
    assert [field.oov_ids for field in schema.categorical] == [(13 + i, 14 + i) for i in range(26)]
    assert schema.categorical[0].id_ranges[0][0] == 39


@pytest.mark.parametrize("split", SPLITS)
def test_app_reads_the_same_rows_in_the_same_order(zoo, own, split):
    for one, other in zip(all_batches(zoo, split), all_batches(own, split), strict=True):
        for found, expected in (
            (one.ids, other.ids - 13),
            (one.numeric, other.numeric[:, :13]),
            (one.labels, other.labels),
        ):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)


def test_an_epoch_of_training_has_the_same_batches(zoo, own):
    def order_of(schema, _):
        return training_order(schema, seed=3, epoch=2, pool_blocks=4)

    for one, other in zip(all_batches(zoo, "train", order_of), all_batches(own, "train", order_of), strict=True):
        np.testing.assert_array_equal(one.ids, other.ids - 13)
        np.testing.assert_array_equal(one.labels, other.labels)


def test_the_schema_names_shards_and_rest(zoo, own):
    schema, ours = read_schema(zoo), read_schema(own)
    for split in SPLITS:
        files, rows = schema.splits[split].files, ours.splits[split].rows
        parts = part_files(split, num_shards(split, rows // 1000))
        assert [file.name for file in files] == [*parts, rest_file(split)]
        assert len({file.rows for file in files[:-1]}) == 1
        assert sum(file.rows for file in files) == schema.splits[split].rows == rows
        assert schema.splits[split].membership == ours.splits[split].membership
    assert not list(zoo.glob("train-*"))


@given(split=st.sampled_from(SPLITS), num_samples=st.integers(0, 5_000_000))
def test_next_to_nothing_is_left_over_from_the_shards(split, num_samples):
    shards = num_shards(split, num_samples)
    if num_samples >= 21:
        assert num_samples % shards < 10  # looked up for all numbers below 3 million, 0.5 in the mean of train
    names = part_files(split, shards)
    assert names[0] == ("train_input_part.mindrecord00" if split == "train" else f"{split}_input_part.mindrecord0")
    assert sorted(names) == names


def test_inspect_knows_the_layout(zoo, capsys):
    inspect(zoo)
    printed = capsys.readouterr().out
    assert "layout: zoo (train_input_part.mindrecord00 … train_input_rest.mindrecord, valid_" in printed
    assert "C26" in printed


def test_bytes_do_not_depend_on_chunks(log, zoo, tmp_path):
    again = tmp_path / "again"
    assert main(["prepare", str(log), str(again), "--layout", "zoo", *SETTINGS, "prepare.memory_limit=1 GiB"]) == 0
    for file in all_files(read_schema(zoo)):
        assert (zoo / file.name).read_bytes() == (again / file.name).read_bytes(), file.name


def test_less_than_a_sample_is_all_rest(tmp_path, log_path, caplog):
    caplog.set_level(logging.INFO)
    folder = tmp_path / "small"
    assert main(["prepare", str(log_path), str(folder), "--layout", "zoo", "prepare.workers=1"]) == 0
    schema = read_schema(folder)
    assert [file.name for file in schema.splits["test"].files] == [rest_file("test")]
    assert sum(batch.num_rows for batch in all_batches(folder, "test")) == schema.splits["test"].rows
    rows = f"{schema.splits['train'].rows:,}"
    assert f"{rows} rows to train on do not fill 11 files of 1,000" in caplog.text
    assert f"train: the last {rows} of {rows} rows are in train_input_rest.mindrecord" in caplog.text


def test_more_ids_than_int32_holds_are_refused():
    check_ids_fit(2**31 - 1)
    with pytest.raises(ValueError, match=r"int32 ids, and the vocabulary has 2,147,483,648; raise prepare.min_count"):
        check_ids_fit(2**31)


def test_options_that_the_zoo_cannot_read_are_refused(log_path, tmp_path, capsys):
    words = ["prepare", str(log_path), str(tmp_path / "out"), "--layout", "zoo", "prepare.integer_buckets=true"]
    assert main(words) == 2
    assert "found integer_buckets True. Set prepare.integer_buckets=false" in capsys.readouterr().err
