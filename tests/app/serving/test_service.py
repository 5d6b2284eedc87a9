"""The routes in process: every form of rows scores as the predictor does, and bad requests are refused by name."""

import asyncio
import contextlib
import io
import itertools
import json
import logging
import re
import resource
import struct
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from app.scoring.distribution import Distribution
from app.scoring.predictor import Predictor
from app.serving import observed
from app.serving.batching import (
    FREE_REFUSALS,
    LEAST_LATE,
    LEAST_QUEUE,
    MOST_DELAY,
    REFUSALS_A_SECOND,
    Refusals,
    pace_of,
    processor_ms,
)
from app.serving.forms import tensors
from app.serving.forms.form import RequestError
from app.serving.forms.tensors import HEADER_LENGTH
from tests.app.scoring.conftest import typed_bundle, typed_dataset  # noqa: F401
from tests.app.serving.conftest import Client, run_beside
from tests.request_bodies import arrow_stream

ARROW = "application/vnd.apache.arrow.stream"


def lines_of(table, label="0\t"):
    rows = table.to_pylist()
    return "".join(
        label + "\t".join("" if value is None else str(value) for value in row.values()) + "\n" for row in rows
    )


def json_tensor(name, values, datatype="BYTES"):
    return {"name": name, "shape": [len(values)], "datatype": datatype, "data": values}


def infer_of(table):
    kinds = {
        name: "BYTES" if pa.types.is_string(table.schema.field(name).type) else "FP64" for name in table.schema.names
    }
    return {"inputs": [json_tensor(name, table[name].to_pylist(), kind) for name, kind in kinds.items()]}


def binary_of(table):
    """A V2 request with binary data, and the length of its JSON."""
    inputs, data = [], b""
    for name in table.schema.names:
        values = table[name].to_pylist()
        if pa.types.is_string(table.schema.field(name).type):
            texts = [(value or "").encode() for value in values]
            kind, part = "BYTES", b"".join(struct.pack("<I", len(text)) + text for text in texts)
        else:
            kind, part = "FP64", np.array([np.nan if v is None else v for v in values], "<f8").tobytes()
        parameters = {"binary_data_size": len(part)}
        inputs.append({"name": name, "shape": [len(values), 1], "datatype": kind, "parameters": parameters})
        data += part
    head = json.dumps({"id": "7", "inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return head + data, len(head)


def binary_scores(response):
    return np.frombuffer(response.content[int(response.headers[HEADER_LENGTH]) :], "<f4").tolist()


def score(client, rows):
    return client.post("/v1/score", json={"rows": rows})


def error_of(response):
    assert 400 <= response.status_code < 500, response.text
    return response.json()["error"]


def test_every_form_of_rows_scores_as_the_predictor_does(client, golden, golden_scores):
    for label in ("0\t", "1\t", ""):
        answer = client.post("/v1/score", content=lines_of(golden, label), headers={"content-type": "text/plain"})
        assert answer.json()["scores"] == golden_scores
    for model in ("clicks", f"clicks/versions/{answer.json()['version']}"):
        path = f"/v2/models/{model}/infer"
        assert client.post(path, json=infer_of(golden)).json()["outputs"][0]["data"] == golden_scores
        body, length = binary_of(golden)
        answer = client.post(path, content=body, headers={HEADER_LENGTH: str(length)})
        assert binary_scores(answer) == golden_scores
        assert json.loads(answer.content[: int(answer.headers[HEADER_LENGTH])])["id"] == "7"


def test_logits_are_those_of_the_predictor_in_every_form_of_rows(client, golden, golden_scores, golden_logits):
    for body, form in (
        (json.dumps({"rows": golden.to_pylist()}), "application/json"),
        (lines_of(golden), "text/plain"),
        (arrow_stream(golden), ARROW),
    ):
        answer = client.post("/v1/score?logits=true", content=body, headers={"content-type": form}).json()
        assert (answer["logits"], answer["scores"]) == (golden_logits, golden_scores)
        assert "logits" not in client.post("/v1/score", content=body, headers={"content-type": form}).json()
    assert "logits='yes'" in error_of(client.post("/v1/score?logits=yes", json={"rows": golden.to_pylist()}))


@pytest.mark.parametrize("names", [["score"], ["logit"], ["score", "logit"], ["logit", "score"]])
@pytest.mark.parametrize("binary", list(itertools.product([False, True], repeat=2)))
def test_outputs_are_as_a_v2_request_asks(client, golden, golden_scores, golden_logits, names, binary):
    """Ask for each as numbers of JSON or as binary data. They come in the order of the request."""
    of_model = {"score": golden_scores, "logit": golden_logits}
    wanted = [{"name": n, "parameters": {"binary_data": b}} for n, b in zip(names, binary, strict=False)]
    answer = client.post("/v2/models/clicks/infer", json={**infer_of(golden), "outputs": wanted})
    length = int(answer.headers.get(HEADER_LENGTH, len(answer.content)))
    place = length
    outputs = json.loads(answer.content[:length])["outputs"]
    assert [output["name"] for output in outputs] == names
    for output, is_binary in zip(outputs, binary, strict=False):
        found = output.get("data")
        if is_binary:
            end = place + output["parameters"]["binary_data_size"]
            found, place = np.frombuffer(answer.content[place:end], "<f4").tolist(), end
        assert found == of_model[output["name"]]
    assert place == len(answer.content)


def test_rows_of_text_and_quotes_score_as_the_predictor_does(make_service, text_bundle):
    service = make_service(text_bundle)
    client, predictor, row = Client(service), service.generations.current, service.generations.current.example
    quoted = row | dict.fromkeys(predictor.log_format.text_fields, 'a "b", c')
    rows = [row, quoted, dict.fromkeys(row)]
    expected = predictor.score(rows).tolist()
    assert score(client, rows).json()["scores"] == expected
    texts = {name: [value and str(value) for value in (row[name] for row in rows)] for name in row}
    request = {"inputs": [json_tensor(name, values) for name, values in texts.items()]}
    assert client.post("/v2/models/clicks/infer", json=request).json()["outputs"][0]["data"] == expected


def test_every_answer_names_version_and_generation(client, predictor):
    for response in (client.get("/v2/health/live"), score(client, [{}]), client.get("/v1/status"), client.get("/")):
        assert response.headers["x-model-version"] == predictor.version.partition(":")[2]
        assert response.headers["x-model-generation"] == "0"


def test_the_model_is_described(client, golden):
    found = client.get("/v2/models/clicks").json()
    assert [tensor["name"] for tensor in found["inputs"]] == golden.schema.names
    assert {tensor["datatype"] for tensor in found["inputs"]} == {"FP64", "BYTES"}
    assert found["outputs"] == [{"name": name, "datatype": "FP32", "shape": [-1]} for name in ("score", "logit")]
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/clicks/ready", "/v2", "/docs", "/openapi.json"):
        assert client.get(path).status_code == 200
    for path in ("/v2/models/other", "/v2/models/other/infer", "/v2/models/clicks/versions/0/ready", "/nothing"):
        assert "error" in client.get(path).json()
        assert client.get(path).status_code in (404, 405)


def test_a_row_is_explained(client, predictor, golden):
    (row,) = golden.slice(5, 1).to_pylist()
    found = client.post("/v1/explain", json={"rows": [row]}).json()
    assert [(part["field"], part["change"]) for part in found["fields"]] == [
        (effect.field, effect.change) for effect in predictor.explain(row)
    ]
    assert found["score"] == predictor.score([row]).tolist()[0]
    assert client.post("/v1/explain", json=row).json() == found
    assert error_of(client.post("/v1/explain", json={"rows": [row, row]})) == "expected one row, found 2"
    assert "'C1'" in error_of(client.post("/v1/explain", json={"rows": [{**row, "C1": "zz"}]}))
    for path, form in itertools.product(("/v1/score", "/v1/explain"), ("instances", "inputs")):
        assert '{"rows": [{column: value …} …]}' in error_of(client.post(path, json={form: [row]}))


def test_an_explained_row_is_none_of_those_that_are_served(make_service, tiny_bundle, golden):
    service = make_service(tiny_bundle)
    client = Client(service)

    def counted():
        service.observed.count()
        return service.observed.status()

    score(client, golden.to_pylist())
    before = counted()
    example = client.get("/v1/explain").json()
    assert counted()["samples"] == before["samples"]
    assert client.post("/v1/explain", json={"rows": [service.generations.current.example]}).json() == example
    after = counted()
    assert after["drift"] == before["drift"]
    assert {sample[1].get("route") for sample in after["samples"] if sample not in before["samples"]} == {"/v1/explain"}


def test_drift_is_reported_once_rows_suffice(make_service, tiny_bundle, predictor, golden, monkeypatch):
    held_out = Distribution(predictor.schema)
    held_out.values[:, 0] = held_out.numbers[:, 0] = 10**6
    monkeypatch.setattr(observed, "held_out_rows", lambda _: held_out)
    client = Client(make_service(tiny_bundle))
    for rows, total in ((golden.slice(0, 1), 1), (pa.concat_tables([golden] * 7), 1 + 7 * len(golden))):
        score(client, rows.to_pylist())
        text = client.get("/metrics").text
        assert f"wide_deep_drift_rows {total}.0\n" in text
        assert ("wide_deep_psi{" in text) == (total > 660), total
        assert {field["psi"] is not None for field in client.get("/v1/status").json()["drift"]["fields"]} == {
            total > 660
        }


def test_the_drift_of_a_vector_is_a_metric(make_service, typed_bundle, monkeypatch):  # noqa: F811
    predictor = Predictor.open(typed_bundle)
    monkeypatch.setattr(observed, "held_out_rows", lambda _: Distribution(predictor.schema))
    client = Client(make_service(typed_bundle))
    blank = dict.fromkeys(name for name, _ in predictor.log_format.fields)
    field = predictor.schema.vectors[0]
    far = [mean + 2 * deviation for mean, deviation in zip(field.mean, field.deviation, strict=True)]
    score(client, [blank | {"item": far}, blank | {"item": far}, blank | {"item": field.mean}, blank])
    metrics = dict(re.findall(r"wide_deep_(distance|missing)\{field=\"item\"\} (\S+)", client.get("/metrics").text))
    assert float(metrics["distance"]) == pytest.approx(4 / 3, abs=1e-6)
    assert metrics["missing"] == "0.25"


def test_requests_wait_no_more_once_the_service_is_idle(make_service, tiny_bundle):
    service = make_service(tiny_bundle)
    service.observed.request("/v1/score", 200, 0.001, num_waiting=3)
    service.refresh()
    assert ["queue", {}, 0.0] in service.observed.status()["samples"]


def test_requests_that_come_together_are_scored_together(make_service, tiny_bundle, golden, golden_scores):
    service = make_service(tiny_bundle, max_delay_ms=200, max_batch=len(golden))

    rows = [*golden.to_pylist()[:-1], {**golden.to_pylist()[0], "I1": "1.5e"}]

    async def send(client):
        return await asyncio.gather(*(client.post("/v1/score", json={"rows": [row]}) for row in rows))

    *answers, refused = run_beside(service, send)
    assert [answer.json()["scores"][0] for answer in answers] == golden_scores[:-1]
    assert "row 0" in error_of(refused)
    batches = {
        labels["le"]: value
        for name, labels, value in service.observed.status()["samples"]
        if "batch" in name and labels
    }
    assert batches["32.0"] <= 1


def wrong(**changes):
    return lambda row: json.dumps({"rows": [row, {**row, **changes}]})


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (wrong(I1="x"), ("row 1", "I1")),
        (wrong(I1=1.5), ("row 1", "I1")),
        (wrong(I1=2**70), ("row 1", "I1")),
        (wrong(I1=[1]), ("row 1", "I1")),
        (wrong(C1="not hex"), ("row 1", "C1")),
        (wrong(C1="\ud800"), ("body",)),
        (wrong(C1="a\tb"), ("row 1", "C1")),
        (wrong(C1={"a": 1}), ("row 1", "C1")),
        (wrong(C1=2**40), ("row 1", "C1")),
        (lambda row: json.dumps({"rows": [{k: v for k, v in row.items() if k != "C2"}]}), ("row 0", "C2")),
        (lambda row: json.dumps({"rows": [row]}).replace("null", "NaN"), ("JSON",)),
        (lambda row: "[" * 100_000, ("JSON",)),
        (lambda row: '{"rows": [' + '{"C1":' * 100_000, ("JSON",)),
        (lambda row: '{"rows": []}', ("no rows",)),
        (lambda row: '{"rows": [1]}', ("rows[0]",)),
        (lambda row: "{}", ("rows",)),
        (lambda row: "", ("JSON",)),
    ],
)
def test_a_wrong_row_is_named(client, golden, body, named):
    message = error_of(client.post("/v1/score", content=body(dict(golden.to_pylist()[0]))))
    assert all(word in message for word in named), message
    assert len(message) <= 500


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda r: r["inputs"].pop(), ("missing",)),
        (lambda r: r["inputs"].append(r["inputs"][0]), ("twice",)),
        (lambda r: r["inputs"][0].update(name="other"), ("other",)),
        (lambda r: r["inputs"][0].update(datatype="FP8"), ("I1", "FP8")),
        (lambda r: r["inputs"][-1].update(datatype="FP64"), ("C", "FP64", "hex32")),
        (lambda r: r["inputs"][-1].update(datatype="UINT64"), ("C", "UINT64", "hex32")),
        (lambda r: r["inputs"][1].update(shape=[3]), ("I2", "shape")),
        (lambda r: r["inputs"][1].update(shape=[2, 2]), ("I2", "shape")),
        (lambda r: r["inputs"][1].update(shape=[-1]), ("I2", "shape")),
        (lambda r: r["inputs"][1].update(shape=[2**62]), ("I2", "shape")),
        (lambda r: [tensor.update(shape=[2**62]) for tensor in r["inputs"]], ("rows", "at most")),
        (lambda r: r["inputs"][1].update(data=[1, "x"]), ("row 1", "I2")),
        (lambda r: r["inputs"][1].update(data=[1, 2.5]), ("row 1", "I2")),
        (lambda r: r["inputs"][1].update(data=[[1], [[2]]]), ("row 1", "I2")),
        (lambda r: r["inputs"][1].update(parameters={"binary_data_size": 16}), ("I2", "binary_data_size")),
        (lambda r: r["inputs"][-1].update(data=["zz", None]), ("row 0", "C")),
        (lambda r: r.update(outputs=[{"name": "other"}]), ("other",)),
        (lambda r: r.update(outputs=[{"name": "score", "parameters": {"classification": 1}}]), ("classification",)),
        (lambda r: r.update(outputs=[{"name": "score", "parameters": {"shared_memory_region": "a"}}]), ("region",)),
        (lambda r: r.update(outputs=[{"name": "score", "parameters": {"binary_data": "no"}}]), ("binary_data", "no")),
        (lambda r: r.update(parameters={"sequence_id": 1}), ("sequence_id",)),
        (lambda r: r.update(parameters={"binary_data_output": None}), ("binary_data_output",)),
        (lambda r: r.update(outputs=[{"name": "logit"}, {"name": "logit"}]), ("logit", "once")),
    ],
)  # fmt: skip
def test_a_wrong_tensor_is_named(client, golden, change, named):
    request = infer_of(golden.slice(0, 2))
    change(request)
    message = error_of(client.post("/v2/models/clicks/infer", json=request))
    assert all(word in message for word in named), message


@pytest.mark.parametrize("form", ["text/plain", ARROW, "application/octet-stream", "text/html; charset=x"])
def test_a_body_of_another_form_is_refused(client, form):
    assert error_of(client.post("/v1/score", content=b"\x00\x01 no rows\n" * 3, headers={"content-type": form}))


@pytest.mark.parametrize("length", ["x", "-1", "999999", "²", "9" * 30, ""])
def test_a_wrong_length_of_the_json_is_refused(client, golden, length):
    body, _ = binary_of(golden)
    headers = {HEADER_LENGTH: length.encode("utf-8")}
    assert HEADER_LENGTH in error_of(client.post("/v2/models/clicks/infer", content=body, headers=headers))


@given(data=st.data())
def test_hostile_lines_score_as_the_predictor_does_or_are_refused(client, predictor, golden, data):
    good = lines_of(golden.slice(0, 3)).splitlines()
    cell = st.sampled_from(["", "1", "-1", "68fd1e64", "é", "\x00", "\r", "\x1f", '"', "9" * 30, "\t"])
    lines = data.draw(
        st.lists(st.one_of(st.sampled_from(good), st.lists(cell, max_size=45).map("\t".join)), min_size=1)
    )
    body = "\n".join(lines).encode()
    answer = client.post("/v1/score", content=body, headers={"content-type": "text/plain"})
    try:
        expected = predictor.score(body.removesuffix(b"\n").split(b"\n")).tolist()
    except ValueError:
        assert answer.status_code == 400
    else:
        assert answer.json()["scores"] == expected


@pytest.mark.parametrize("form", ["binary tensors", "Arrow"])
@given(place=st.integers(0, 10**6), value=st.integers(0, 255), cut=st.integers(0, 40))
def test_a_changed_body_is_scored_or_refused(client, golden, form, place, value, cut):
    if form == "Arrow":
        address, body, headers = "/v1/score", arrow_stream(golden.slice(0, 4)), {"content-type": ARROW}
    else:
        body, length = binary_of(golden.slice(0, 4))
        address, headers = "/v2/models/clicks/infer", {HEADER_LENGTH: str(length)}
    changed = bytearray(body)
    changed[place % len(changed)] = value
    changed = bytes(changed[: len(changed) - cut])
    answer = client.post(address, content=changed, headers=headers)
    assert answer.status_code in ((200, 400, 413) if form == "Arrow" else (200, 400)), answer.text


MANY = 2 * 10**9
CODES = pa.array(np.zeros(10_000, np.int8))
ONE = pa.array(["0" * 2**20], pa.string_view())
_, PLACES, LONG = ONE.buffers()  # cells that share a text
VIEWS = pa.Array.from_buffers(pa.string_view(), 10_000, [None, pa.py_buffer(PLACES[:16].to_pybytes() * 10_000), LONG])


@pytest.mark.parametrize(
    ("cells", "compression", "copies", "named"),
    [
        (pa.nulls(MANY), None, 1, "2,000,000,000 rows"),
        (pa.nulls(MANY), "zstd", 1, "2,000,000,000 rows"),
        (pa.RunEndEncodedArray.from_arrays(pa.array([MANY], pa.int32()), ["1"]), None, 1, "2,000,000,000 rows"),
        (pa.nulls(6000), None, 2, "12,000 rows"),
        (pa.array(["0" * 2**22]), "zstd", 1, "bytes"),
        (pa.DictionaryArray.from_arrays(CODES, ["0" * 2**20]), None, 1, "bytes"),
        (VIEWS, None, 1, "bytes"),
        (pa.DictionaryArray.from_arrays(CODES, ONE), None, 1, "bytes"),
        (pa.DictionaryArray.from_arrays(CODES[:9], VIEWS[:20]), None, 1, "bytes"),
        (pa.ListArray.from_arrays(pa.array([0, MANY], pa.int32()), pa.nulls(MANY)), None, 1, "bytes"),
        (pa.FixedSizeListArray.from_arrays(pa.nulls(MANY), MANY), None, 1, "bytes"),
        (pa.ListArray.from_arrays([0, 10_000], pa.DictionaryArray.from_arrays(CODES, ["0" * 2**20])), None, 1, "bytes"),
    ],
)
def test_bodies_that_claim_more_than_they_have_are_refused_before_it_is_made(
    client, golden, cells, compression, copies, named
):
    batch = pa.record_batch([cells] * len(golden.schema.names), golden.schema.names)
    body = arrow_stream(pa.Table.from_batches([batch] * copies), compression)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = client.post("/v1/score", content=body, headers={"content-type": ARROW})
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (answer.status_code, named in error_of(answer), "at most" in error_of(answer)) == (413, True, True)
    assert grown < 200 << 10


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_arrow_streams_score_as_others(client, golden, golden_scores, compression):
    answer = client.post("/v1/score", content=arrow_stream(golden, compression), headers={"content-type": ARROW})
    assert answer.json()["scores"] == golden_scores


def test_compression_outside_of_the_format_is_refused(client, golden):
    sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, golden.schema, options=options) as writer:
        writer.write_batch(golden.to_batches()[0], {"ARROW:experimental_compression": "zstd"})
    answer = client.post("/v1/score", content=sink.getvalue().to_pybytes(), headers={"content-type": ARROW})
    assert "Arrow 0.17" in error_of(answer)


def test_dictionaries_of_numbers_and_texts_score_as_plain_columns(client, golden, golden_scores):
    for chunked in (golden, pa.concat_tables([golden.slice(0, 30), golden.slice(30)])):
        coded = pa.table({name: chunked[name].dictionary_encode() for name in golden.schema.names})
        answer = client.post("/v1/score", content=arrow_stream(coded), headers={"content-type": ARROW})
        assert answer.json().get("scores") == golden_scores, answer.text


TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view(), pa.binary_view()]


@pytest.mark.parametrize("of_type", TEXTS, ids=str)
@pytest.mark.parametrize("is_coded", [False, True])
def test_texts_of_every_arrow_type_score_as_strings(client, predictor, golden, golden_scores, of_type, is_coded):
    def cast(cells):
        if not pa.types.is_string(cells.type):
            return cells
        cells = cells.combine_chunks()
        if not is_coded:
            return cells.cast(of_type)
        coded = cells.dictionary_encode()
        return pa.DictionaryArray.from_arrays(coded.indices, coded.dictionary.cast(of_type))

    table = pa.table({name: cast(golden[name]) for name in golden.schema.names})
    assert predictor.score(table.slice(7)).tolist() == golden_scores[7:]
    answer = client.post("/v1/score", content=arrow_stream(table), headers={"content-type": ARROW})
    assert answer.json().get("scores") == golden_scores, answer.text


def test_streams_of_polars_score_as_its_tables(client, golden, golden_scores):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.from_arrow(golden)
    for columns in (frame, frame.with_columns(polars.col(polars.String).cast(polars.Categorical))):
        body = io.BytesIO()
        columns.write_ipc_stream(body, compat_level=polars.CompatLevel.newest())
        answer = client.post("/v1/score", content=body.getvalue(), headers={"content-type": ARROW})
        assert answer.json().get("scores") == golden_scores, answer.text


def test_parameters_may_be_null_and_hints_are_ignored(client, golden, golden_scores):
    request = infer_of(golden)
    request |= {"parameters": None, "outputs": [{"name": "score", "parameters": None}]}
    for tensor in request["inputs"]:
        tensor["parameters"] = None
    assert client.post("/v2/models/clicks/infer", json=request).json()["outputs"][0]["data"] == golden_scores
    request["parameters"] = {"priority": 1, "content_type": "pd"}
    assert client.post("/v2/models/clicks/infer", json=request).json()["outputs"][0]["data"] == golden_scores


def test_texts_of_any_length_arrive_as_they_are(make_service, text_bundle):
    service = make_service(text_bundle)
    client, predictor = Client(service), service.generations.current
    row = service.generations.current.example
    rows = [row | dict.fromkeys(predictor.log_format.text_fields, text) for text in ("", "é", "a" * 300, "b")]
    numeric = predictor.log_format.numeric_fields
    types = [pa.int64() if name in numeric else pa.string() for name in row]
    table = pa.table({name: pa.array([r[name] for r in rows], kind) for name, kind in zip(row, types, strict=True)})
    body, length = binary_of(table)
    answer = client.post("/v2/models/clicks/infer", content=body, headers={HEADER_LENGTH: str(length)})
    assert answer.status_code == 200, answer.text
    assert binary_scores(answer) == predictor.score(rows).tolist()


MARK = b"\xef\xbb\xbf"


def test_a_byte_order_mark_is_no_part_of_a_body(client, golden, golden_scores):
    rows = golden.to_pylist()
    lines = "".join("\t".join("" if v is None else str(v) for v in row.values()) + "\n" for row in rows)
    for form, text in (("application/json", json.dumps({"rows": rows})), ("text/plain", lines)):
        answer = client.post("/v1/score", content=MARK + text.encode(), headers={"content-type": form})
        assert answer.json()["scores"] == golden_scores


@pytest.mark.parametrize(
    ("headers", "status", "named"),
    [
        ({"content-type": "application/json; charset=UTF-8"}, 200, ""),
        ({"content-type": 'application/json; a=b; charset="utf-8"'}, 200, ""),
        ({"content-type": "application/json; charset=utf-16"}, 415, "charset='utf-16'"),
        ({"content-type": "application/json;Charset=latin-1"}, 415, "charset='latin-1'"),
        ({"transfer-encoding": "chunked"}, 200, ""),
        ({"transfer-encoding": "gzip, chunked"}, 501, "'gzip, chunked'"),
    ],
)
def test_a_body_in_another_coding_is_refused(client, golden, headers, status, named):
    """Its texts would be other values, and score as those."""
    answer = client.post("/v1/score", content=json.dumps({"rows": golden.to_pylist()}), headers=headers)
    assert answer.status_code == status
    assert named in answer.text


@pytest.mark.slow
def test_the_openapi_document_holds(client, service):
    """schemathesis draws requests by the document, right ones and wrong ones; every address has one that succeeds."""
    schemathesis.serializer.alias("text/csv", "text/plain")
    schema = schemathesis.openapi.from_asgi("/openapi.json", service)
    checks = [
        not_a_server_error,
        *schemathesis.checks.CHECKS.get_by_names(
            ["status_code_conformance", "content_type_conformance", "response_schema_conformance"]
        ),
    ]
    succeeded = set()

    def run(cases):
        @settings(max_examples=8, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(case=cases)
        def check(case):
            if case.call_and_validate(checks=checks).status_code == 200:
                succeeded.add(case.operation.path)

        check()

    for operation in (result.ok() for result in schema.get_all_operations()):
        run(st.one_of(operation.get_strategies_from_examples() or [operation.as_strategy()]))
        for mode in GenerationMode:
            with contextlib.suppress(Unsatisfiable):  # what has no body cannot be wrong
                run(operation.as_strategy(generation_mode=mode))
    document = client.get("/openapi.json").json()
    assert set(document["paths"]) - succeeded == {"/v1/rollback", "/v1/pin", "/v1/unpin"}  # of one bundle


def test_a_body_that_is_too_large_is_refused(make_service, tiny_bundle, golden):
    client = Client(make_service(tiny_bundle, max_body_mib=1, max_rows=99))

    async def endless():
        while True:
            yield b"x" * 100_000

    assert score(client, golden.to_pylist()).status_code == 413
    assert score(client, golden.to_pylist()[:99]).status_code == 200
    for body in (b"x" * (1 << 20 | 1), endless()):
        response = client.post("/v1/score", content=body)
        assert response.status_code == 413
        assert response.headers["connection"] == "close"


def statuses(service, rows, *more_headers):
    """Statuses of as many requests, sent one after another without waiting for answers."""

    async def send(client):
        sent = []
        for headers in more_headers:
            sent.append(asyncio.create_task(client.post("/v1/score", json={"rows": rows}, headers=headers)))
            await asyncio.sleep(0.005)
        return [(answer.status_code, answer.headers.get("retry-after")) for answer in await asyncio.gather(*sent)]

    return run_beside(service, send)


def test_a_full_queue_refuses_at_once_and_deadlines_hold(make_service, tiny_bundle, golden):
    service = make_service(tiny_bundle, max_queue=3, max_delay_ms=200)
    row = golden.to_pylist()[:1]
    found = statuses(service, row, {}, {"x-timeout-ms": "1"}, {}, {})
    assert found == [(200, None), (504, None), (200, None), (429, "1")]
    assert error_of(Client(service).post("/v1/score", json={"rows": row}, headers={"x-timeout-ms": "-1"}))


def test_a_pause_refuses_none_and_slow_scoring_does(make_service, tiny_bundle, golden):
    service = make_service(tiny_bundle, max_wait_ms=50, max_delay_ms=200)
    row = golden.to_pylist()[:1]
    assert statuses(service, row, *[{}] * 8) == [(200, None)] * 8
    service.batcher.small._request_ms = 10.1
    assert statuses(service, row, *[{}] * 7) == [(200, None)] * 5 + [(429, "1")] * 2
    service.batcher.small._request_ms = 1000.0
    assert statuses(service, row, *[{}] * 5) == [(200, None)] * LEAST_QUEUE + [(429, "1")]


def test_the_pace_is_of_the_time_that_the_process_has_had(make_service, tiny_bundle, golden, monkeypatch):
    service = make_service(tiny_bundle)
    row, score_chunk = golden.to_pylist()[:1], service.generations.current.score_chunk

    def had_by_another(chunk):
        time.sleep(0.03)
        return score_chunk(chunk)

    def had(chunk):
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            pass
        return score_chunk(chunk)

    for slowly, is_slow in ((had_by_another, False), (had, True)):
        monkeypatch.setattr(service.generations.current, "score_chunk", slowly)
        for _ in range(4):
            assert score(Client(service), row).status_code == 200
        assert (service.batcher.small._pace() > 25) == is_slow
        service.batcher.small._last.clear()


def test_the_pace_counts_less_than_a_tick_of_the_kernel():
    """A batch of a few rows takes less than 4 ms: by the system's counts of ticks, most took nothing."""
    assert len({processor_ms() for _ in range(1000)}) > 500


def test_the_pace_is_of_all_requests_and_of_no_pause():
    assert pace_of([(3.0, 1)]) == 3.0
    assert pace_of([(1.0, 1)] * 30 + [(0.2, 300)]) < 0.3  # many have come after a quiet time
    assert pace_of([(0.2, 8)] * 28 + [(9.0, 8)] * 3) == pytest.approx(0.2)  # three pauses
    assert pace_of([(0.05, 200), (1.0, 20)] * 15) > 0.1  # those that the second batch has read are in the first


def test_refusals_are_spaced_once_there_are_many():
    now = 100.0
    refusals = Refusals(lambda: now)
    delays = [refusals.delay() for _ in range(FREE_REFUSALS + 3)]
    assert delays[:FREE_REFUSALS] == [pytest.approx(0, abs=1e-9)] * FREE_REFUSALS
    assert delays[FREE_REFUSALS:] == [pytest.approx(number / REFUSALS_A_SECOND) for number in (1, 2, 3)]
    delays = [refusals.delay() for _ in range(5000)]
    late = delays[round(REFUSALS_A_SECOND * MOST_DELAY) :]
    assert max(delays) == pytest.approx(MOST_DELAY, abs=0.01) and min(late) == pytest.approx(LEAST_LATE, abs=0.01)
    assert max(np.histogram(late, bins=10)[0]) < 2 * len(late) / 10  # those that came together are given one by one
    now += MOST_DELAY + 1
    assert [refusals.delay() for _ in range(FREE_REFUSALS)] == [pytest.approx(0, abs=1e-9)] * FREE_REFUSALS


def test_large_requests_are_scored_one_at_a_time_beside_small_ones(make_service, tiny_bundle, golden, monkeypatch):
    service = make_service(tiny_bundle, max_batch=50)
    monkeypatch.setattr("app.serving.batching.LARGE_BODY", 1 << 15)
    predictor, running, most = service.generations.current, [], []
    expected, score_chunk = predictor.score(golden).tolist(), predictor.score_chunk

    def slowly(chunk):
        running.append(chunk.num_lines)
        most.append(sorted(running))
        time.sleep(0.1)
        running.remove(chunk.num_lines)
        return score_chunk(chunk)

    monkeypatch.setattr(predictor, "score_chunk", slowly)

    async def send(client):
        bodies = [{"rows": golden.to_pylist()[:size]} for size in (len(golden), 1, len(golden))]
        return await asyncio.gather(*(client.post("/v1/score", json=body) for body in bodies))

    for answer in run_beside(service, send):
        scores = answer.json()["scores"]
        assert scores == expected[: len(scores)]
    assert [1, len(golden)] in most
    assert all(sum(size > 50 for size in batch) <= 1 for batch in most)


def test_the_loop_refuses_and_answers_while_requests_are_scored(make_service, tiny_bundle, golden, monkeypatch):
    service = make_service(tiny_bundle, max_queue=1)
    predictor, rows = service.generations.current, golden.to_pylist()[:50]  # more than the loop itself scores
    score_chunk = predictor.score_chunk

    def slowly(chunk):
        time.sleep(0.5)
        return score_chunk(chunk)

    monkeypatch.setattr(predictor, "score_chunk", slowly)

    async def send(client):
        first = asyncio.create_task(client.post("/v1/score", json={"rows": rows}))
        await asyncio.sleep(0.1)
        small = await client.post("/v1/score", json={"rows": rows[:1]})
        live = await client.get("/v2/health/live")
        assert not first.done()
        return [answer.status_code for answer in (small, live, await first)]

    assert run_beside(service, send) == [429, 200, 200]


def test_a_model_that_fails_is_no_wrong_score(make_service, tiny_bundle, golden, monkeypatch):
    service = make_service(tiny_bundle)

    def fail(_):
        raise ValueError("block 3 is damaged")

    monkeypatch.setattr(service.generations.current, "score_chunk", fail)
    response = score(Client(service), golden.to_pylist())
    assert response.status_code == 503
    assert "retry-after" in response.headers


def test_a_request_whose_error_cannot_be_named_leaves_the_others_their_answers(
    make_service, tiny_bundle, golden, golden_scores, monkeypatch
):
    """All wait for one batch, which must answer each whatever fails."""
    service, rows = make_service(tiny_bundle, max_delay_ms=300), golden.to_pylist()[:3]

    def fail(*_):
        raise AssertionError

    monkeypatch.setattr("app.serving.batching.rejected_row", fail)

    async def send(client):
        bad = [{**rows[0], "C3": "no hex"}]
        return await asyncio.gather(*(client.post("/v1/score", json={"rows": each}) for each in (rows, bad, rows)))

    first, bad, last = run_beside(service, send)
    assert bad.status_code == 503
    assert first.json()["scores"] == last.json()["scores"] == golden_scores[:3]


@pytest.fixture
def access_log(service, capfd):
    """Reads the lines that the service has written since."""
    object.__setattr__(service.options, "logged_share", 1.0)
    yield lambda: list(map(json.loads, capfd.readouterr().out.splitlines()))
    object.__setattr__(service.options, "logged_share", 0.0)


def test_the_access_log_has_a_line_for_each_request(client, golden, access_log):
    before = datetime.now(UTC)
    answers = [score(client, golden.to_pylist()[:3]), client.get("/v2/health/live"), score(client, [{}])]
    lines = access_log()
    assert [line["request_id"] for line in lines] == [answer.headers["x-request-id"] for answer in answers]
    assert [[line[name] for name in ("method", "route", "status", "rows")] for line in lines] == [
        ["POST", "/v1/score", 200, 3],
        ["GET", "/v2/health/live", 200, None],
        ["POST", "/v1/score", 400, None],
    ]
    for line in lines:
        assert before - timedelta(seconds=1) < datetime.fromisoformat(line["time"]) < datetime.now(UTC)
        assert 0 < line["milliseconds"] < 10_000


def test_the_access_log_has_no_word_of_a_request(client, golden, caplog, access_log):
    (row,) = golden.slice(0, 1).to_pylist()
    secret = {"authorization": "secret", "user-agent": "secret", "x-request-id": "secret\tid"}
    with caplog.at_level(logging.DEBUG, "app.serving"):
        client.post("/v1/score?secret", json={"rows": [{"C1": "secret\nline"}]}, headers=secret)
        client.get("/v2/models/secret%0aline", headers=secret)
        client.post("/v1/explain", json={"rows": [row]}, headers=secret)
        client.get("/secret", headers=secret)
    lines = access_log()
    assert [line["route"] for line in lines] == ["/v1/score", "/v2/models/{model}", "/v1/explain", "other"]
    assert "secret" not in str(lines) + caplog.text
    assert not any(str(value) in str(lines) for value in row.values() if len(str(value)) > 6)


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-request-id": "a-1_b.c:d/e+f=@~"}, "a-1_b.c:d/e+f=@~"),
        ({"x-request-id": "a" * 128}, "a" * 128),
        ({"x-request-id": "a", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, "a"),
        ({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, TRACE),
        ({"traceparent": f"01-{TRACE}-00f067aa0ba902b7-01-more"}, TRACE),
        ({"x-request-id": "no id", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, TRACE),
        ({}, None),
        ({"x-request-id": ""}, None),
        ({"x-request-id": "a" * 129}, None),
        ({"x-request-id": "a\tb"}, None),
        ({"x-request-id": "é".encode()}, None),
        ({"x-request-id": '"a"'}, None),
        ({"traceparent": f"ff-{TRACE}-00f067aa0ba902b7-01"}, None),
        ({"traceparent": f"00-{'0' * 32}-00f067aa0ba902b7-01"}, None),
        ({"traceparent": f"00-{TRACE}-{'0' * 16}-01"}, None),
        ({"traceparent": f"00-{TRACE.upper()}-00f067aa0ba902b7-01"}, None),
    ],
)
def test_every_answer_has_the_id_of_its_request(client, headers, expected):
    answers = [client.get("/v2/health/live", headers=headers), client.post("/v1/score", content=b"", headers=headers)]
    ids = [answer.headers["x-request-id"] for answer in answers]
    if expected is None:
        assert all(re.fullmatch("[0-9a-f]{32}", found) for found in ids) and ids[0] != ids[1]
    else:
        assert ids == [expected] * 2


@pytest.mark.parametrize(
    "texts",
    [
        [b"68fd1e64", b"80e26c9b"],
        [b"68fd1e64", b""],
        [b"", b""],
        [b"", b"68fd1e64", b"", b"", b"80e26c9b", b""],
        [b"\x08\0\0\0abc", b"xyz"],
        [b"\x08\0\0\0\0\0\0\0"],
        [b"\x08" * 8, b"12345678"],
        [b"\0\0\0\0abcd", b""],
        [b"abcd\x08\0\0\0", b"12345678"],
        [b"abcd", b"12345678"],
        [],
    ],
)
def test_texts_behind_their_lengths(texts):
    data = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    assert tensors._texts("C1", memoryview(data), len(texts)).to_pylist() == texts
    for wrong, num_rows in ((data + b"\0", len(texts)), (data[:-1], len(texts)), (data, len(texts) + 1)):
        if wrong or num_rows:
            with pytest.raises(RequestError, match="C1"):
                tensors._texts("C1", memoryview(wrong), num_rows)


def test_binary_requests_without_rows_are_refused(client, golden):
    body, length = binary_of(golden.slice(0, 0))
    answer = client.post("/v2/models/clicks/infer", content=body, headers={HEADER_LENGTH: str(length)})
    assert (answer.status_code, "no rows" in error_of(answer)) == (400, True)


@pytest.mark.parametrize(
    ("name", "values", "status"),
    [
        ("content-encoding", ("identity", "gzip"), 415),
        ("content-encoding", ("gzip", "zstd"), 415),
        ("content-type", ("application/json", "text/csv"), 415),
        ("x-timeout-ms", ("1000", "2000"), 400),
        ("transfer-encoding", ("chunked", "gzip"), 501),
    ],
)
def test_no_header_that_is_there_twice_counts_alone(client, golden, name, values, status):
    body = json.dumps({"rows": golden.to_pylist()}).encode()
    headers = [*((name, value) for value in values)]
    assert client.post("/v1/score", content=body, headers=headers).status_code == status


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_lacks_is_null(client, golden, mark, word):
    rows = golden.to_pylist()[:2]
    rows[1] |= {"I1": float(word)}
    for address, rest in (("/v1/score", {"rows": rows}), ("/v1/explain", {"rows": rows[1:]})):
        answer = client.post(address, content=mark + json.dumps(rest).encode())
        assert answer.status_code == 400
        assert f"the body has {word}, which is no JSON; write null" in answer.json()["error"]
