"""A field with the same value in all rows to score (`serve_as`): the scores are those of rows with this value."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from app.scoring.distribution import Distribution
from app.scoring.predictor import Predictor
from data_prep.encoding.prepared_vocabulary import open_encoder
from data_prep.kernels.parsed import Chunk
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from tests.app.scoring.ways_to_score import file_scores, served_scores, tensor_scores
from tests.request_bodies import arrow_stream

POSITIONS = {  # For each kind: cells of the column in the log, and the value to serve.
    "string": (["top", "side", "7"], "side"),
    "integer": (["1", "2", "3", ""], "2"),
    "float": (["0.5", "1.5", "3"], "1.5"),
    "boolean": (["true", "false"], "true"),
    "hex32": (["0000000a", "0000000b"], "0000000b"),
}
OTHER = {"string": "bottom", "integer": "many", "float": "x", "boolean": "perhaps", "hex32": "zz"}


def write_log(path, kind, num_rows=400):
    random = np.random.default_rng(1)
    cells = random.choice(POSITIONS[kind][0], num_rows)
    rows = zip(random.integers(0, 2, num_rows), cells, random.choice(["a", "b"], num_rows), strict=True)
    lines = [f"{click},{cell},{site},{number}" for number, (click, cell, site) in enumerate(rows)]
    path.write_text("\n".join(["click,position,site,n", *lines, ""]))


def options_of(kind, **serve_as):
    columns = {"click": "label", "position": kind, "site": "string", "n": "integer"}
    log_format = LogFormat(columns, ",", header=True, serve_as=serve_as)
    crosses = (("position" + "_bucket" * (kind == "integer"), "site"),) * (kind != "float")
    return PrepareOptions(data=log_format, min_count=1, integer_buckets=True, crosses=crosses, workers=1)


@pytest.fixture(scope="module", params=POSITIONS)
def models(request, tmp_path_factory, make_bundle, make_state, tiny_config):
    """Return the kind, and two models with the same weights: one that serves a constant, and one that does not."""
    kind, folder, config = request.param, tmp_path_factory.mktemp("served"), tiny_config()
    write_log(folder / "log.csv", kind)
    found = []
    for name, serve_as in {"served": {"position": POSITIONS[kind][1]}, "plain": {}}.items():
        schema = prepare(folder / "log.csv", folder / name, options_of(kind, **serve_as))
        found.append(Predictor.open(make_bundle(folder / name, config, make_state(schema, config))))
    return kind, *found, folder


def test_all_forms_of_rows_get_the_constant(models, tmp_path):
    kind, served, plain, _ = models
    value = POSITIONS[kind][1]
    rows = [{"site": site, "n": number} for site in ("a", "b", None) for number in (3, None)]
    expected = plain.score([row | {"position": value} for row in rows])
    assert len({*plain.score([rows[0] | {"position": cell} for cell in POSITIONS[kind][0]]).tolist()}) > 1
    for position in (None, POSITIONS[kind][0][0], OTHER[kind]):
        sent = [row if position is None else row | {"position": position} for row in rows]
        table = pa.table({name: pa.array([row[name] for row in sent]) for name in sent[0]})
        csv = pa.BufferOutputStream()
        pacsv.write_csv(table, csv, pacsv.WriteOptions(quoting_style="none"))
        lines = [
            f"{row.get('position', '')},{row['site'] or ''},{'' if row['n'] is None else row['n']}" for row in sent
        ]
        texts = {name: ["" if cell is None else str(cell) for cell in table[name].to_pylist()] for name in sent[0]}
        tensors = [{"name": n, "datatype": "BYTES", "shape": [len(sent)], "data": cells} for n, cells in texts.items()]
        bodies = {
            "application/json": json.dumps({"rows": sent}).encode(),
            "application/vnd.apache.arrow.stream": arrow_stream(table),
            "text/csv": csv.getvalue().to_pybytes(),
        }
        scores = [served_scores(served, form, body) for form, body in bodies.items()]
        scores.append(tensor_scores(served, json.dumps({"inputs": tensors}).encode()))
        scores += [served.score(rows) for rows in (sent, lines, table, table.to_pandas())]
        pq.write_table(table, tmp_path / "rows.parquet")
        (tmp_path / "rows.csv").write_bytes(csv.getvalue().to_pybytes().replace(b'"', b""))
        for name in ("rows.parquet", "rows.csv"):
            scores.append(file_scores(served.folder, tmp_path / name, served_as={"position": value}))
        for found in scores:
            np.testing.assert_array_equal(np.float32(found), expected)


def test_explanations_have_no_part_of_the_constant(models):
    kind, served, plain, _ = models
    row = {"site": "a", "n": 3}
    parts = served.explain([row])
    assert [*parts.columns] == ["(intercept)", "site", "n"]
    np.testing.assert_allclose(parts.sum(axis=1), plain.logits([row | {"position": POSITIONS[kind][1]}]), rtol=1e-6)
    assert {effect.field for effect in served.explain(row)} == {"site", "n"}
    assert [name for name, _ in served.log_format.fields] == ["site", "n"] == [*served.example]
    assert served.verify() == 100
    assert (served.manifest.format_version, plain.manifest.format_version) == (7, 3)


def test_rows_of_the_log_keep_their_own_values(models):
    """Training, evaluation and the parts of an online run encode rows of the log. Drift leaves out what is constant."""
    _, served, plain, folder = models
    assert served.schema.splits == plain.schema.splits
    encoder = open_encoder(folder / "served", with_labels=True)
    lines = (folder / "log.csv").read_bytes().split(b"\n", 1)[1]
    parsed = encoder.encode(Chunk(0, 400, lines))[0].rows
    np.testing.assert_array_equal(served.logits_of_parsed(parsed), plain.logits_of_parsed(parsed))
    names = {drift["field"] for drift in Distribution(served.schema).drift_from(Distribution(served.schema))}
    assert names == {"site", "n", "n_missing", "n_bucket"}


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        ("string", "bottom", r"'bottom' has no id in the vocabulary; give a value .*, such as 7, side, top"),
        ("hex32", "0000000c", "'0000000c' has no id in the vocabulary; .* such as 0000000a, 0000000b"),
        ("integer", "4", "4 is outside of the numbers that training rows have, 1 to 3"),
        ("float", "0.25", "0.25 is outside of the numbers that training rows have, 0.5 to 3.0"),
        ("integer", "first", "'first' is no value of a column of kind integer"),
        ("string", "", "'' is no value of a column of kind string"),
        ("string", "a,b", "'a,b' is no value of a column of kind string"),
    ],
)
def test_a_value_that_the_model_cannot_know_is_refused(tmp_path, kind, value, error):
    write_log(tmp_path / "log.csv", kind)
    with pytest.raises(ValueError, match=error) as found:
        prepare(tmp_path / "log.csv", tmp_path / "out", options_of(kind, position=value))
    assert str(found.value).startswith("prepare.data.serve_as: position: ")


@pytest.mark.parametrize(
    ("serve_as", "error"),
    [
        ({"place": "1"}, "serve_as: 'place' is no column of kind integer, float, boolean"),
        ({"click": "1"}, "serve_as: 'click' is no column of kind integer, float, boolean"),
    ],
)
def test_only_fields_with_one_value_are_served(serve_as, error):
    with pytest.raises(ValueError, match=error):
        options_of("string", **serve_as)
