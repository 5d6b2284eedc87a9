"""Whole numbers that arrive as floats, because one is missing, score as the whole numbers of the model's log.

pandas and Arrow turn a column of whole numbers into floats if a cell is missing. Its CSV and JSON then contain 7.0.
"""

import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from app.scoring.predictor import Predictor, ScoringModel
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from tests.app.scoring.ways_to_score import file_scores, served_scores, tensor_scores
from tests.request_bodies import arrow_stream

COLUMNS = {"click": "label", "item": "string", "code": "hex32", "count": "integer", "tags": "list"}
NUMBERS = [7, None, 0, 12, 7, 19, None, 3]


@pytest.fixture(scope="module", params=["whole", "with a point"])
def predictor(request, tmp_path_factory, make_bundle, make_state, tiny_config):
    """A model of a log that a program wrote with whole numbers, or pandas as floats beside missing cells."""
    folder = tmp_path_factory.mktemp("numbers")
    point = ".0" * (request.param == "with a point")
    lines = [f"{n % 2},{n % 20}{point},{n % 20:08x},{n % 20},{n % 20}{point}|1{point}" for n in range(200)]
    (folder / "log.csv").write_text("\n".join([*lines, "1,,,,"]) + "\n")
    options = PrepareOptions(data=LogFormat(COLUMNS, ","), min_count=1, workers=1, integer_buckets=True)
    schema, config = prepare(folder / "log.csv", folder / "prepared", options), tiny_config()
    return Predictor.open(make_bundle(folder / "prepared", config, make_state(schema, config)))


def frame_of_floats():
    numbers = pd.Series(NUMBERS)
    assert numbers.dtype == np.float64
    tags = [[] if number is None else [float(number), 1.0] for number in NUMBERS]
    return pd.DataFrame({"item": numbers, "code": numbers, "count": numbers, "tags": tags})


def texts_of_floats():
    """Return the cells as pandas writes them to CSV. A hex cell is text, which no program turns into a float."""
    return [
        dict.fromkeys(("item", "code", "count", "tags"), "")
        if number is None
        else {"item": f"{number}.0", "code": f"{number:08x}", "count": f"{number}.0", "tags": f"{number}.0|1.0"}
        for number in NUMBERS
    ]


def tensors(predictor, is_binary):
    """Return the scores of a V2 request, in which NaN or null stands for a missing number.

    A hex number must be a text there.
    """
    frame, inputs, binary = frame_of_floats(), [], b""
    for name in ("item", "count"):
        tensor = {"name": name, "shape": [len(NUMBERS)], "datatype": "FP64"}
        if is_binary:
            tensor["parameters"] = {"binary_data_size": 8 * len(NUMBERS)}
            binary += frame[name].to_numpy("<f8").tobytes()
        else:
            tensor["data"] = [None if math.isnan(value) else value for value in frame[name]]
        inputs.append(tensor)
    for name in ("code", "tags"):
        data = [row[name] for row in texts_of_floats()]
        inputs.append({"name": name, "shape": [len(NUMBERS)], "datatype": "BYTES", "data": data})
    head = json.dumps({"inputs": inputs}).encode()
    length = str(len(head)) if is_binary else None
    return tensor_scores(predictor, head + binary, length)


def score(rows):
    return lambda predictor, path: predictor.score(rows)


def serve(content_type, body):
    return lambda predictor, path: served_scores(predictor, content_type, body)


def read_file(name, write):
    def score_file(predictor, path):
        write(path / name)
        return file_scores(predictor.folder, path / name)

    return score_file


def with_nan(table):
    """Return the table with NaN in place of nulls."""
    for place, name in enumerate(("item", "code", "count")):
        table = table.set_column(place, name, pa.array(frame_of_floats()[name].to_numpy()))
    return table


FRAME = frame_of_floats()
TABLE = pa.Table.from_pandas(FRAME, preserve_index=False)
FORMS_OF_ROWS = {
    "dicts": score(FRAME.to_dict("records")),
    "frame": score(FRAME),
    "frame of float32": score(FRAME.astype(dict.fromkeys(("item", "code", "count"), np.float32))),
    "MLflow": lambda predictor, path: ScoringModel(predictor).predict(FRAME),
    "Arrow": score(TABLE),
    "Arrow with NaN": score(with_nan(TABLE)),
    "Arrow stream": serve("application/vnd.apache.arrow.stream", arrow_stream(TABLE)),
    "JSON": serve("application/json", f'{{"rows": {FRAME.to_json(orient="records")}}}'.encode()),
    "CSV": serve("text/csv", pd.DataFrame(texts_of_floats()).to_csv(index=False).encode()),
    "texts": score(texts_of_floats()),
    "V2": lambda predictor, path: tensors(predictor, is_binary=False),
    "V2 with binary data": lambda predictor, path: tensors(predictor, is_binary=True),
    "Parquet": read_file("log.parquet", lambda path: pq.write_table(TABLE, path)),
    "Feather": read_file("log.feather", lambda path: feather.write_feather(TABLE, path)),
    "JSON lines": read_file("log.jsonl", lambda path: FRAME.to_json(path, orient="records", lines=True)),
}


@pytest.mark.parametrize("form", FORMS_OF_ROWS)
def test_floats_are_the_whole_numbers(predictor, tmp_path, form):
    whole = [
        {"item": None, "code": None, "count": None, "tags": []}
        if number is None
        else {"item": number, "code": f"{number:08x}", "count": number, "tags": [str(number), "1"]}
        for number in NUMBERS
    ]
    expected = predictor.score(whole)
    assert len({*expected}) == len({*NUMBERS})
    assert np.array_equal(FORMS_OF_ROWS[form](predictor, tmp_path), expected)
