"""The OpenAPI document of the service, made of the columns of its model, and the same as a page."""

from __future__ import annotations

import html
import json
from typing import Any

from app.serving.forms import FORMS, json_rows, tensors
from data_prep.options.log_format import LogFormat

VERSION = "3.1.0"
_ERRORS = {
    "400": "the request is wrong; the error names row and field",
    "404": "no such model or version",
    "408": "the body did not arrive in time",
    "409": "the version is not the current one, not here, or cannot be pinned",
    "413": "too many bytes or rows",
    "415": "another content-type",
    "421": "the service is not the host that the request names",
    "429": "too many requests wait; see Retry-After",
    "503": "try again; see Retry-After",
    "504": "the deadline passed while the request waited",
}


def document(model: str, version: str, log_format: LogFormat, example: dict[str, Any]) -> dict[str, Any]:
    """Return the document, with the row `example` in its examples."""
    rows = {"type": "object", "properties": {"rows": {"type": "array", "items": _ref("Row"), "minItems": 1}}}
    rows["required"] = ["rows"]
    described = {"model": {"type": "string"}, "version": {"type": "string"}, "generation": {"type": "integer"}}
    schemas = {
        "Row": json_rows.row_schema(log_format),
        "Rows": rows,
        "Scores": _object(described | {"scores": {"type": "array", "items": {"type": "number"}}}),
        "Explained": _object(described | {"score": {"type": "number"}, "fields": {"type": "array"}}),
        "Version": _object({"version": {"type": "string"}}),
        "Nothing": {"type": "object"},
        "Described": _object(described),
        "Error": _object({"error": {"type": "string"}}),
        "Infer": tensors.schema(log_format),
        "Inferred": _object({"model_name": {"type": "string"}, "outputs": {"type": "array"}}),
    }
    many = {"content": {form.content_type: form.describe(log_format, example) for form in FORMS.values()}}
    one_row = _body("Rows", {"rows": [example]})
    current = _body("Version", {"version": version})
    infer = _body("Infer", tensors.example(log_format, example))
    paths = {
        "/v1/score": _post(f"Score rows: {' or '.join(form.title for form in FORMS.values())}", "Scores", many),
        "/v1/explain": _post("Score one row, with each field's part", "Explained", one_row),
        "/v1/rollback": _post("Pin the newest version that is older than this, the current one", "Described", current),
        "/v1/pin": _post("Serve this version until another is pinned", "Described", current),
        "/v1/unpin": _post("Serve the newest version", "Described", _body("Nothing", {})),
        "/v1/status": _get("Model, its folder and metrics, for the page"),
        "/v2": _get("The server, by V2"),
        "/v2/health/live": _get("The server is up"),
        "/v2/health/ready": _get("The server can score"),
        "/metrics": _get("Metrics for Prometheus"),
    }
    named = [_parameter("model", model)]
    for path, parameters in (
        ("/v2/models/{model}", named),
        ("/v2/models/{model}/versions/{version}", [*named, _parameter("version", version)]),
    ):
        paths[path] = {"parameters": parameters, **_get("The model's inputs and outputs")}
        paths[f"{path}/ready"] = {"parameters": parameters, **_get("The model can score")}
        paths[f"{path}/infer"] = {"parameters": parameters, **_post("Score by V2", "Inferred", infer)}
    return {
        "openapi": VERSION,
        "info": {"title": f"Click probabilities of {model}", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _body(schema: str, example: Any) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": _ref(schema), "example": example}}}


def _parameter(name: str, example: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "example": example}


def _get(text: str) -> dict[str, Any]:
    return {"get": {"summary": text, "responses": {"200": {"description": text}, **_errors()}}}


def _post(text: str, schema: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = {"description": text, "content": {"application/json": {"schema": _ref(schema)}}}
    return {"post": {"summary": text, "requestBody": body, "responses": {"200": answer, **_errors()}}}


def _errors() -> dict[str, Any]:
    content = {"application/json": {"schema": _ref("Error")}}
    return {status: {"description": text, "content": content} for status, text in _ERRORS.items()}


def as_html(content: dict[str, Any]) -> str:
    """Return the document as a page that loads nothing."""
    parts = []
    for path, operations in content["paths"].items():
        for method, operation in operations.items():
            if method == "parameters":
                continue
            parts.append(f"<h2>{method.upper()} {html.escape(path)}</h2><p>{html.escape(operation['summary'])}</p>")
            for form, body in operation.get("requestBody", {}).get("content", {}).items():
                parts.append(f"<p>{form}</p>")
                if (example := body.get("example")) is not None:
                    shown = example if isinstance(example, str) else json.dumps(example)
                    parts.append(f"<pre>{html.escape(shown)}</pre>")
    errors = "".join(f"<li>{status}: {html.escape(text)}</li>" for status, text in _ERRORS.items())
    title = html.escape(content["info"]["title"])
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title}</title><style>body{{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}}"
        "pre{background:#f4f4f4;padding:.6em;white-space:pre-wrap;overflow-wrap:anywhere;max-height:12em;overflow:auto}"
        f"h2{{font-size:1.05em;margin-top:1.6em;overflow-wrap:anywhere}}</style><h1>{title}</h1>"
        '<p>For tools: <a href=/openapi.json>openapi.json</a>. Errors are {"error": …}:</p>'
        f"<ul>{errors}</ul>{''.join(parts)}</html>"
    )
