"""Edges of the numeric transforms. `kernels/test_third_voice.py` compares usual rows with a plain reader's."""

import dataclasses

import numpy as np
import pytest

from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.first_pass import encoded_row_bytes, numeric_fields
from data_prep.prepared.examples import Examples
from data_prep.prepared.schema import NumericField, inverse_transform, piece_of_logs, transform_numbers
from data_prep.statistics.statistics import NumericStatistics, RowSample


def test_an_encoded_row_takes_the_estimated_bytes():
    rows = Examples(np.zeros((5, 3), np.int32), np.zeros((5, 2), np.float32), np.zeros(5, np.float32))
    options = PrepareOptions(data=LogFormat({"y": "label", "a": "hex32", "b": "hex32", "c": "hex32"}))
    num_bytes = sum(column.nbytes for column in (rows.ids, rows.numeric, rows.labels))
    assert encoded_row_bytes(options, 2, "int32") == num_bytes / len(rows) + 8  # and the line's number


@pytest.mark.parametrize("integers", [[], [0, 0], [-5, -5]])
@pytest.mark.parametrize("transform", ["max", "standardize", "log1p_standardize"])
def test_no_transform_divides_by_0_or_turns_signs(integers, transform):
    statistics = NumericStatistics.of(np.array(integers, np.int64))
    sample = RowSample(
        np.arange(len(integers), dtype=np.uint64), np.array([integers] * 13, float), np.zeros((len(integers), 0))
    )
    field = numeric_fields(PrepareOptions(numeric_transform=transform), [statistics] * 13, sample)[0]
    low, high = transform_numbers(field, np.array([-6, 7]))
    assert np.isfinite([low, high]).all()
    assert low < high
    np.testing.assert_allclose(inverse_transform(field, np.array([low, high])), [-6, 7])


def test_log1p_of_the_extremes_is_finite():
    field = NumericField("I1", "I1", "log1p", {})
    low, high = transform_numbers(field, np.array([-(2**63), 2**63 - 1]))
    assert high == -low == pytest.approx(63 * np.log(2))
    assert inverse_transform(field, np.array([low])) == pytest.approx(-(2**63))


def test_ranks_are_turned_into_numbers():
    field = NumericField("I1", "I1", "quantile", {}, quantiles=((-2.0, 0.0), (8.0, 1.0)))
    assert inverse_transform(field, transform_numbers(field, np.array([-9, 3]))).tolist() == [-2, 3]


def test_standardized_logs_have_mean_zero_and_bounds():
    numbers = np.array([[0, 1, 7, 400, np.nan, 10_000.0]])
    sample, data = (
        RowSample(np.arange(6, dtype=np.uint64), numbers, np.zeros((6, 0))),
        LogFormat({"y": "label", "n": "float"}),
    )
    options = PrepareOptions(data=data, numeric_transform="log1p_standardize")
    field = numeric_fields(options, [NumericStatistics()], sample)[0]
    results = transform_numbers(field, numbers[0, [0, 1, 2, 3, 5]])
    assert (results.mean(), results.std()) == (pytest.approx(0, abs=1e-12), pytest.approx(1))
    constant = numeric_fields(
        options, [NumericStatistics()], RowSample(sample.hashes, np.full((1, 6), 0.1), sample.vectors)
    )[0]
    assert transform_numbers(constant, np.array([0.1])) == pytest.approx(0, abs=1e-12)
    tight = dataclasses.replace(field, parameters={"mean": 4.0, "standard_deviation": 0.1})
    assert transform_numbers(tight, np.array([-1e300, 1e300])).tolist() == [-10, 10]


@pytest.mark.parametrize("numbers", [[0, 1, 7, 400, np.nan, 10_000], [3, 3, 3, 8], [5, 5], [np.nan]])
def test_pieces_of_a_number_bend_at_quantiles(numbers):
    cells = np.array([numbers], float)
    sample = RowSample(np.arange(len(numbers), dtype=np.uint64), cells, np.zeros((len(numbers), 0)))
    options = PrepareOptions(data=LogFormat({"y": "label", "n": "float"}), numeric_transform="piecewise")
    number, *pieces, missing = numeric_fields(options, [NumericStatistics()], sample)
    assert (number.transform, missing.transform, len(pieces)) == ("log1p_standardize", "missing", 8)
    present = cells[~np.isnan(cells)]
    found = np.array([transform_numbers(piece, present) for piece in pieces])
    np.testing.assert_allclose(found.sum(axis=1), 0, atol=1e-12)
    shares = np.array([piece_of_logs(piece, np.log1p(np.sort(present))) for piece in pieces])
    assert np.all(np.diff(shares.sum(axis=0)) >= 0)
    assert shares[:, -1:].sum() == max(len(np.unique(present)) - 1, 0)  # The largest number covers every range.
    assert np.all((shares[:-1] == 1) | (shares[1:] == 0))  # A range begins where the one before ends.
    many = LogFormat({"y": "label", **{f"n{place}": "float" for place in range(100)}})
    fields = numeric_fields(dataclasses.replace(options, data=many), [NumericStatistics()] * 100)
    assert len(fields) == 100 * (1 + 2 + 1)


def test_an_unknown_transform_is_an_error():
    with pytest.raises(ValueError, match=r"'I1' has transform 'cube'"):
        transform_numbers(NumericField("I1", "I1", "cube", {}), np.array([1]))
