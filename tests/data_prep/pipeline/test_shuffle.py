import numpy as np
import pytest

from data_prep.pipeline import split_files
from data_prep.pipeline.split_files import WindowShuffle
from data_prep.prepared.examples import Examples, concatenate


def rows_of(numbers):
    numbers = np.asarray(numbers)
    return Examples(
        ids=np.stack([numbers, -numbers], axis=1).astype(np.int32),
        numeric=numbers[:, None].astype(np.float32),
        labels=numbers.astype(np.float32),
    )


def shuffled(num_rows, chunk_rows, seed=1, window_rows=100):
    window = WindowShuffle(seed, window_rows)
    pieces = []
    for first in range(0, num_rows, chunk_rows):
        pieces += window.add(rows_of(range(first, min(first + chunk_rows, num_rows))))
    return concatenate([*pieces, *window.finish()])


@pytest.mark.parametrize("chunk_rows", [1, 37, 100, 1000])
def test_rows_stay_whole_in_their_window_and_the_order_does_not_depend_on_chunks(chunk_rows, monkeypatch):
    monkeypatch.setattr(split_files, "_PIECE_ROWS", 30)
    rows = shuffled(250, chunk_rows)
    for first in (0, 100, 200):
        assert sorted(rows.ids[:, 0][first : first + 100]) == list(range(first, min(first + 100, 250)))
    assert np.array_equal(rows.ids[:, 1], -rows.ids[:, 0])
    assert np.array_equal(rows.numeric[:, 0], rows.ids[:, 0])
    assert np.array_equal(rows.labels, rows.ids[:, 0])
    assert np.array_equal(rows.ids, shuffled(250, 50).ids)


def test_every_window_and_seed_has_an_order_of_its_own():
    first, second = shuffled(200, 200).ids[:, 0].reshape(2, 100)
    assert not np.array_equal(first, np.arange(100))
    assert not np.array_equal(first, second - 100)
    assert not np.array_equal(first, shuffled(100, 100, seed=2).ids[:, 0])


def test_a_shuffle_of_nothing_is_empty():
    assert list(WindowShuffle(1, 10).finish()) == []
