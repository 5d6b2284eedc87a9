"""Create the OpenAPI document of the service, which depends on its model's columns, and convert it to an HTML page."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
import shlex
from typing import Any

from app.serving.forms import FORMS, json_rows, tensors
from app.serving.options import ADMIN_PATHS
from data_prep.options.log_format import LogFormat

VERSION = "3.1.0"
_ERRORS = {
    "400": "the request is wrong; the error names row and field",
    "404": "no such model or version, or an address of --admin-port",
    "408": "the body did not arrive in time",
    "409": "the version is not the current one, not here, or cannot be pinned",
    "413": "too many bytes, unpacked if they are compressed, or rows",
    "415": "another content-type, or a content-encoding other than those of Accept-Encoding",
    "421": "the service is not the host that the request names",
    "429": "too many requests wait; see Retry-After",
    "503": "try again; see Retry-After",
    "504": "the deadline passed while the request waited",
}
_ANY = ("400", "421", "503")
_BODY = ("400", "408", "413", "415", "421", "429", "503", "504")
_HEADERS = {"429": "Retry-After", "503": "Retry-After", "415": "Accept-Encoding"}
_HOST = re.compile(r"[A-Za-z0-9.:\[\]-]+")


def document(
    model: str, version: str, log_format: LogFormat, example: dict[str, Any], host: str = "localhost:8000"
) -> dict[str, Any]:
    """Return the OpenAPI document of a service. `example` is the row in its examples, and `host` the host in its curl
    commands (localhost:8000 if `host` is no host name).
    """
    rows = {"type": "object", "properties": {"rows": {"type": "array", "items": _ref("Row"), "minItems": 1}}}
    rows["required"] = ["rows"]
    described = {"model": {"type": "string"}, "version": {"type": "string"}, "generation": {"type": "integer"}}
    numbers = {"type": "array", "items": {"type": "number"}}
    schemas = {
        "Row": json_rows.row_schema(log_format),
        "Rows": rows,
        "Scores": _object(described | {"scores": numbers}, {"logits": numbers}),
        "Explained": _object(described | {"score": {"type": "number"}, "fields": {"type": "array"}}),
        "Version": _object({"version": {"type": "string"}}),
        "Nothing": {"type": "object"},
        "Described": _object(described),
        "Error": _object({"error": {"type": "string"}}),
        "Infer": tensors.schema(log_format),
        "Index": {"type": "array", "items": _object({"name": {"type": "string"}, "version": {"type": "string"}})},
        "Inferred": _object({"model_name": {"type": "string"}, "outputs": {"type": "array"}}),
    }
    many = {form.content_type: form.describe(log_format, example) for form in FORMS.values()}
    either = {"anyOf": [_ref("Row"), _ref("Rows")]}
    one_row = {"application/json": {"schema": either, "example": {"rows": [example]}}}
    current = _json("Version", {"version": version})
    infer = _json("Infer", tensors.example(log_format, example))
    binary, length = tensors.binary_example(log_format, example)
    paths: dict[str, Any] = {
        "/v1/score": _post(f"Score rows: {' or '.join(form.title for form in FORMS.values())}", "Scores", many),
        "/v1/explain": {
            **_post("Score one row, with each field's part", "Explained", one_row),
            **_get("Score the example row, with each field's part", "429"),
        },
        "/v1/rollback": _post("Pin the newest version that is older than this, the current one", "Described", current),
        "/v1/pin": _post("Serve this version until another is pinned", "Described", current),
        "/v1/unpin": _post("Serve the newest version", "Described", _json("Nothing", {})),
        "/v1/status": _get("Model, its folder and metrics, for the page"),
        "/v2": _get("The server, by V2"),
        "/v2/models/stats": _get("Counts and times of the model's requests, as by Triton"),
        "/v2/repository/index": _post("The model, as by Triton", "Index", _json("Nothing", {})),
        "/healthz": _get("The server is up"),
        "/v2/health/live": _get("The server is up, by V2"),
        "/v2/health/ready": _get("The server can score"),
        "/metrics": _get("Metrics for Prometheus"),
    }
    logits = {"name": "logits", "in": "query", "schema": {"type": "string", "enum": ["true", "false"]}}
    paths["/v1/score"]["post"]["parameters"] = [logits | {"description": "whether the answer has logits, too"}]
    for path in ADMIN_PATHS:
        paths[path]["post"]["responses"] |= _errors("404", "409")
    model_parameter = [_parameter("model", model)]
    for path, parameters in (
        ("/v2/models/{model}", model_parameter),
        ("/v2/models/{model}/versions/{version}", [*model_parameter, _parameter("version", version)]),
    ):
        shared = {"parameters": parameters}
        paths[path] = shared | _get("The model's inputs and outputs", "404")
        paths[f"{path}/ready"] = shared | _get("The model can score", "404")
        paths[f"{path}/config"] = shared | _get("The model's configuration, as by Triton", "404")
        paths[f"{path}/stats"] = shared | _get("Counts and times of the model's requests, as by Triton", "404")
        forms = infer | {"application/octet-stream": {"example": binary, "headers": {tensors.HEADER_LENGTH: length}}}
        paths[f"{path}/infer"] = shared | _post("Score by V2", "Inferred", forms)
        paths[f"{path}/infer"]["post"]["responses"] |= _errors("404")
    values = {"{model}": model, "{version}": version}
    base = f"http://{host if _HOST.fullmatch(host) else 'localhost:8000'}"
    for path, operations in paths.items():
        for name, value in values.items():
            path = path.replace(name, value)
        for method in operations.keys() & {"get", "post"}:
            operations[method]["x-codeSamples"] = _curl_lines(base + path, operations[method])
    return {
        "openapi": VERSION,
        "info": {"title": f"Click probabilities of {model}", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _curl_lines(address: str, operation: dict[str, Any]) -> list[dict[str, str]]:
    """Return a curl command for each content type in which the operation (a route with its HTTP method) at `address`
    accepts a body, as objects of the OpenAPI extension x-codeSamples.

    Remove examples that are bytes from `operation`, because a JSON document cannot contain them.
    """
    lines = []
    for form, body in operation.get("requestBody", {"content": {"": None}})["content"].items():
        line = f"curl {shlex.quote(address)}"
        if body is not None:
            line = _with_body(line, form, body.get("example"), body.pop("headers", {}))
            if isinstance(body.get("example"), bytes):
                del body["example"]
        lines.append({"lang": "Shell", "label": form or "curl", "source": line})
    return lines


def _with_body(line: str, form: str, example: Any, headers: dict[str, Any]) -> str:
    """Return the curl command `line` extended by a body and headers, so that it can be pasted into a shell.

    If the body is text, it is escaped for printf. If it is bytes, it is compressed and encoded as base64. Any other
    body is written as JSON.
    """
    headers = {"content-type": form, **headers}
    if isinstance(example, bytes):
        headers["content-encoding"] = "gzip"
        packed = base64.b64encode(gzip.compress(example, mtime=0)).decode()
        line, more = f"echo {packed} | base64 -d | {line}", " --data-binary @-"
    elif isinstance(example, str):
        escaped = example.replace("\\", "\\\\").replace("\t", "\\t").replace("\r", "\\r").replace("\n", "\\n")
        line, more = f"printf %b {shlex.quote(escaped)} | {line}", " --data-binary @-"
    else:
        more = f" -d {shlex.quote(json.dumps(example))}"
    return line + "".join(f" -H {shlex.quote(f'{name}: {value}')}" for name, value in headers.items()) + more


def _object(properties: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": properties | (optional or {}), "required": list(properties)}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: str, example: Any) -> dict[str, Any]:
    return {"application/json": {"schema": _ref(schema), "example": example}}


def _parameter(name: str, example: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "example": example}


def _get(text: str, *more_errors: str) -> dict[str, Any]:
    answer = {"description": text, "headers": _headers("X-Request-Id", "X-Model-Version")}
    return {"get": {"summary": text, "responses": {"200": answer, **_errors(*_ANY, *more_errors)}}}


def _post(text: str, schema: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a POST operation (a route that accepts POST requests) as the OpenAPI document contains
    it. `text` is the summary, `schema` the name of the response's schema, and `content` describes the body for each
    content type.
    """
    answers: dict[str, Any] = {"application/json": {"schema": _ref(schema)}}
    if "application/octet-stream" in content:
        answers["application/octet-stream"] = {}
    answer = {"description": text, "headers": _headers("X-Request-Id", "X-Model-Version"), "content": answers}
    body = {"required": True, "content": content}
    return {"post": {"summary": text, "requestBody": body, "responses": {"200": answer, **_errors(*_BODY)}}}


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"schema": {"type": "string"}} for name in names}


def _errors(*statuses: str) -> dict[str, Any]:
    errors = {}
    for status in statuses:
        content = {"application/json": {"schema": _ref("Error"), "example": {"error": _ERRORS[status]}}}
        headers = _headers("X-Request-Id", *filter(None, [_HEADERS.get(status)]))
        errors[status] = {"description": _ERRORS[status], "headers": headers, "content": content}
    return errors


def as_html(content: dict[str, Any]) -> str:
    """Return an OpenAPI document (the result of `document`) as an HTML page that loads no other resources."""
    parts = []
    for path, operations in content["paths"].items():
        for method, operation in operations.items():
            if method == "parameters":
                continue
            parts.append(f"<h2>{method.upper()} {html.escape(path)}</h2><p>{html.escape(operation['summary'])}</p>")
            for sample in operation["x-codeSamples"]:
                parts.append(f"<p>{sample['label']}</p><pre>{html.escape(sample['source'])}</pre>")
            parts.append(f"<p>Answers: {', '.join(sorted(operation['responses']))}</p>")
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
