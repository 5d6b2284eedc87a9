"""Each message is in one part, wherever the consumer was killed, and the model is trained on the parts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

# Runs a program that ends, as by a kill, instead of the N-th call of a function.
KILLED = """
import os, pathlib, runpy, sys, confluent_kafka
_, function, number, *sys.argv = sys.argv
class Consumer(confluent_kafka.Consumer):
    def commit(self, **named):
        count("commit")
        return super().commit(**named)
calls = []
def count(name):
    calls.append(name)
    if calls.count(function) == int(number):
        os._exit(9)
rename = pathlib.Path.rename
pathlib.Path.rename = lambda *arguments: (count("rename"), rename(*arguments))[1]
confluent_kafka.Consumer = Consumer
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def topic():
    """The brokers of a mock cluster of librdkafka, whose topic `clicks` has the lines of new.txt."""
    producer = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "mock"})
    brokers = producer.list_topics(timeout=30).brokers.values()
    for number, line in enumerate(Path("new.txt").read_bytes().splitlines()):
        producer.produce("clicks", line, key=str(number))
    assert producer.flush(60) == 0
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)


def rows_of_parts() -> list[str]:
    return [line for path in Path("parts").glob("*.txt") for line in path.read_text().splitlines()]


def test_parts_have_each_message_once(commands, run, folder, topic):
    consume, online = commands("Kafka")
    consume = consume.replace("localhost:9092", topic).replace("100000 300", "300 2")
    Path("parts").mkdir()
    Path("killed.py").write_text(KILLED)
    for function, number in (("commit", 2), ("rename", 3), ("commit", 1)):
        before = len(rows_of_parts())
        run(consume.replace("bin/python ", f"bin/python killed.py {function} {number} "), status=9)
        assert len(rows_of_parts()) > before
    lines = Path("new.txt").read_text().splitlines()
    assert len(rows_of_parts()) < len(lines)
    process = subprocess.Popen(["bash", "-c", f"exec {consume}"], cwd=folder)
    end = time.monotonic() + 120
    while len(rows_of_parts()) < len(lines) and time.monotonic() < end:
        time.sleep(0.2)
    time.sleep(3)  # Rows that come twice would be in a further part.
    assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    process.wait(30)
    assert sorted(rows_of_parts()) == sorted(lines)
    run(online)
    trained = [json.loads(line) for line in Path("online/metrics.jsonl").read_text().splitlines()]
    assert sum(line["rows"] for line in trained if "part" in line and "rows" in line) == len(lines)


def test_wrong_address_is_named(run, folder):
    Path("parts").mkdir()
    program = ".venv-doors/kafka/bin/python examples/doors/kafka/consume.py"
    shown = run(f"{program} 127.0.0.1:9 clicks parts 300 2", status=1).stderr
    assert "127.0.0.1:9" in shown and "Connection refused" in shown
