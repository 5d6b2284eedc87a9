import dataclasses

import numpy as np
import pytest

from data_prep.mindrecord import read_blocks
from data_prep.prepare import prepare
from data_prep.schema import read_schema


def read_split(folder, split):
    schema = read_schema(folder)
    blocks = list(read_blocks(folder, [file.name for file in schema.splits[split].files]))
    return [np.concatenate([getattr(block, name) for block in blocks]) for name in ("ids", "numeric")]


@pytest.mark.parametrize("changes", [{}, {"integer_buckets": True, "numeric_transform": "max", "oov_buckets": 5}])
def test_the_same_log_gets_the_same_rows(tmp_path, log_path, small_options, changes):
    options = dataclasses.replace(small_options, **changes)
    prepare(log_path, tmp_path / "first", options)
    again = dataclasses.replace(options, min_count=1000)  # nothing is counted
    prepare(log_path, tmp_path / "second", again, vocabulary_of=tmp_path / "first")
    first, second = read_schema(tmp_path / "first"), read_schema(tmp_path / "second")
    assert (second.numeric, second.categorical, second.source) == (first.numeric, first.categorical, first.source)
    for path in (tmp_path / "first").iterdir():
        if path.name not in ("schema.json", "statistics.json"):  # in which only the first one's values were counted
            assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes(), path.name


def test_the_next_days_rows_get_the_ids_of_the_first(tmp_path, make_log, log_path, prepared, small_options):
    new = make_log(200, seed=9)
    (tmp_path / "new.txt").write_text(new + "bad line\n")
    options = dataclasses.replace(small_options, train_fraction=0, valid_fraction=0, test_fraction=1)
    schema = prepare(tmp_path / "new.txt", tmp_path / "new", options, vocabulary_of=prepared)
    assert (schema.rejected_rows, schema.vocabulary_size) == (1, read_schema(prepared).vocabulary_size)

    # The same lines after the old log, which alone is trained on, have the same ids.
    (tmp_path / "both.txt").write_text(log_path.read_text() + new)
    share = 3000 / 3200
    options = dataclasses.replace(
        small_options, split="chronological", train_fraction=share, valid_fraction=0, test_fraction=1 - share
    )
    all_trained = dataclasses.replace(
        small_options, split="chronological", train_fraction=1, valid_fraction=0, test_fraction=0
    )
    prepare(log_path, tmp_path / "old", all_trained)
    prepare(tmp_path / "both.txt", tmp_path / "both", options)
    prepare(tmp_path / "both.txt", tmp_path / "given", options, vocabulary_of=tmp_path / "old")
    for ours, theirs in zip(read_split(tmp_path / "given", "test"), read_split(tmp_path / "both", "test"), strict=True):
        assert np.array_equal(ours, theirs)


def test_other_columns_are_refused(tmp_path, log_path, prepared, small_options):
    options = dataclasses.replace(small_options, numeric_transform="max", oov_buckets=2)
    with pytest.raises(
        ValueError, match=r"oov_buckets is 2, there 1; prepare.numeric_transform is 'max', there 'log1p'"
    ):
        prepare(log_path, tmp_path / "out", options, vocabulary_of=prepared)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_prepared_is_an_error(tmp_path, log_path, small_options):
    with pytest.raises(FileNotFoundError, match="no prepared data in"):
        prepare(log_path, tmp_path / "out", small_options, vocabulary_of=tmp_path)
