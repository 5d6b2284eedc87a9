from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.encoding.from_values import lines_to_chunk, mappings_to_chunk
from data_prep.encoding.prepared_vocabulary import open_encoder
from data_prep.encoding.rows_to_score import arrow_table, table_to_chunk
from data_prep.options.kinds import FIELD_KINDS, KINDS
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from tests.data_prep.kernels.test_parse import check
from tests.prepared_folders import ALL_TRAINED

FLAGS = LogFormat({"label": "label", "flag": "boolean", "site": "string"}, ",")
VALUES = [True, False, None, False, True]  # of the column flag
WORDS = ["yes", "F", "", "0", "TRUE"]
OPTIONS = PrepareOptions(data=FLAGS, min_count=1, workers=1, **ALL_TRAINED)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flags")
    lines = [f"{number % 2},{word},a\n" for number, word in enumerate(WORDS)]
    (folder / "log.csv").write_text("".join(lines))
    prepare(folder / "log.csv", folder / "prepared", OPTIONS)
    return folder / "prepared"


@pytest.mark.parametrize("kind", [kind for kind in FIELD_KINDS if KINDS[kind].role == "categorical"])
def test_a_generated_cell_is_good(kind):
    cells = [KINDS[kind].made_up(number) for number in (0, 1, 2**31 - 1, 2**32 - 1)]
    assert {*check([f"1\t{cell}".encode() for cell in cells], LogFormat({"label": "label", "x": kind}))} == {""}


def of_type(of_type):
    return pa.table({"flag": pa.array(VALUES).cast(of_type), "site": ["a"] * 5})


def of_values(true, false):
    return [{"flag": None if value is None else true if value else false, "site": "a"} for value in VALUES]


@pytest.mark.parametrize(
    "rows",
    [
        [f"{word},a" for word in WORDS],
        of_values(True, False),
        of_values(np.True_, np.False_),
        of_values(1, 0),
        of_values(1.0, 0.0),
        of_values(Decimal("1.0"), Decimal(0)),
        of_values("On", "OFF"),
        *map(of_type, [pa.bool_(), pa.int8(), pa.uint64(), pa.float32(), pa.string()]),
        of_type(pa.bool_()).set_column(0, "flag", pa.array(VALUES).dictionary_encode()),
        pd.DataFrame(of_values(True, False)),
        pd.DataFrame(of_values("y", "n")).astype({"flag": "category"}),
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_a_boolean_is_the_same_value_in_every_form_of_row(prepared, tmp_path, rows):
    encoder = open_encoder(prepared)
    if isinstance(rows, list):
        chunk = (lines_to_chunk if isinstance(rows[0], str) else mappings_to_chunk)(rows, FLAGS)
    else:
        table = arrow_table(rows, FLAGS)
        chunk = table_to_chunk(table, FLAGS)
        pq.write_table(table.append_column("label", [["0", "1", "0", "1", "0"]]), tmp_path / "log.parquet")
        assert prepare(tmp_path / "log.parquet", tmp_path / "prepared", OPTIONS).rejected_rows == 0
        ours, theirs = (pq.read_table(folder / "vocabulary.parquet") for folder in (prepared, tmp_path / "prepared"))
        assert ours == theirs
    parsed, encoded = encoder.encode(chunk)
    _, expected = encoder.encode(lines_to_chunk([f"{word},a" for word in WORDS], FLAGS))
    assert not parsed.rejects_tsv
    assert encoded.ids.tolist() == expected.ids.tolist()
    assert len({*encoded.ids[:, 0].tolist()}) == 3


@pytest.mark.parametrize("value", ["maybe", 2, -1, 0.5, "tru"])
def test_any_other_value_of_a_boolean_is_rejected(prepared, value):
    chunk = mappings_to_chunk([{"flag": value, "site": "a"}], FLAGS)
    assert open_encoder(prepared).encode(chunk)[0].rejects_by_reason == {"categorical": 1}
