"""Parts of the rows against the same rows chosen by NumPy, in batches of any size."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest

from app.api import prepare
from app.evaluation.metrics import MetricStream
from app.evaluation.results import names_of_ids
from app.evaluation.slices import OTHER, OUT_OF_VOCABULARY, SliceStream, check_slices, find_parts
from common.text import natural_order
from data_prep.prepared.batches import read_batches, written_order
from data_prep.prepared.schema import VectorField


@pytest.fixture(scope="module")
def rows(tiny_dataset, tiny_schema):
    """The ids of the test rows, their labels, and a logit of each."""
    batches = list(read_batches(tiny_dataset, tiny_schema, "test", written_order(tiny_schema, "test"), 1000))
    ids = np.concatenate([batch.ids for batch in batches])
    labels = np.concatenate([batch.labels for batch in batches])
    return ids, labels, np.random.default_rng(1).normal(-1, 1, len(labels)).astype(np.float32)


@pytest.fixture
def sliced(tiny_dataset, tiny_schema, rows):
    def measure(by, batch_size, replicates=0):
        stream = SliceStream(find_parts(by, tiny_dataset, tiny_schema, "test"))
        first = 0
        for batch in read_batches(tiny_dataset, tiny_schema, "test", written_order(tiny_schema, "test"), batch_size):
            stream.add(batch, rows[2][first : first + batch.num_rows])
            first += batch.num_rows
        return {each.name: each for each in stream.result(replicates, seed=1)}

    return measure


def expected(rows, chosen):
    stream = MetricStream()
    stream.add(rows[2][chosen], rows[1][chosen])
    return stream.result()


def assert_parts(found, parts, rows):
    assert sum(each.metrics.rows for each in found.values()) == len(rows[1])
    assert list(found) == [name for name, chosen in parts.items() if chosen.any()]
    for name, each in found.items():
        # Sums of float32 predictions are added in another order in other batches.
        np.testing.assert_allclose(
            list(vars(each.metrics).values()), list(vars(expected(rows, parts[name])).values()), rtol=1e-6
        )


@pytest.mark.parametrize("batch_size", [1000, 7])
def test_the_values_of_a_field(sliced, rows, tiny_dataset, tiny_schema, batch_size):
    column = max(range(26), key=lambda c: tiny_schema.categorical[c].num_values)
    field, ids = tiny_schema.categorical[column], rows[0][:, column]
    top = np.arange(field.id_ranges[0][0], field.id_ranges[0][0] + 10)
    parts = {
        name: ids == number
        for name, number in zip(names_of_ids(tiny_dataset, tiny_schema, field, top), top, strict=True)
    }
    ranks = ids - top[0]
    ends = [*(end for end in (100, 1_000, 10_000) if end < field.num_values), field.id_ranges[0][1] - top[0]]
    for low, high in itertools.pairwise([10, *ends]):
        parts[f"ranks {low + 1:,} to {high:,} by frequency"] = (low <= ranks) & (ranks < high)
    parts[OUT_OF_VOCABULARY] = (ids >= field.oov_ids[0]) & (ids < field.oov_ids[1])
    assert np.all(np.sum(list(parts.values()), axis=0) == 1) and parts[OUT_OF_VOCABULARY].any()
    assert_parts(sliced(field.name, batch_size), parts, rows)


def test_a_field_of_few_values_has_no_others(sliced, tiny_schema):
    field = min((field for field in tiny_schema.categorical if field.num_values), key=lambda field: field.num_values)
    assert field.num_values < 25
    found = [name for name in sliced(field.name, 100) if name != OUT_OF_VOCABULARY]
    assert OTHER not in found and found == sorted(found, key=natural_order)


@pytest.mark.parametrize("batch_size", [1000, 7])
def test_tenths_of_the_log(sliced, rows, batch_size):
    tenth = np.arange(len(rows[1])) * 10 // len(rows[1])
    assert_parts(
        sliced("time", batch_size), {f"{10 * i}–{10 * i + 10} % of the rows": tenth == i for i in range(10)}, rows
    )


def test_ranges_of_numbers(sliced, tiny_dataset, tiny_schema):
    def numbers(split, place):
        """The numbers of the log in one column, without the missing ones, and the number of all rows."""
        batches = read_batches(tiny_dataset, tiny_schema, split, written_order(tiny_schema, split), 1000)
        numeric = np.concatenate([batch.numeric for batch in batches])
        present = numeric[numeric[:, place + 13] == 0, place].astype(float)
        return np.rint(np.copysign(np.expm1(np.abs(present)), present)), len(numeric)

    for place, field in enumerate(tiny_schema.numeric[:13]):
        (trained, _), (tested, num_rows) = numbers("train", place), numbers("test", place)
        parts = sliced(field.name, 100)
        found = {name: part.metrics.rows for name, part in parts.items()}
        assert found.pop("(missing)", 0) == num_rows - len(tested)
        assert sum(found.values()) == len(tested) and 1 < len(found) <= 10
        for name, count in found.items():
            words = name.replace(",", "").removeprefix("up to ").split(" to ")
            low = -np.inf if name.startswith("up to") else float(words[0].removeprefix("above ")) + ("above" in name)
            high = np.inf if name.startswith("above") else float(words[-1])
            inside = (trained >= low) & (trained <= high)
            assert count == ((tested >= low) & (tested <= high)).sum()
            # Only a number that is frequent by itself makes a part larger than a tenth.
            assert inside.mean() <= 0.1 + 1 / len(trained) + (trained == trained[inside].max()).mean()


def test_ranges_of_numbers_that_are_mostly_zero(tmp_path):
    numbers = [0] * 950 + list(range(1, 51))
    frame = pd.DataFrame({"y": [i % 2 for i in range(1000)], "a": numbers, "b": [number / 7 for number in numbers]})
    data = {"columns": {"y": "label", "a": "integer", "b": "float"}}
    schema = prepare(frame, tmp_path / "p", None, data, numeric_transform="piecewise", workers=1)
    for name in "ab":
        assert find_parts(name, tmp_path / "p", schema, "test").names == ["up to 0", "above 0", "(missing)"]


def test_rows_by_their_values_out_of_vocabulary(sliced, rows, tiny_schema):
    first, end = np.array([field.oov_ids for field in tiny_schema.categorical]).T
    unseen = ((rows[0] >= first) & (rows[0] < end)).sum(axis=1)
    ranges = {"0": (0, 0), "1": (1, 1), "2–3": (2, 3), "4–7": (4, 7), "8 or more": (8, 26)}
    parts = {f"{name} of 26 values unseen": (unseen >= low) & (unseen <= high) for name, (low, high) in ranges.items()}
    assert_parts(sliced("unseen", 33), parts, rows)


def test_intervals_hold_the_metrics_and_few_rows_have_none(sliced, tiny_schema):
    halves = list(sliced("unseen", 100, replicates=100).values())
    assert any(each.intervals for each in halves)
    for each in halves:
        for name, (low, high) in each.intervals.items():
            assert low <= getattr(each.metrics, name) <= high
    of_many_values = max(tiny_schema.categorical, key=lambda field: field.num_values)
    few = [each for each in sliced(of_many_values.name, 100, replicates=10).values() if each.metrics.rows < 20]
    assert few
    assert all(each.intervals == {} for each in few)


@pytest.mark.parametrize(
    ("by", "split", "message"),
    [
        ("C99", "test", "--by C99 is no field of the data; did you mean 'C9'"),
        ("tmie", "test", "did you mean 'time'"),
        ("I1_missing", "test", "I1_missing is no field of the data"),
        ("item", "test", "--by item is a vector, whose values form no groups"),
        ("time", "train", "--by time needs the log's order, and the rows of train are shuffled"),
    ],
)
def test_what_cannot_be_sliced_by(tiny_schema, by, split, message):
    schema = dataclasses.replace(tiny_schema, vectors=(VectorField("item", 1, "none", (0,), (1,)),))
    with pytest.raises(ValueError, match=message):
        check_slices([by], schema, split)
