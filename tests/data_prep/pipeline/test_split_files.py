import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.execution.pieces import Pieces
from data_prep.pipeline import split_files
from data_prep.pipeline.prepare import prepare
from data_prep.pipeline.split_files import FileToWrite, Windows, WindowShuffle, window_order
from data_prep.prepared.examples import Examples, concatenate
from data_prep.prepared.reader import read_files

PART_ROWS = (0, 7, 1, 50, 0, 33, 9)
NUM_ROWS = sum(PART_ROWS)


def rows_of(numbers):
    numbers = np.asarray(numbers)
    return Examples(
        ids=np.stack([numbers, -numbers], axis=1).astype(np.int32),
        numeric=numbers[:, None].astype(np.float32),
        labels=numbers.astype(np.float32),
    )


def write(folder, rows, window_rows):
    pieces, parts, first = Pieces(folder / "work"), [], 0
    pieces.folder.mkdir(exist_ok=True)
    for number, num_rows in enumerate(PART_ROWS):
        numbers, first = range(first, first + num_rows), first + num_rows
        pieces.write(f"part-{number}", rows_of(np.arange(numbers.start, numbers.stop)))
        parts.append((numbers, f"part-{number}"))
    start = rows.start // window_rows * window_rows
    needed = tuple(part for part in parts if part[0].stop > start)
    windows = Windows(5, window_rows, block_rows=10, file_rows=40)
    return FileToWrite(folder, pieces.folder, "train", 3, rows, needed, windows).write()


@given(st.integers(1, 50), st.integers(1, 12), st.integers(1, 200))
def test_files_divide_the_rows_and_windows_hold_their_files(window_rows, num_blocks, num_files):
    windows = Windows(1, window_rows, 10, num_blocks * 10)
    files = [windows.of_file(number) for number in range(num_files)]
    assert [row for file in files for row in file] == [*range(num_files * num_blocks * 10)]
    for file in files:
        around = windows.around(file)
        assert around.start <= file.start and file.stop <= around.stop
        assert file.start - around.start < window_rows and around.stop - file.stop < window_rows
        assert around.start % window_rows == around.stop % window_rows == 0


@pytest.mark.parametrize("window_rows", [1, 20, 30, 70, 1000])
@pytest.mark.parametrize("rows", [range(0, 40), range(40, 80), range(80, NUM_ROWS)])
def test_a_file_has_its_part_of_the_order_of_all_rows(tmp_path, window_rows, rows):
    windows = [np.arange(first, min(first + window_rows, NUM_ROWS)) for first in range(0, NUM_ROWS, window_rows)]
    order = np.concatenate([window[window_order(5, number, len(window))] for number, window in enumerate(windows)])
    (tmp_path / "train-00003.mindrecord").write_text("of an earlier try")
    file, index = write(tmp_path, rows, window_rows)
    assert (file.name, index.name, file.rows) == ("train-00003.mindrecord", "train-00003.mindrecord.db", len(rows))
    blocks = list(read_files(tmp_path, [file.name]))
    assert np.array_equal(np.concatenate([block.ids[:, 0] for block in blocks]), order[rows.start : rows.stop])
    assert all(len(block) == 10 for block in blocks[:-1])
    assert not list((tmp_path / "work").glob("writing-*"))


def test_a_part_that_is_damaged_is_an_error_that_leaves_no_file(tmp_path):
    write(tmp_path, range(10), 1)
    (tmp_path / "work" / "part-3").write_bytes(b"")
    (tmp_path / "train-00003.mindrecord").unlink()
    with pytest.raises(OSError, match=r"part-3 does not hold what was written to it; check the disk"):
        Pieces(tmp_path / "work").expect("part-3")
    with pytest.raises(OSError, match=r"part-3 does not hold what was written to it; check the disk"):
        part = (range(9), "part-3")
        FileToWrite(tmp_path, tmp_path / "work", "train", 3, range(9), (part,), Windows(5, 1, 10, 40)).write()
    assert not (tmp_path / "train-00003.mindrecord").exists()


def test_files_hold_whole_blocks_but_the_last_and_a_split_without_rows_has_none(tmp_path, log_path, small_options):
    options = dataclasses.replace(small_options, train_fraction=1.0, valid_fraction=0.0, test_fraction=0.0)
    splits = prepare(log_path, tmp_path / "out", options, file_rows=100).splits
    *whole, last = splits["train"].files
    assert {file.rows for file in whole} == {64} and 0 < last.rows <= 64
    assert [file.name for file in splits["train"].files[:2]] == ["train-00000.mindrecord", "train-00001.mindrecord"]
    assert splits["valid"].files == splits["test"].files == ()


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
