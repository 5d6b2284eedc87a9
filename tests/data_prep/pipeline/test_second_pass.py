import numpy as np
import pytest

from data_prep.encoding.encoder import RowEncoder
from data_prep.encoding.vocabulary import FieldVocabulary, write_lookup_tables
from data_prep.kernels.parsed import MISSING, Chunk
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.chunk_tasks import REST, ChunkCounter, Encoder
from data_prep.pipeline.first_pass import encoded_row_bytes, numeric_fields
from data_prep.pipeline.split import make_split
from data_prep.prepared.examples import Examples
from data_prep.prepared.schema import NumericField, transform_numbers
from data_prep.statistics.statistics import NumericStatistics

STATISTICS = NumericStatistics.of(np.array([-1, 0, 4, 9]))  # mean 3, variance (16 + 9 + 1 + 36) / 4


@pytest.fixture(scope="module")
def lookup(tmp_path_factory):
    values, counts = np.array([0xABCDEF01, MISSING, 0x12]), np.array([3, 2, 1])
    fields = (
        FieldVocabulary(f"C{i}", (100 + i, 101 + i), ((1000 * i, 1000 * i + 3),), values, counts) for i in range(1, 27)
    )
    return write_lookup_tables(fields, tmp_path_factory.mktemp("lookup") / "lookup.bin")


def make_encoder(numeric, lookup, options, num_lines):
    counter = ChunkCounter(make_split(options, lambda: num_lines, None), options)
    return Encoder(RowEncoder(numeric, lookup, "int32", options.encoding), counter, counts=False)


def encode(lookup, line, transform, layout="blocks"):
    options = PrepareOptions(
        numeric_transform=transform, layout=layout, train_fraction=1, valid_fraction=0,
        test_fraction=0,
    )  # fmt: skip
    numeric = numeric_fields(options, [STATISTICS] * 13)
    return make_encoder(numeric, lookup, options, 0).encode(Chunk(0, 1, line.encode() + b"\n"))["train"]


@pytest.mark.parametrize(
    ("transform", "cell", "expected"),
    [
        ("log1p", "0", 0.0),
        ("log1p", "7", np.log(8.0)),
        ("log1p", "-3", -np.log(4.0)),
        ("log1p", "", 0.0),
        ("max", "0", 0.0),
        ("max", "18", 2.0),
        ("max", "-3", -1 / 3),
        ("max", "", 0.0),
        ("standardize", "3", 0.0),
        ("standardize", "9", 6 / np.sqrt(15.5)),
        ("standardize", "", 0.0),
    ],
)
def test_numeric_transforms(make_line, lookup, transform, cell, expected):
    rows = encode(lookup, make_line(integer=cell), transform)
    assert rows.numeric.dtype == np.float32
    assert np.array_equal(rows.numeric[0, :13], np.full(13, expected, np.float32))
    assert np.array_equal(rows.numeric[0, 13:], np.full(13, cell == "", np.float32))
    assert np.array_equal(
        encode(lookup, make_line(integer=cell), transform, layout="zoo").numeric, rows.numeric[:, :13]
    )


@pytest.mark.parametrize(("cell", "place"), [("abcdef01", 0), ("", 1), ("00000012", 2), ("00000013", None)])
def test_known_missing_and_unknown_values(make_line, lookup, cell, place):
    ids = encode(lookup, make_line(value=cell), "log1p").ids
    fields = np.arange(1, 27)
    assert ids.dtype == np.int32
    assert ids[0].tolist() == (100 + fields if place is None else 1000 * fields + place).tolist()


def test_a_chunk_s_parts_describe_its_rows(make_line, tmp_path):
    """Ids as `prepare` gives them: those of numeric columns, of unknown values, then of each field's own."""
    values, counts = np.array([0xABCDEF01, MISSING]), np.array([3, 2])
    fields = (
        FieldVocabulary(f"C{i + 1}", (26 + i, 27 + i), ((52 + 2 * i, 54 + 2 * i),), values, counts) for i in range(26)
    )
    lookup = write_lookup_tables(fields, tmp_path / "lookup.bin")
    options = PrepareOptions(split="chronological", train_fraction=0.6, valid_fraction=0.2, test_fraction=0.2)
    numeric = numeric_fields(options, [STATISTICS] * 13)
    encoder = make_encoder(numeric, lookup, options, 5)
    lines = [make_line("1", value="abcdef01"), make_line("1", value="00000013"), make_line("0", value="")]
    lines += [make_line("0", value="00000013"), make_line("1", value="00000013")]
    parts = encoder.encode(Chunk(0, 5, "".join(f"{line}\n" for line in lines).encode()))
    rest = parts.pop(REST)
    expected = {"train": [0, 1, 2], "valid": [3], "test": [4]}
    assert {split: len(rows) for split, rows in parts.items()} == {split: len(n) for split, n in expected.items()}
    assert {split: numbers.tolist() for split, numbers in rest.row_numbers.items()} == expected
    assert rest.clicks == {"train": 2, "valid": 0, "test": 1}
    assert rest.unknown.tolist() == [1] * 26


def test_rows_are_chosen_by_mask_place_or_slice_and_take_what_they_take():
    rng = np.random.default_rng(1)
    rows = Examples(
        rng.integers(0, 9, (5, 3), np.int32), np.float32(rng.random((5, 2))), np.arange(5, dtype=np.float32)
    )
    for chosen in (np.array([False, True, True, False, False]), np.array([1, 2]), slice(1, 3)):
        found = rows.take(chosen)
        assert found.labels.tolist() == [1, 2]
        assert np.array_equal(found.ids, rows.ids[1:3]) and np.array_equal(found.numeric, rows.numeric[1:3])
    options = PrepareOptions(data=LogFormat({"y": "label", "a": "hex32", "b": "hex32", "c": "hex32"}))
    num_bytes = sum(column.nbytes for column in (rows.ids, rows.numeric, rows.labels))
    assert encoded_row_bytes(options, 2, "int32") == num_bytes / len(rows) + 8  # and the line's number


def test_the_numeric_columns_and_what_they_were_fitted_to():
    fields = numeric_fields(PrepareOptions(numeric_transform="max"), [STATISTICS] * 13)
    assert [field.name for field in fields] == [f"I{i}" for i in range(1, 14)] + [f"I{i}_missing" for i in range(1, 14)]
    assert fields[0] == NumericField("I1", "I1", "max", {"max": 9.0})
    assert fields[13] == NumericField("I1_missing", "I1", "missing", {})
    standardized = numeric_fields(PrepareOptions(numeric_transform="standardize"), [STATISTICS] * 13)
    assert standardized[0].parameters == {"mean": 3.0, "standard_deviation": 15.5**0.5}


@pytest.mark.parametrize("integers", [[], [0, 0], [-5, -5]])
@pytest.mark.parametrize("transform", ["max", "standardize"])
def test_no_transform_divides_by_0_or_turns_signs(integers, transform):
    statistics = NumericStatistics.of(np.array(integers, np.int64))
    field = numeric_fields(PrepareOptions(numeric_transform=transform), [statistics] * 13)[0]
    low, high = transform_numbers(field, np.array([-6, 7]))
    assert np.isfinite([low, high]).all()
    assert low < high


def test_log1p_of_the_extremes_is_finite():
    field = NumericField("I1", "I1", "log1p", {})
    low, high = transform_numbers(field, np.array([-(2**63), 2**63 - 1]))
    assert high == -low == pytest.approx(63 * np.log(2))


def test_an_unknown_transform_is_an_error():
    with pytest.raises(ValueError, match=r"'I1' has transform 'cube'"):
        transform_numbers(NumericField("I1", "I1", "cube", {}), np.array([1]))
