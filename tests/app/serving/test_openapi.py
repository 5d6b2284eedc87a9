"""The OpenAPI document against the service: the rows that it describes are those that are scored."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from app.serving.decoding import decode_rows
from app.serving.forms import FORMS
from app.serving.forms.form import RequestError
from app.serving.forms.json_rows import row_schema
from app.serving.options import Limits
from data_prep.encoding.from_values import choose_kernels, rejected
from data_prep.kernels.parsed import Chunk
from data_prep.options.kinds import FIELD_KINDS
from data_prep.options.log_format import LogFormat, VectorForm
from tests.app.scoring.conftest import typed_bundle, typed_dataset  # noqa: F401
from tests.app.serving.conftest import Client

LOG_FORMATS = [
    LogFormat(
        dict(zip(["clicked", *FIELD_KINDS], ["label", *FIELD_KINDS], strict=True)),
        vectors={"vector": VectorForm(3)},
        **more,
    )
    for more in ({}, {"quotes": True, "missing": ("NULL",), "decimal": ","}, {"booleans": {"string": ("yes", "no")}})
]
TEXTS = [
    "1|0.5|-2",
    "5",
    "-1.5",
    "1,5",
    "true",
    "0",
    "",
    "NULL",
    "68fd1e64",
    "1772319616",
    "Zürich\u3000東京",
    "a|b",
    "2026-02-28",
]
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(0, 9), st.floats(allow_nan=False),
    st.sampled_from(TEXTS), st.text(),
)  # fmt: skip
VECTORS = st.lists(st.integers(-(2**70), 2**70) | st.floats(width=32), min_size=3, max_size=3)
CELLS = SCALARS | VECTORS | st.lists(SCALARS, max_size=4) | st.dictionaries(st.text(), SCALARS, max_size=1)


def is_scored(row, log_format):
    return is_accepted("application/json", json.dumps({"rows": [row]}), log_format)


def is_accepted(content_type, body, log_format):
    try:
        chunk, _ = decode_rows(content_type, log_format, Limits(), body.encode())
    except RequestError:
        return False
    return not (isinstance(chunk, Chunk) and rejected(chunk, choose_kernels("auto").parse_chunk(chunk, log_format)))


@given(log_format=st.sampled_from(LOG_FORMATS), kind=st.sampled_from(FIELD_KINDS), cell=CELLS)
def test_every_scored_row_is_valid(log_format, kind, cell):
    row = dict.fromkeys(FIELD_KINDS) | {kind: cell}
    if is_scored(row, log_format):
        Draft202012Validator(row_schema(log_format)).validate(row)


@pytest.mark.parametrize("log_format", LOG_FORMATS)
@pytest.mark.parametrize("kind", FIELD_KINDS)
def test_every_type_of_the_schema_is_scored(log_format, kind):
    """A schema that allows anything would hold all scored rows, too."""
    cells = {
        "null": [None], "boolean": [True], "integer": [1772319616, 0], "string": TEXTS,
        "array": [["a", 1, None], [0.5, 1, -2]],
    }  # fmt: skip
    schema = row_schema(log_format)["properties"][kind]
    for name, examples in cells.items():
        rows = [dict.fromkeys(FIELD_KINDS) | {kind: cell} for cell in examples]
        assert any(is_scored(row, log_format) for row in rows) == (
            any(Draft202012Validator(schema).is_valid(cell) for cell in examples)
        ), name


@pytest.mark.parametrize("log_format", LOG_FORMATS)
@pytest.mark.parametrize("content_type", ["text/plain", "text/csv", "application/json"])
def test_the_example_of_each_form_is_accepted(log_format, content_type):
    """A line has every column of the log, not only the fields."""
    weighted = replace(log_format, columns={"weight": "weight", **log_format.columns})
    text = f'a{log_format.separator} "b"' if log_format.quotes else "a b"
    rows = [{"integer": 5, "float": 0.625, "boolean": True, "string": text, "list": "a|b"}, {"hex32": "68fd1e64"}]
    rows[0]["vector"] = [0.5, 1, -2]
    for row in rows:
        example = FORMS[content_type].describe(weighted, dict.fromkeys(FIELD_KINDS) | row)["example"]
        assert is_accepted(content_type, example if isinstance(example, str) else json.dumps(example), weighted)


@pytest.mark.parametrize("bundle", ["tiny_bundle", "text_bundle", "typed_bundle"])
def test_every_example_is_valid_and_answered(bundle, make_service, request):
    client = Client(make_service(request.getfixturevalue(bundle)))
    document = client.get("/openapi.json").json()
    version, answered = document["info"]["version"], 0
    for path, operations in document["paths"].items():
        address = path.replace("{model}", "clicks").replace("{version}", version)
        if "post" not in operations or address.removeprefix("/v1/") in ("pin", "unpin", "rollback"):
            continue
        for form, body in operations["post"]["requestBody"]["content"].items():
            if "example" not in body:
                continue
            whole = {**body.get("schema", {}), "components": document["components"]}
            Draft202012Validator(whole).validate(body["example"])
            content = body["example"] if isinstance(body["example"], str) else json.dumps(body["example"])
            answer = client.post(address, content=content.encode(), headers={"content-type": form})
            assert answer.status_code == 200, (path, form, answer.text)
            answered += 1
    assert answered == 7
