"""Answer the HTTP requests that reach one worker process. `Service` has the routes (paths) of the HTTP service and the
function that handles each.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from starlette.datastructures import QueryParams
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import Receive, Scope, Send

from app.scoring.bundle_folder import short
from app.scoring.bundle_model import Scored
from app.scoring.explain import FieldEffect
from app.scoring.predictor import Predictor, probabilities
from app.serving import openapi
from app.serving.batching import HUGE_BODY, LOOP_BYTES, REFUSED, Batcher, score_together
from app.serving.decoding import Decode, DecodingProcess, decode_checked, decode_rows, decode_tensors
from app.serving.forms import FORMS, json_rows, tensors
from app.serving.forms.bodies import CLOSE, Bodies, DisconnectedError, ServiceRequest
from app.serving.forms.form import Form, NameRow, RequestError, RowsToScore, decode_json, rows_to_chunk
from app.serving.forms.tensors import HEADER_LENGTH
from app.serving.generations import Generations
from app.serving.observed import ID_HEADER, Observed, log_request, request_id
from app.serving.options import ADMIN_PATHS, Limits, ServerOptions
from app.serving.statement import read_trained_parts
from data_prep.options.kinds import UNITS
from data_prep.options.log_format import LogFormat

log = logging.getLogger(__name__)

PAGE = Path(__file__).with_name("page.html")
# Time in seconds within which the scores of all batches are counted for the metrics in one go. Counting them after each
# batch would take as long as encoding a row.
COUNTED_SECONDS = 0.5
# With these headers, a browser loads nothing from other hosts for the service's pages, and does not show them inside
# other pages.
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'"
}
_REFUSAL = b"HTTP/1.1 %d Too Many Requests\r\n%s: " % (REFUSED, ID_HEADER.encode())
_HEADERS_OF = {408: CLOSE, 413: CLOSE, REFUSED: {"retry-after": "1"}, 503: {"retry-after": "1"}}

EXPLAIN = "/v1/explain"
# Maximum size of a body with one row to explain, or with the version that must serve (be pinned) or that must not serve
# any more (a rollback). It is small, because the event loop itself decodes such bodies.
MOST_EXPLAINED_BYTES = 1 << 17
# Bodies of more than this many bytes are decoded in another process. Even JSON of this size can hold the global
# interpreter lock for up to 40 ms if a client has made it deliberately slow to decode.
MOST_DECODED_HERE = 1 << 17
LIVE, READY, HEALTHZ = "/v2/health/live", "/v2/health/ready", "/healthz"
# Paths of the health checks. HEALTHZ is another path for the check at LIVE that many systems use.
HEALTH = (LIVE, READY, HEALTHZ)
MODEL = "/v2/models/{model}"
_MODEL_PATH = re.compile(
    r"/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?(?P<rest>/(ready|infer|config|stats))?"
)
# Path of the statistics of all models. A model of the name "stats" has its metadata at the paths with a version only.
STATISTICS = "/v2/models/stats"
_CHARSET, _UTF_8 = re.compile(r'charset\s*=\s*"?([^";\s]*)', re.IGNORECASE), ("utf-8", "utf8", "us-ascii", "ascii")
_NO_ADDRESS, _NO_METHOD = "there is no such address; /docs lists all", "the address has another method; see /docs"


Handler = Callable[[ServiceRequest], Awaitable[Response]]


class VersionRequest(msgspec.Struct):
    """JSON body of /v1/rollback (the version to leave) and of /v1/pin (the version to serve)."""

    version: str


_decode_version = msgspec.json.Decoder(VersionRequest).decode


class Service:
    """ASGI application that answers requests with the model that serves, `generations.current`.

    It does not use Starlette's routes and middleware, because they would add a tenth to the time of a one-row request.
    """

    def __init__(self, generations: Generations, observed: Observed, options: ServerOptions) -> None:
        self.generations, self.observed, self.options = generations, observed, options
        self.batcher = Batcher(options.limits, self._observe)
        # Processes that decode bodies: one for the batcher's queue of large bodies, and one for its queue of huge
        # bodies.
        self._decoding, self._decoding_huge = (DecodingProcess(options.limits) for _ in range(2))
        # True after SIGTERM: the service still answers, but readiness checks get status 503, so that a load balancer
        # sends its requests to other servers.
        self.is_draining = False
        self._allows = lru_cache(maxsize=256)(options.allows)
        self._route = lru_cache(maxsize=256)(self._find_route)
        self._bodies = Bodies(options.limits.max_body_mib << 20)
        self._explaining = asyncio.Semaphore(1)
        self._routes: dict[str, dict[str, Handler]] = {
            "/": {"GET": self._page},
            "/docs": {"GET": self._docs},
            "/openapi.json": {"GET": self._openapi},
            "/metrics": {"GET": self._metrics},
            "/v1/status": {"GET": self._status},
            "/v1/score": {"POST": self._score},
            EXPLAIN: {"POST": self._explain, "GET": self._explain_example},
            "/v1/rollback": {"POST": self._changing(lambda body: generations.roll_back(_version_in(body)))},
            "/v1/pin": {"POST": self._changing(lambda body: generations.pin(_version_in(body)))},
            "/v1/unpin": {"POST": self._changing(lambda _: generations.pin(None))},
            "/v2": {"GET": self._server},
            LIVE: {"GET": self._live},
            HEALTHZ: {"GET": self._live},
            READY: {"GET": self._ready},
            "/v2/repository/index": {"POST": self._described_as(_repository_index)},
            STATISTICS: {"GET": self._described_as(self._statistics)},
        }
        for model in (MODEL, f"{MODEL}/versions/{{version}}"):
            self._routes[model] = {"GET": self._described_as(tensors.metadata_of_model)}
            self._routes[f"{model}/ready"] = {"GET": self._model_ready}
            self._routes[f"{model}/config"] = {"GET": self._described_as(tensors.config_of_model)}
            self._routes[f"{model}/stats"] = {"GET": self._described_as(self._statistics)}
            self._routes[f"{model}/infer"] = {"POST": self._infer}
        # Paths of the routes that score rows. Only requests for these paths can be refused because too many requests
        # wait.
        self._scoring = {path for path in self._routes if path == "/v1/score" or path.endswith("/infer")}

    def refresh(self) -> None:
        """Look for new bundles in the folder of bundles, switch to another model if it must serve now, and update the
        metrics about models. The thread that watches the folder calls this method.
        """
        self.generations.refresh_safely()
        self.observed.model(self.generations, not self.is_draining, self.batcher.num_waiting)

    def refusal(self, url: bytes, headers: list[tuple[bytes, bytes]], num_bytes: int) -> tuple[bytes, float] | None:
        """Check, when the headers of a request have arrived, if its rows would wait too long. If so, return the whole
        HTTP response that refuses it, and the seconds to wait before it is sent. Otherwise return None.

        `num_bytes` is the size of the body according to its headers. Under overload nearly all requests are refused, so
        a refusal must take little time. Otherwise little time would be left for scoring.
        """
        path, _, _ = self._route(url.decode("latin-1").partition("?")[0])
        if path not in self._scoring:
            return None
        try:
            self.batcher.admit(num_bytes)
        except RequestError as error:
            number, current = request_id(headers), self.generations.current
            self._note(number, "POST", path, REFUSED, None, 0.0)
            rest = _rest_of_refusal(str(error), version_of(current), current.generation)
            return b"%s%s%s" % (_REFUSAL, number.encode(), rest), self.batcher.refusals.delay()
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in any ASGI server, for example in tests. The service's own server calls `answer` instead
        and writes the response itself.
        """
        response = await self.answer(scope, receive)
        await response(scope, receive, send)

    async def answer(self, scope: Scope, receive: Receive) -> Response:
        """Return the response to a request, and count the request. The response's headers contain the request id and
        the version of the model. Errors become responses as well.
        """
        start, number = time.perf_counter(), request_id(scope["headers"])
        request = ServiceRequest(scope, receive)
        path, methods, scope["path_params"] = self._route(scope["path"])
        try:
            self._check_host(request, path)
            response = await self._handler(methods, scope["method"])(request)
        except RequestError as error:
            headers = _HEADERS_OF.get(error.status, error.headers)
            # A client that sent `Expect: 100-continue` may or may not send the body after an error, so the connection
            # cannot be used for another request.
            if "expect" in request.headers:
                headers = headers | CLOSE
            response = JSONResponse({"error": str(error)}, error.status, headers)
        except DisconnectedError:
            response = Response(status_code=400)
        # Scoring may raise any error, for example if a block of the bundle is damaged or memory is short. Status 503
        # lets the client try another server.
        except Exception as error:
            log.exception("%s, request %s: %s", path, number, type(error).__name__)
            message = "the model cannot score this now; see the server's log"
            response = JSONResponse({"error": message}, 503, _HEADERS_OF[503])
        finally:
            self._bodies.release(request)
        served = request.predictor or self.generations.current
        of_model = _model_headers(version_of(served), served.generation)
        response.raw_headers += [*of_model, (ID_HEADER.encode(), number.encode())]
        if self.is_draining:
            response.headers["connection"] = "close"
        if response.status_code == 405:
            response.headers["allow"] = ", ".join(methods)
        seconds = time.perf_counter() - start
        noted = number, scope["method"], path, response.status_code, request.num_rows, seconds
        # Call `_note` in the next turn of the event loop, after the response was written.
        asyncio.get_running_loop().call_soon(self._note, *noted)
        return response

    def _note(self, number: str, method: str, path: str, status: int, num_rows: int | None, seconds: float) -> None:
        # Do not count GET requests for the path EXPLAIN, which the service's HTML page sends by itself.
        if (method, path) != ("GET", EXPLAIN):
            self.observed.request(path, status, seconds, self.batcher.num_waiting)
        if path in self._scoring:
            self.observed.recent.note(status, seconds)
        if random.random() < self.options.logged_share:  # noqa: S311
            log_request(number, method, path, status, num_rows, seconds)

    def _check_host(self, request: ServiceRequest, path: str) -> None:
        """Raise RequestError if a request's header Host is missing or not allowed, or if a path in ADMIN_PATHS is
        requested on the public port although there is an administration port.

        Health checks are answered for any Host.
        """
        num_hosts = [name for name, _ in request.scope["headers"]].count(b"host")
        if num_hosts > 1 or (not num_hosts and request.scope["http_version"] == "1.1"):
            raise RequestError(400, f"expected one header Host, found {num_hosts}")
        admin_port = self.options.admin_port
        is_admin, is_admin_port = path in ADMIN_PATHS, admin_port == request.scope["server"][1]
        if is_admin and admin_port is not None and not is_admin_port:
            raise RequestError(404, f"{path} is on the port of --admin-port alone")
        host = request.headers.get("host")
        if host is not None and path not in HEALTH and not self._allows(host, is_admin, is_admin_port):
            raise RequestError(421, f"this is not the host {host!r}; the option --allowed-hosts names others")

    def _find_route(self, path: str) -> tuple[str, dict[str, Handler], dict[str, Any]]:
        """Return the route that a path belongs to, its handlers by HTTP method, and the path's parameters `model` and
        `version`. For an unknown path, return "other" and two empty mappings.
        """
        match = None if path == STATISTICS else _MODEL_PATH.fullmatch(path)
        if match is not None:
            rest = match["rest"] or ""
            path = f"{MODEL}/versions/{{version}}{rest}" if match["version"] else f"{MODEL}{rest}"
        methods = self._routes.get(path)
        return (path, methods, match.groupdict() if match else {}) if methods else ("other", {}, {})

    def _handler(self, methods: dict[str, Handler], method: str) -> Handler:
        handler = methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            raise RequestError(405 if methods else 404, _NO_METHOD if methods else _NO_ADDRESS)
        return handler

    async def _score(self, request: ServiceRequest) -> Response:
        form = _form_of(request.headers.get("content-type", "application/json"))
        is_logit_wanted, decode = _is_true(request, "logits"), partial(decode_rows, form.content_type)
        predictor, logits, _ = await self._logits(request, decode, form.has_small_rows, form.name_row)
        answer = {**self._described(predictor), "scores": probabilities(logits).tolist()}
        if is_logit_wanted:
            answer["logits"] = logits.tolist()
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def _infer(self, request: ServiceRequest) -> Response:
        self._check_model(request, self.generations.current)
        header_length = request.headers.get(HEADER_LENGTH)
        decode = partial(decode_tensors, header_length)
        predictor, logits, infer = await self._logits(request, decode, header_length is not None)
        # Check again that the URL names the model that serves: the service may have switched to another model while the
        # body arrived.
        self._check_model(request, predictor)
        model = (self.options.name, version_of(predictor), predictor.generation)
        body, length = tensors.answer(infer, *model, {"score": probabilities(logits), "logit": logits})
        if length is None:
            return Response(body, media_type="application/json")
        return Response(body, headers={HEADER_LENGTH: str(length)}, media_type="application/octet-stream")

    async def _logits(
        self,
        request: ServiceRequest,
        decode: Callable[[LogFormat, Limits, bytes], tuple[RowsToScore, Any]],
        has_small_rows: bool,
        name_row: NameRow | None = None,
    ) -> tuple[Predictor, np.ndarray, Any]:
        """Receive the body of a request, decode it with `decode`, and score its rows. Return the model that scored the
        rows, their logits [n], and what `decode` returned besides the rows.
        """
        limits = self.options.limits
        deadline = time.monotonic() + self._deadline_ms(request) / 1000
        body = await self._bodies.read(request)
        request.predictor = predictor = self.generations.current
        size = max(len(body), LOOP_BYTES + 1) if has_small_rows else len(body)
        reply: Any = None

        def decoded() -> RowsToScore:
            nonlocal reply
            log_format = predictor.log_format
            chunk, reply = self._decode(partial(decode, log_format, limits), name_row, log_format, body)
            return chunk

        try:
            logits = await self.batcher.logits(predictor, decoded, size, deadline)
        except RequestError as error:
            error = error.with_row_as(partial(name_row, body)) if name_row else error
            raise error.with_traceback(None) from None
        request.num_rows = len(logits)
        return predictor, logits, reply

    def _decode(
        self, decode: Decode, name_row: NameRow | None, log_format: LogFormat, body: bytes
    ) -> tuple[RowsToScore, Any]:
        """Decode a body, in this process if it has at most MOST_DECODED_HERE bytes, otherwise in a decoding process.
        Return its rows and what else `decode` returns. The batcher calls this method.
        """
        if len(body) <= MOST_DECODED_HERE:
            return decode(body)
        process = self._decoding_huge if len(body) > HUGE_BODY else self._decoding
        return process.run(partial(decode_checked, decode, name_row, log_format), body)

    def _deadline_ms(self, request: ServiceRequest) -> float:
        most = self.options.limits.deadline_ms
        text = request.headers.get("x-timeout-ms")
        if text is None:
            return most
        if not (text.isascii() and text.isdigit() and len(text) < 12):
            raise RequestError(400, "the header x-timeout-ms is no number of milliseconds")
        return min(float(text), most)

    async def _explain(self, request: ServiceRequest) -> Response:
        body = await self._bodies.read(request, MOST_EXPLAINED_BYTES)
        return await self._explained(request, json_rows.read_row(body, self.generations.current.log_format))

    async def _explain_example(self, request: ServiceRequest) -> Response:
        return await self._explained(request, self.generations.current.example)

    async def _explained(self, request: ServiceRequest, row: dict[str, Any]) -> Response:
        """Return the response with the score of a row and the effects of its columns. The row is not counted in the
        score metrics and the drift, and does not wait in the queues.
        """
        if self._explaining.locked():
            raise RequestError(REFUSED, "another row is being explained; try again in a second")
        request.predictor = predictor = self.generations.current
        chunk = rows_to_chunk([row], predictor.log_format, self.options.limits)

        def explain() -> tuple[float, list[FieldEffect]]:
            (logits,), _ = score_together(predictor, [chunk])
            if isinstance(logits, Exception):
                raise logits
            return float(probabilities(logits)[0]), predictor.explain(row)

        async with self._explaining:
            score, effects = await asyncio.to_thread(explain)
        fields = [asdict(effect) for effect in effects]
        answer = {**self._described(predictor), "score": score, "fields": fields}
        return JSONResponse(answer)

    def _changing(self, change: Callable[[bytes], None]) -> Handler:
        """Return a handler for POST requests that change which version must serve. The handler calls `change` with the
        body of the request.

        The handler accepts only the content type of JSON, because a browser does not let pages of other sites send this
        content type without permission (CORS).
        """

        async def handler(request: ServiceRequest) -> Response:
            if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise RequestError(415, "content-type must be application/json")
            body = await self._bodies.read(request, MOST_EXPLAINED_BYTES)
            try:
                await asyncio.to_thread(change, body)
            except ValueError as error:
                raise RequestError(409, error) from None
            return JSONResponse(self._described(self.generations.current))

        return handler

    def _described(self, predictor: Predictor) -> dict[str, Any]:
        return {"model": self.options.name, "version": version_of(predictor), "generation": predictor.generation}

    def _check_model(self, request: ServiceRequest, predictor: Predictor) -> None:
        name, version = (request.scope["path_params"][key] for key in ("model", "version"))
        current = version_of(predictor)
        if name != self.options.name:
            raise RequestError(404, f"there is no such model; this service has {self.options.name!r}")
        if version not in (None, current):
            raise RequestError(404, f"the version is not served; now it is {current!r}")

    async def _live(self, _: ServiceRequest) -> Response:
        return Response()

    async def _ready(self, _: ServiceRequest) -> Response:
        if self.is_draining:
            raise RequestError(503, "the service is about to end")
        return Response()

    async def _model_ready(self, request: ServiceRequest) -> Response:
        self._check_model(request, self.generations.current)
        return await self._ready(request)

    async def _server(self, _: ServiceRequest) -> Response:
        extensions = ["binary_tensor_data", "model_configuration", "statistics"]
        return JSONResponse({"name": "wide-deep", "version": "1", "extensions": extensions})

    def _described_as(self, describe: Callable[[str, str, LogFormat], Any]) -> Handler:
        """Return a handler that answers with the result of `describe`, which gets the name, the version and the log
        format of the model.
        """

        async def handler(request: ServiceRequest) -> Response:
            predictor = self.generations.current
            if request.scope["path_params"]:
                self._check_model(request, predictor)
            return JSONResponse(describe(self.options.name, version_of(predictor), predictor.log_format))

        return handler

    def _statistics(self, name: str, version: str, _: LogFormat) -> dict[str, Any]:
        """Return the statistics of the model in Triton's form. They include the requests to /v1/score and those that
        earlier versions of the model have scored.
        """
        return {"model_stats": [{"name": name, "version": version, **self.observed.statistics(self._scoring)}]}

    async def _status(self, _: ServiceRequest) -> Response:
        predictor = self.generations.current
        return JSONResponse(
            {
                **self._described(predictor),
                **self.generations.status(),
                **self.observed.status(),
                "trained": read_trained_parts(self.options.path),
                "fields": dict(predictor.log_format.fields),
                "serve_as": predictor.log_format.serve_as,
                "units": _units(predictor.log_format),
                "example": predictor.example,
            }
        )

    async def _metrics(self, _: ServiceRequest) -> Response:
        text, media_type = self.observed.metrics()
        return Response(text, media_type=media_type)

    async def _openapi(self, request: ServiceRequest) -> Response:
        return JSONResponse(self._document(request))

    def _document(self, request: ServiceRequest) -> dict[str, Any]:
        predictor, host = self.generations.current, request.headers.get("host", "")
        model = self.options.name, version_of(predictor)
        return openapi.document(*model, predictor.log_format, predictor.example, host)

    async def _docs(self, request: ServiceRequest) -> Response:
        return HTMLResponse(openapi.as_html(self._document(request)), headers=_PAGE_HEADERS)

    async def _page(self, _: ServiceRequest) -> Response:
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers=_PAGE_HEADERS)

    def _observe(self, predictor: Predictor, chunk: RowsToScore, scored: Scored) -> None:
        self.generations.keep_recent(predictor.log_format, chunk)
        if self.observed.batch(predictor, scored):
            asyncio.get_running_loop().call_later(COUNTED_SECONDS, self.observed.count)


def _repository_index(name: str, version: str, _: LogFormat) -> list[dict[str, str]]:
    return [{"name": name, "version": version, "state": "READY", "reason": ""}]


@lru_cache(maxsize=64)
def _form_of(content_type: str) -> Form:
    """Return the form in which rows are sent with a content type. Raise RequestError if the service accepts no such
    content type, or another charset than UTF-8.
    """
    name, _, parameters = content_type.partition(";")
    # `curl -d` sends application/x-www-form-urlencoded by default. Treat it as JSON.
    form = FORMS.get(name.strip().lower().replace("application/x-www-form-urlencoded", "application/json"))
    if form is None:
        raise RequestError(415, f"content-type must be one of {', '.join(FORMS)}")
    if parameters and (charset := _CHARSET.search(parameters)) and charset[1].lower() not in _UTF_8:
        raise RequestError(415, f"content-type has charset={charset[1]!r}, expected a body in utf-8")
    return form


def _is_true(request: ServiceRequest, name: str) -> bool:
    """Return the value of the query parameter `name`, false if it is missing. Raise RequestError if the value is
    neither true nor false.
    """
    query = request.scope["query_string"]
    value = QueryParams(query).get(name, "false") if query else "false"
    if value not in ("true", "false"):
        raise RequestError(400, f"the address has {name}={value!r}, expected true or false")
    return value == "true"


def _units(log_format: LogFormat) -> dict[str, int]:
    """Return, for each timestamp column whose times are numbers, the unit of these times as a power of ten: x for a
    unit of 10 ** x milliseconds, such as 3 for seconds.
    """
    forms = {name: log_format.time_form(name) for name in log_format.time_fields}
    return {name: UNITS[form] for name, form in forms.items() if form in UNITS}


def version_of(predictor: Predictor) -> str:
    """Return the version of a predictor's model without the prefix "xxh3:", so that it can be used in a URL."""
    return short(predictor.version)


def _version_in(body: bytes) -> str:
    version: str = decode_json(_decode_version, body).version
    return version


@lru_cache(maxsize=256)
def _rest_of_refusal(message: str, version: str, generation: int) -> bytes:
    """Return the end of the HTTP response that refuses a request: everything after the request id, which is further
    headers and the body.
    """
    response = JSONResponse({"error": message}, REFUSED, _HEADERS_OF[REFUSED])
    headers = [*response.raw_headers, *_model_headers(version, generation)]
    return b"".join([b"\r\n", *(b"%s: %s\r\n" % header for header in headers), b"\r\n", response.body])


@lru_cache(maxsize=8)
def _model_headers(version: str, generation: int) -> list[tuple[bytes, bytes]]:
    return [(b"x-model-version", version.encode()), (b"x-model-generation", str(generation).encode())]
