"""Columns of unusual Arrow types have the lines of the same values in usual types."""

import datetime
import uuid
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.checks.propose import describe
from data_prep.encoding.from_values import mappings_to_chunk
from data_prep.encoding.rows_to_score import arrow_table, table_to_chunk
from data_prep.kernels.parsed import ONLY_FILE
from data_prep.options.log_format import LogFormat
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.reading import first_chunks

FORM = LogFormat({"label": "label", "x": "string"}, separator=",")
TEXTS = ["x", None, "a text that no view has in its sixteen bytes"]
UUIDS = [uuid.UUID(int=7), None, uuid.UUID(int=2**127)]
PLACES = pa.array([0, None, 2], pa.int8())


def dictionary(values):
    return pa.DictionaryArray.from_arrays(PLACES, values)


@pytest.mark.parametrize(
    ("cells", "texts"),
    [
        (pa.array(TEXTS, pa.string_view()), TEXTS),
        (pa.array(TEXTS).cast(pa.binary()).cast(pa.binary_view()), TEXTS),
        (dictionary(pa.array(TEXTS, pa.string_view())), TEXTS),
        (dictionary(pa.array(UUIDS, pa.uuid())), UUIDS),
        (pa.array(UUIDS, pa.uuid()), UUIDS),
        (pa.array([b"ab", None, b"cd"], pa.binary(2)), ["ab", None, "cd"]),
        (pa.array(np.float16([0.1, 7, 1e-7, 2e3, np.nan])), ["0.1", "7", "1e-7", "2000", None]),
        (pa.array(np.float32([0.1, 16777215, np.inf])), ["0.1", "16777215", "inf"]),
        (pa.array([Decimal("4.02"), Decimal("1.50")], pa.decimal128(6, 2)), ["4.02", "1.50"]),
    ],
    ids=str,
)
def test_unusual_types_have_the_usual_text(tmp_path, cells, texts):
    table = pa.table({"x": cells})
    expected = b"".join(b"0,%s\n" % str(text or "").encode() for text in texts)
    assert table_to_chunk(table, FORM).lines == expected
    if not pa.types.is_dictionary(cells.type):
        pq.write_table(table.append_column("label", pa.array(["0"] * len(cells))), tmp_path / "x.parquet")
        (file,) = find_log(tmp_path / "x.parquet")
        assert b"".join(task.load().lines for _, task in first_chunks(file, FORM, ONLY_FILE, 1000)) == expected


def test_python_values_have_the_text_of_a_column():
    values = [*UUIDS, np.float16(0.1), np.float16(1e-7), Decimal("1.50")]
    lines = mappings_to_chunk([{"x": value} for value in values], FORM).lines.split(b"\n")
    assert [line[2:].decode() for line in lines[:-1]] == [str(UUIDS[0]), "", str(UUIDS[2]), "0.1", "1e-7", "1.50"]


def test_decimal_labels_follow_a_rule_exactly():
    prices = [Decimal(number) / 100 for number in range(300, 500)]
    (chunk,) = [describe(pa.table({"clicked": pa.array(prices, pa.decimal128(6, 2)), "site": ["a", "b"] * 100}),
                         label="clicked<=4.02").rows]  # fmt: skip
    assert sum(Decimal(value) <= Decimal("4.02") for value in chunk.columns[0].values) == 103


def test_times_of_int96_keep_distant_years(tmp_path):
    times = [datetime.datetime(9999, 12, 31), datetime.datetime(2024, 1, 2, 3)]
    table = pa.table({"label": ["0", "1"], "x": pa.array(times, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "x.parquet", use_deprecated_int96_timestamps=True)
    (file,) = find_log(tmp_path / "x.parquet")
    lines = b"".join(task.load().lines for _, task in first_chunks(file, FORM, ONLY_FILE, 1000))
    assert lines == b"0,9999-12-31 00:00:00\n1,2024-01-02 03:00:00\n"


def test_names_of_columns_that_are_numbers_are_texts():
    frame = pd.DataFrame({0: ["a", "b"], "y": [1, 2]})
    form = LogFormat({"label": "label", "0": "string", "y": "integer"}, separator=",")
    lines = table_to_chunk(arrow_table(frame, form), form).lines
    assert mappings_to_chunk(frame.to_dict("records"), form).lines == lines == b"0,a,1\n0,b,2\n"
