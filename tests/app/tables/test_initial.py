import numpy as np

from app.tables.initial import initial_rows
from common.arrays.hashing import mix64


def test_mix64_is_splitmix64():
    # The first three outputs of SplitMix64 seeded with 0, as its reference program prints them.
    increments = np.uint64(0x9E3779B97F4A7C15) * np.arange(1, 4, dtype=np.uint64)
    assert mix64(increments).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_a_row_depends_on_nothing_but_seed_and_id():
    together = initial_rows(3, np.array([5, 2**40, 0]), 8, 0.01)
    np.testing.assert_array_equal(together[1], initial_rows(3, np.array([2**40]), 8, 0.01)[0])
    np.testing.assert_array_equal(initial_rows(3, np.array([5]), 4, 0.01)[0], together[0, :4])


def test_seed_row_and_column_all_matter():
    rows = initial_rows(1, np.arange(100), 16, 1.0)
    assert np.unique(rows).size > 0.99 * rows.size
    assert not np.array_equal(rows, initial_rows(2, np.arange(100), 16, 1.0))


def test_values_are_uniform_in_the_scale():
    rows = initial_rows(0, np.arange(10_000), 20, 0.01)
    assert rows.dtype == np.float32
    assert rows.min() >= -0.01
    assert rows.max() < 0.01
    counts, _ = np.histogram(rows, bins=20, range=(-0.01, 0.01))
    # 10,000 expected a bin, standard deviation 97: six of them
    assert np.abs(counts - 10_000).max() < 600


def test_negative_and_huge_seeds_are_taken_modulo_2_to_the_64():
    np.testing.assert_array_equal(
        initial_rows(-1, np.arange(3), 4, 0.01), initial_rows(2**64 - 1, np.arange(3), 4, 0.01)
    )
