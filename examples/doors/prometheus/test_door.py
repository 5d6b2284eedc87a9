"""A real Prometheus scrapes the service: every alert and every panel names metrics that are there, and has a result."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import promql_parser
import pytest

HERE = Path(__file__).parent
PANELS = json.loads((HERE / "dashboard.json").read_text())["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
ALERTS = (HERE / "alerts.yaml").read_text()


def get(address, **values):
    with urllib.request.urlopen(f"http://{address}?{urllib.parse.urlencode(values)}", timeout=10) as answer:
        return answer.read().decode()


def in_promql(query):
    """A query with the values that Grafana fills in."""
    for name, value in (("$__rate_interval", "1m"), ("$__range", "1m"), ("$instance", ".*")):
        query = query.replace(name, value)
    return query


def metrics_of(query):
    """The names of the metrics in a query, as Prometheus' own grammar finds them."""
    found, parts = set(), [promql_parser.parse(in_promql(query))]
    while parts:
        part = parts.pop()
        if isinstance(part, promql_parser.VectorSelector):
            found.add(part.name)
        members = [getattr(part, name, None) for name in ("expr", "lhs", "rhs", "vector_selector", "param")]
        parts += [each for each in (*members, *(getattr(part, "args", None) or ())) if each is not None]
    return found


@pytest.fixture
def server(folder, service):
    """A Prometheus that scrapes the service every second while rows are scored. Its address and the service's."""
    lines = Path("new.txt").read_bytes()
    scraped = service("--workers", "2", "--deadline-ms", "30000")
    shutil.copytree(HERE, "monitoring")
    config = Path("monitoring/prometheus.yaml")
    text = config.read_text().replace("localhost:8000", scraped).replace("15s", "1s")
    config.write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = [f"--config.file={config}", f"--web.listen-address={address}", "--storage.tsdb.path=series"]
    with Path("prometheus.log").open("w") as log, subprocess.Popen(["prometheus", *options], stderr=log) as process:
        try:
            for _ in range(8):
                for body, content_type in ((lines, "text/plain"), (b'{"rows": [{}]}', "application/json")):
                    request = urllib.request.Request(f"http://{scraped}/v1/score", body, {"content-type": content_type})
                    try:
                        urllib.request.urlopen(request, timeout=60).read()
                    except urllib.error.HTTPError as error:
                        assert error.code in (400, 429), error
                time.sleep(1)
            assert process.poll() is None, Path("prometheus.log").read_text()
            yield address, scraped
        finally:
            process.terminate()


def test_the_alerts_are_valid_and_fire(commands, run):
    for command in commands("Prometheus and Grafana"):
        if "promtool" in command:
            run(command)
    tested = re.findall(r"alertname: (\w+)", (HERE / "alerts_test.yaml").read_text())
    assert sorted(tested) == sorted(re.findall(r"alert: (\w+)", ALERTS))


def test_panels_and_alerts_have_results_from_a_real_run(server):
    address, scraped = server
    exposed = set(re.findall(r"(?m)^([a-z_]+)(?:\{| )", get(f"{scraped}/metrics"))) | {"up"}
    groups = json.loads(get(f"{address}/api/v1/rules"))["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == ALERTS.count("alert:")
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
    for query in (*QUERIES, *(rule["query"] for rule in rules)):
        assert metrics_of(query) and metrics_of(query) <= exposed, query
    for query in QUERIES:
        result = json.loads(get(f"{address}/api/v1/query", query=in_promql(query)))["data"]["result"]
        assert result and any(math.isfinite(float(each["value"][1])) for each in result), query


@pytest.mark.parametrize("query", QUERIES)
def test_a_wrong_name_is_found_anywhere_in_a_query(query):
    """The result of such a query need not be empty, so the check of names must find it."""
    for name in metrics_of(query):
        wrong = re.sub(rf"\b{name}\b", "wide_deep_absent", query)
        assert "wide_deep_absent" in metrics_of(f"{wrong} or vector(0)")
