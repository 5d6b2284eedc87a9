import pandas as pd
import pyarrow as pa
import pytest

from data_prep.encoding.from_table import arrow_table

TEXTS = ["x", None, "a text that no view has in its sixteen bytes"]


@pytest.mark.parametrize("of_type", [pa.string_view(), pa.binary_view()])
def test_views_in_a_table_of_pandas_are_texts(of_type):
    cells = pa.array(TEXTS).cast(pa.binary()).cast(of_type) if of_type == pa.binary_view() else pa.array(TEXTS, of_type)
    frame = pd.DataFrame({"a": pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([cells])))})
    column = arrow_table(frame)["a"]
    assert column.type in (pa.large_string(), pa.large_binary())
    assert column.cast(pa.large_string()).to_pylist() == TEXTS


@pytest.mark.parametrize("ordered", [False, True])
def test_a_dictionary_of_views_keeps_its_values_and_its_order_with_rows_and_without(ordered):
    of_type = pa.dictionary(pa.int8(), pa.string_view(), ordered)
    cells = pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.int8()), pa.array(TEXTS[::2], pa.string_view()))
    for chunks, expected in (([cells], TEXTS), ([], [])):
        column = pa.chunked_array([pa.DictionaryArray.from_arrays(each.indices, each.dictionary, ordered=ordered)
                                   for each in chunks], of_type)  # fmt: skip
        found = arrow_table(pa.table({"a": column}))["a"]
        assert found.type == pa.dictionary(pa.int8(), pa.large_string(), ordered) and found.to_pylist() == expected
