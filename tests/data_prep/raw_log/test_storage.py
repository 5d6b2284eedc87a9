"""Logs in a bucket: a small S3 server on this machine, which counts what it is asked for."""

import dataclasses
import gzip
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.pipeline.prepare import prepare
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.storage import file_state, files_in, open_stream, read_range
from tests.prepared_folders import contents

DATE = "Sat, 01 Nov 2025 00:00:00 GMT"


class S3Handler(BaseHTTPRequestHandler):
    """GET (whole or a range), HEAD and ListObjectsV2 of the bucket `logs`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer_object(with_body=False)

    def do_GET(self):
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self.answer_list(query.get("prefix", [""])[0])
        else:
            self.answer_object(with_body=True)

    def answer_object(self, with_body):
        server = self.server
        key = unquote(urlsplit(self.path).path).removeprefix("/logs/")
        if "Credential=good/" not in self.headers.get("Authorization", ""):
            return self.answer(403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>", with_body)
        if key not in server.objects:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code><Message>no</Message></Error>", with_body)
        content = server.objects[key]
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return self.answer(200, content, with_body)
        first, last = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
        server.ranges.append((key, first, last))
        more = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        return self.answer(206, content[first : last + 1], with_body, more)

    def answer_list(self, prefix):
        names = sorted(key for key in self.server.objects if key.startswith(prefix))
        direct = [key for key in names if "/" not in key.removeprefix(prefix)]
        folders = {prefix + key.removeprefix(prefix).split("/")[0] + "/" for key in names} - {f"{k}/" for k in direct}
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.server.objects[key])}</Size>"
            f"<LastModified>2025-11-01T00:00:00.000Z</LastModified></Contents>"
            for key in direct
        )
        entries += "".join(f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders))
        head = f"<Name>logs</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(direct)}</KeyCount>"
        body = f"<ListBucketResult>{head}<IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
        self.answer(200, body.encode(), with_body=True)

    def answer(self, status, body, with_body, more=None):
        self.send_response(status)
        for name, value in {"Last-Modified": DATE, "ETag": '"e"', **(more or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@pytest.fixture(name="bucket")
def bucket_fixture(monkeypatch):
    """The server: `objects` by key, `ranges` asked for, `uri(key)`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), S3Handler)
    server.objects, server.ranges = {}, []
    port = server.server_address[1]
    server.uri = lambda key: f"s3://logs/{key}?endpoint_override=http://127.0.0.1:{port}&region=us-east-1"
    for name, value in {"AWS_ACCESS_KEY_ID": "good", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_bucket_is_listed_and_read(bucket):
    bucket.objects = {"days/day_2": b"0123456789", "days/day_10": b"x", "days/sub/day_3": b"y", "other": b"z"}
    assert file_state(bucket.uri("days/day_2")).size == 10
    assert file_state(bucket.uri("days/none")) is None
    assert files_in(bucket.uri("none")) is None
    assert sorted(files_in(bucket.uri("days"))) == [bucket.uri("days/day_10"), bucket.uri("days/day_2")]
    assert read_range(bucket.uri("days/day_2"), 3, 4) == b"3456"
    assert read_range(bucket.uri("days/day_2"), 8, 4) == b"89"
    buffer = bytearray(20)
    with open_stream(bucket.uri("days/day_2")) as stream:
        assert bytes(buffer[: stream.readinto(buffer)]) == b"0123456789"
    for inputs in (bucket.uri("days"), bucket.uri("days/day_*")):
        assert [file.name for file in find_log(inputs)] == ["day_2", "day_10"]


NAMES = ["day 1.csv", "a%20b.csv", "a#1.csv", "ü.csv", "a[1].csv", "x%zz.csv", "a?b.csv", "a+b&c=d.csv"]


def test_special_characters_in_names_of_objects(tmp_path, bucket):
    bucket.objects = {f"days/{name}": name.encode() for name in NAMES}
    for inputs in (bucket.uri("days"), bucket.uri("days/*.csv")):
        files = find_log(inputs)
        assert sorted(file.name for file in files) == sorted(NAMES)
        assert all(read_range(file.location, 0, 99).decode() == file.name for file in files)
    assert read_range(bucket.uri("days/day 1.csv"), 0, 99) == b"day 1.csv"  # as a user may write it
    (tmp_path / "a#1.csv").write_text("x")
    assert find_log(f"file://{tmp_path}/a#1.csv")[0].name == "a#1.csv"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_log_in_a_bucket_gives_the_same_rows(tmp_path, bucket, log_path, prepared, small_options, workers):
    lines = log_path.read_bytes().splitlines(keepends=True)
    names = list(small_options.data.columns)
    cells = zip(*(line.decode().rstrip("\n").split("\t") for line in lines[2000:]), strict=True)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(zip(names, map(list, cells), strict=True))), sink)
    bucket.objects = {
        "log/part-2.txt": b"".join(lines[:1000]),
        "log/part-3.gz": gzip.compress(b"".join(lines[1000:2000])),
        "log/part-10.parquet": sink.getvalue().to_pybytes(),
    }
    options = dataclasses.replace(small_options, workers=workers)
    prepare(bucket.uri("log"), tmp_path / "out", options, chunk_bytes=40_000)
    there, here = contents(tmp_path / "out"), contents(prepared)
    assert there.pop("schema.json") != here.pop("schema.json")  # it names the files
    assert there == here
    # The second reading's workers ask for the bytes of their chunks alone.
    parts = [(first, last) for key, first, last in bucket.ranges if key == "log/part-2.txt"]
    assert len({first for first, _ in parts}) >= 5


def test_an_object_that_changes_is_an_error(tmp_path, bucket, log_path, small_options, monkeypatch):
    bucket.objects = {"train.txt": log_path.read_bytes()}

    def change(*_):
        bucket.objects["train.txt"] += b"more\n"

    monkeypatch.setattr("data_prep.pipeline.first_pass.check_statistics", lambda *_, **__: change())
    with pytest.raises(ValueError, match=r"s3://logs/train.txt\S* changed or vanished while it was read"):
        prepare(bucket.uri("train.txt"), tmp_path / "out", small_options)


def test_wrong_credentials_are_one_clear_line(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "bad")
    bucket.objects = {"train.txt": b"x"}
    with pytest.raises(OSError, match=r"cannot read s3://logs/train.txt.*ACCESS_DENIED.*AWS_ACCESS_KEY_ID") as error:
        find_log(bucket.uri("train.txt"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3:///key", "s3:///key cannot be opened: Missing bucket name"),
        ("nope://bucket/key", "nope://bucket/key cannot be opened: Unrecognized filesystem type"),
        ("s3://key:hunter2@logs/train.txt", "contains a password"),
        (
            "s3://logs/key?endpoint_override=http://127.0.0.1:9&region=us-east-1",
            r"cannot read s3://logs/key.*Could not connect.*AWS_ENDPOINT_URL",
        ),
        ("hdfs://127.0.0.1:9/train.txt", r"cannot read hdfs://127.0.0.1:9/train.txt: .*HADOOP_HOME"),
    ],
)
def test_unreadable_uri_is_one_clear_line(uri, message):
    with pytest.raises(OSError if message.startswith("cannot read") else ValueError, match=message) as error:
        find_log(uri)
    assert "\n" not in str(error.value) and "hunter2" not in str(error.value)


def test_a_file_that_replaces_another_is_a_different_one(tmp_path):
    """The new file has the same size and time, as after `cp -p`."""
    for name, content in (("log", "one"), ("other", "two")):
        (tmp_path / name).write_text(content)
        os.utime(tmp_path / name, (1, 1))
    before = file_state(str(tmp_path / "log"))
    assert before == file_state(str(tmp_path / "log"))
    (tmp_path / "other").replace(tmp_path / "log")
    assert file_state(str(tmp_path / "log")) != before
