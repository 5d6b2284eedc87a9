"""A table in memory becomes the bytes of the same table in a Parquet file."""

import datetime
import decimal
import json
import logging
import random

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from common.files import lock_folder
from data_prep.encoding.rows_to_score import arrow_table
from data_prep.execution.prepared_folder import OtherRun, partial_folder
from data_prep.options.log_format import ListForm, LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline import prepare as pipeline
from data_prep.pipeline.prepare import prepare, prepare_table

DAY = datetime.datetime(2025, 3, 1, 17, 30, 5)
# By type of a pandas column: the kinds of which it may be, and its cells by numbers 0 to 29; of 29 missing, if it can.
COLUMNS = {
    "text": (("string", "ignored", "id"), lambda n: [None if i == 29 else f"Zürich, {i % 7}" for i in n]),
    "category": (("string", "id"), lambda n: pd.Categorical([None if i == 29 else f"c{i % 5}" for i in n])),
    "boolean": (("string", "integer"), lambda n: [i % 3 == 0 for i in n]),
    "whole": (("integer", "float", "string", "hex32"), list),
    "Int64": (("integer", "string"), lambda n: pd.array([None if i == 29 else i - 3 for i in n], "Int64")),
    "float": (("float", "string"), lambda n: [np.nan if i == 29 else i / 8 for i in n]),
    "float32": (("float",), lambda n: np.array([np.nan if i == 29 else i / 7 for i in n], np.float32)),
    "hex": (("hex32", "string"), lambda n: [f"{i * 2654435761 % 2**32:08x}" for i in n]),
    "decimal": (("float", "string"), lambda n: [decimal.Decimal(i) / 4 for i in n]),
    "times": (("timestamp",), lambda n: [DAY - datetime.timedelta(hours=i) for i in n]),
    "seconds": (("timestamp",), lambda n: np.array([DAY - datetime.timedelta(hours=i) for i in n], "datetime64[s]")),
    "zoned": (("timestamp",), lambda n: pd.to_datetime([DAY - datetime.timedelta(hours=i) for i in n], utc=True)),
    "date": (("timestamp", "string"), lambda n: [(DAY - datetime.timedelta(days=i)).date() for i in n]),
    "list": (("list",), lambda n: [None if i == 29 else [f"v{j}" for j in range(i % 4)] for i in n]),
}


def drawn_frame(seed, num_rows=200):
    """A table of columns of drawn types under an index in no order, and the format that describes it."""
    random_ = random.Random(seed)
    types = random_.sample(sorted(COLUMNS), random_.randint(3, 9))
    kinds = {name: random_.choice(COLUMNS[name][0]) for name in types}
    if not set(kinds.values()) & {"string", "hex32", "list", "timestamp"}:
        types, kinds = [*types, "text"], {**kinds, "text": "string"}
    cells = {name: COLUMNS[name][1]([random_.randrange(30) for _ in range(num_rows)]) for name in types}
    frame = pd.DataFrame({**cells, "label": [random_.random() < 0.3 for _ in range(num_rows)]})
    frame.index = random_.sample(range(num_rows), num_rows)
    lists = {name: ListForm() for name, kind in kinds.items() if kind == "list"}
    timestamps = {name: "milliseconds" for name, kind in kinds.items() if kind == "timestamp"}
    return frame, LogFormat({**kinds, "label": "label"}, lists=lists, timestamps=timestamps)


def options_of(log_format):
    return PrepareOptions(data=log_format, min_count=1, workers=1, shuffle_window_rows=100)


def contents(folder):
    """The bytes of each file, and the schema without the name and the checksum of the log, and its own of them."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    schema = json.loads(files.pop("schema.json"))
    for name in ("name", "size_bytes", "checksum", "files"):
        del schema["source"][name]
    del schema["checksum"]
    return files, schema


@pytest.mark.parametrize("seed", range(5))
def test_a_table_is_prepared_to_the_bytes_of_its_parquet_file(tmp_path, seed):
    frame, log_format = drawn_frame(seed)
    frame.to_parquet(tmp_path / "frame.parquet")
    options = options_of(log_format)
    prepare(tmp_path / "frame.parquet", tmp_path / "of_file", options)
    prepare_table(arrow_table(frame), tmp_path / "of_table", options)
    assert contents(tmp_path / "of_table") == contents(tmp_path / "of_file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frame.parquet", "of_file", "of_table"]


def test_a_table_of_polars_is_prepared_as_that_of_pandas(tmp_path):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = pd.DataFrame({name: COLUMNS[name][1](list(range(29)) * 10) for name in ("text", "whole", "times", "list")})
    frame["label"] = frame["whole"] % 3 == 0
    kinds = {"text": "string", "whole": "integer", "times": "timestamp", "list": "list", "label": "label"}
    options = options_of(LogFormat(kinds, timestamps={"times": "milliseconds"}))
    prepare_table(arrow_table(frame), tmp_path / "pandas", options)
    prepare_table(arrow_table(polars.from_pandas(frame)), tmp_path / "polars", options)
    assert contents(tmp_path / "polars") == contents(tmp_path / "pandas")


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """A table whose preparation was interrupted before its rows were written, and its options."""
    frame, log_format = drawn_frame(1)
    table, options = arrow_table(frame), options_of(log_format)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_splits", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare_table(table, tmp_path / "out", options)
    assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]
    return table, options


def test_the_same_call_resumes_and_keeps_the_first_pass(tmp_path, interrupted, caplog):
    table, options = interrupted
    caplog.set_level(logging.INFO)
    prepare_table(table, tmp_path / "out", options)
    assert "resuming" in caplog.text
    prepare_table(table, tmp_path / "whole", options)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_another_table_of_the_same_size_is_not_resumed(tmp_path, interrupted):
    table, options = interrupted
    labels = table["label"].to_pylist()
    other = table.set_column(table.schema.names.index("label"), "label", pa.array([labels[-1], *labels[:-1]]))
    with pytest.raises(OtherRun, match="unfinished and of another command: input was"):
        prepare_table(other, tmp_path / "out", options)
    (tmp_path / f"out.table-{'0' * 16}").mkdir()  # of a run that was killed
    (tmp_path / "out.table-of-mine").mkdir()
    prepare_table(other, tmp_path / "out", options, restart=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.table-of-mine"]


def test_an_error_leaves_no_file(tmp_path):
    frame, log_format = drawn_frame(2)
    with pytest.raises(ValueError, match=r"the table lacks columns .*: label; found"):
        prepare_table(arrow_table(frame.drop(columns="label")), tmp_path / "out", options_of(log_format))
    with pytest.raises(ValueError, match=r"200 of 200 lines .* are bad"):
        prepare_table(arrow_table(frame.assign(label="maybe")), tmp_path / "out", options_of(log_format))
    assert list(tmp_path.iterdir()) == []


def test_the_file_stays_for_another_process_that_prepares_the_same(tmp_path):
    frame, log_format = drawn_frame(3)
    partial = partial_folder(tmp_path / "out")
    partial.mkdir()
    with lock_folder(partial), pytest.raises(ValueError, match="another process prepares"):
        prepare_table(arrow_table(frame), tmp_path / "out", options_of(log_format))
    (path,) = tmp_path.glob("out.table-*/table.parquet")
    assert path.stat().st_mtime_ns == 0
