import tracemalloc

import numpy as np
import pytest

from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline import split
from data_prep.pipeline.split import NO_TIME, TEST, TRAIN, VALID, RowsToSplit, make_split, split_by_time, splitmix64


def unused():
    raise AssertionError("a hash split does not depend on the log's length")


def test_splitmix64_gives_the_published_outputs():
    # The first outputs for seed 1234567 of the reference program, as Rosetta Code lists them.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert splitmix64(1234567, np.arange(5)).tolist() == expected


@pytest.mark.parametrize("fractions", [(0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.5, 0.0, 0.5)])
def test_hash_split_keeps_to_its_fractions(fractions):
    train, valid, test = fractions
    options = PrepareOptions(train_fraction=train, valid_fraction=valid, test_fraction=test)
    assigned = make_split(options, unused, None).assign(RowsToSplit(np.arange(100_000)))
    for place, fraction in zip((TRAIN, VALID, TEST), fractions, strict=True):
        # Four standard deviations of a binomial share; exact where the fraction is 0 or 1.
        allowed = 4 * (fraction * (1 - fraction) / 100_000) ** 0.5
        assert abs(np.mean(assigned == place) - fraction) <= allowed


TIMES = {
    "one": lambda rng: np.zeros(5_000, np.int64),
    "none": lambda rng: np.where(rng.random(5_000) < 0.8, NO_TIME, 5),
    "few": lambda rng: rng.integers(0, 3, 5_000) * 10**10,
    "a minute": lambda rng: rng.integers(-60_000, 0, 5_000),
    "years": lambda rng: rng.integers(-(10**12), 10**12, 5_000),
}


@pytest.mark.parametrize("kind", TIMES)
@pytest.mark.parametrize("fractions", [(0.7, 0.9), (0, 1), (0.5, 0.5)])
def test_a_split_by_time_is_that_of_all_rows_in_order(tmp_path, monkeypatch, kind, fractions):
    monkeypatch.setattr(split, "_BLOCK_ROWS", 1_000)
    times, lines = TIMES[kind](np.random.default_rng(1)), np.arange(0, 15_000, 3)
    rule = split_by_time("time", fractions, written(tmp_path, times, lines))
    rank = np.argsort(np.lexsort((lines, times)))
    expected = sum((rank >= round(fraction * len(times))).astype(int) for fraction in fractions)
    assert rule.assign(RowsToSplit(lines, times=times)).tolist() == expected.tolist()


def test_a_split_by_time_keeps_no_rows_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(split, "_SPAN_BITS", 10)
    monkeypatch.setattr(split, "_BLOCK_ROWS", 1_000)
    times = np.random.default_rng(1).integers(0, 1 << 10, 300_000)
    path = written(tmp_path, times, np.arange(len(times)))
    tracemalloc.start()
    split_by_time("time", (0.5, 0.7), path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < times.nbytes / 2


def written(folder, times, lines):
    path = folder / "times.bin"
    path.write_bytes(np.stack([times, lines], axis=1).tobytes())
    return path


def test_a_stratified_split_of_a_long_log_reads_its_labels_once_and_keeps_few_hashes():
    numbers = np.arange(100_000)
    labels, kept = numbers % 3 == 0, []

    def read_labels(hasher):
        chunks = [hasher.hash_rows(part, labels[part]) for part in np.split(numbers, [30_000])]
        kept.append(sum(len(inside) for chunk in chunks for of_label in chunk for inside in of_label.inside))
        return [list(parts) for parts in zip(*chunks, strict=True)]

    assigned = make_split(PrepareOptions(split="stratified"), unused, read_labels).assign(RowsToSplit(numbers, labels))
    (num_kept,) = kept
    assert num_kept <= 0.09 * len(numbers)  # two bounds, 2 % on either side of each
    assert np.bincount(assigned[labels]).tolist() == [26_667, 3_334, 3_333]


@pytest.mark.parametrize(
    ("valid", "test", "message"),
    [
        (("day_4",), (), r"no file of the log is named 'day_4'; they are: day_0, day_1"),
        (("day_*",), ("day_1",), r"day_1 is in prepare.valid_files and in prepare.test_files"),
    ],
)
def test_files_that_cannot_be_split_so_are_an_error(valid, test, message):
    options = PrepareOptions(split="files", valid_files=valid, test_files=test)
    with pytest.raises(ValueError, match=message):
        make_split(options, unused, None, ["day_0", "day_1"])
