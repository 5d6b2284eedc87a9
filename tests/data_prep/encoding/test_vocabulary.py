import numpy as np
import pyarrow.parquet as pq
import pytest

from data_prep.encoding import vocabulary
from data_prep.encoding.vocabulary import VocabularyWriter, ids_dtype, make_vocabulary, order_values
from data_prep.options.columns import CategoricalColumn


def test_a_large_field_has_several_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "_GROUP_ROWS", 2)
    words = np.array([1 << 32 | 9, 2 << 32 | 8, 3 << 32 | 7], np.uint64)  # of a value and its count
    (field,) = make_vocabulary({"C1": 1}, [order_values(words, 10)], 0)
    writer = VocabularyWriter(tmp_path / "v.parquet", [CategoricalColumn("C1", "hex32", 0)])
    writer.add(field)
    writer.finish()
    assert pq.ParquetFile(tmp_path / "v.parquet").num_row_groups == 2
    assert pq.read_table(tmp_path / "v.parquet")["value"].to_pylist() == ["", "00000001", "00000002", "00000003"]


@pytest.mark.parametrize(("size", "dtype"), [(2**31 - 1, "int32"), (2**31, "int64")])
def test_ids_dtype(size, dtype):
    assert ids_dtype(size) == dtype
