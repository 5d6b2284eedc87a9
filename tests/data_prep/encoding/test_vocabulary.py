import itertools

import numpy as np
import pyarrow.parquet as pq
import pytest

from data_prep.encoding import vocabulary
from data_prep.encoding.prepared_vocabulary import open_encoder
from data_prep.encoding.vocabulary import VocabularyWriter, ids_dtype, make_vocabulary, order_values
from data_prep.kernels.parsed import Chunk
from data_prep.options.columns import CategoricalColumn
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import read_schema
from tests.prepared_folders import ALL_TRAINED


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


# "user" + "_id7" is "user_id" + "7", and both "a*b" with "c" and "a" with "b*c" would be "a*b*c".
VALUES = ["7", "_id7", "id_7", "id=7", "_id_7", "a", "a*b", "b*c", "c", "a\\", "\\*c", "*", "\\", "user", "user_id"]


@pytest.mark.parametrize("vocabulary", ["counted", "hash"])
@pytest.mark.parametrize("crosses", [(), (("user", "user_id"), ("user_id", "user_id_"))])
def test_joined_texts_do_not_collide(tmp_path, vocabulary, crosses):
    pairs = list(itertools.product(VALUES, repeat=2))
    lines = [f"{number % 2},{user},{user_id},{user}\n" for number, (user, user_id) in enumerate(pairs)]
    (tmp_path / "log.csv").write_text("".join(lines))
    columns = {"click": "label", "user": "string", "user_id": "string", "user_id_": "string"}
    hashed = {"vocabulary": "hash", "oov_buckets": 2**30} if vocabulary == "hash" else {}
    options = PrepareOptions(
        data=LogFormat(columns, ","), min_count=1, workers=1, crosses=crosses, **ALL_TRAINED, **hashed
    )
    prepare(tmp_path / "log.csv", tmp_path / "out", options)
    chunk = Chunk(0, len(lines), "".join(lines).encode())
    ids = open_encoder(tmp_path / "out", with_labels=True).encode(chunk)[1].ids
    own = {*itertools.product(("user", "user_id", "user_id_"), VALUES)}
    assert len({*ids[:, :3].ravel().tolist()}) == len(own)
    for place in range(3, ids.shape[1]):
        assert len({*ids[:, place].tolist()}) == len(pairs)
    assert len({field.name for field in read_schema(tmp_path / "out").categorical}) == ids.shape[1]
