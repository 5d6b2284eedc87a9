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

from app.scoring.batch_prediction import predict
from app.scoring.predictor import Predictor, ScoringModel
from app.serving.decoding import decode_tensors
from app.serving.forms import FORMS
from app.serving.options import Limits
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare

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


def chunk_scores(predictor, chunk):
    scored = predictor.score_chunk(chunk)
    assert not scored.rejected, scored.rejected
    return (1 / (1 + np.exp(-scored.logits.astype(np.float64)))).astype(np.float32)


def serve(predictor, content_type, body):
    return chunk_scores(predictor, FORMS[content_type].to_chunk(body, predictor.log_format, Limits()))


def arrow_stream(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


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
    return chunk_scores(predictor, decode_tensors(length, predictor.log_format, Limits(), head + binary)[0])


def score_file(predictor, path, write):
    write(path)
    output = path.with_name("scores.parquet")
    assert predict(predictor.folder, [str(path)], str(output), num_workers=1)["bad_lines"] == 0
    return pq.read_table(output)["score"].to_numpy()


def write_json_lines(path):
    """Write the rows as pandas does."""
    frame_of_floats().to_json(path, orient="records", lines=True)


def with_nan(table):
    """Return the table with NaN in place of nulls."""
    for place, name in enumerate(("item", "code", "count")):
        table = table.set_column(place, name, pa.array(frame_of_floats()[name].to_numpy()))
    return table


TABLE = pa.Table.from_pandas(frame_of_floats(), preserve_index=False)
FORMS_OF_ROWS = {
    "dicts": lambda predictor, path: predictor.score(frame_of_floats().to_dict("records")),
    "frame": lambda predictor, path: predictor.score(frame_of_floats()),
    "frame of float32": lambda predictor, path: predictor.score(
        frame_of_floats().astype({"item": np.float32, "code": np.float32, "count": np.float32})
    ),
    "MLflow": lambda predictor, path: ScoringModel(predictor).predict(frame_of_floats()),
    "Arrow": lambda predictor, path: predictor.score(TABLE),
    "Arrow with NaN": lambda predictor, path: predictor.score(with_nan(TABLE)),
    "Arrow stream": lambda predictor, path: serve(
        predictor, "application/vnd.apache.arrow.stream", arrow_stream(TABLE)
    ),
    "JSON": lambda predictor, path: serve(
        predictor,
        "application/json",
        f'{{"rows": {frame_of_floats().to_json(orient="records")}}}'.encode(),
    ),
    "CSV": lambda predictor, path: serve(
        predictor, "text/csv", pd.DataFrame(texts_of_floats()).to_csv(index=False).encode()
    ),
    "texts": lambda predictor, path: predictor.score(texts_of_floats()),
    "V2": lambda predictor, path: tensors(predictor, is_binary=False),
    "V2 with binary data": lambda predictor, path: tensors(predictor, is_binary=True),
    "Parquet": lambda predictor, path: score_file(predictor, path / "log.parquet", lambda p: pq.write_table(TABLE, p)),
    "Feather": lambda predictor, path: score_file(
        predictor, path / "log.feather", lambda p: feather.write_feather(TABLE, p)
    ),
    "JSON lines": lambda predictor, path: score_file(predictor, path / "log.jsonl", write_json_lines),
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
