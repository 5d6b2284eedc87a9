import gzip
import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from data_prep.__main__ import main
from data_prep.sources import download as download_module
from data_prep.sources.download import DownloadSection, download

CONTENT = gzip.compress(bytes(range(256)) * 2000, compresslevel=0, mtime=0)
SIZE = len(CONTENT)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT as the path's words say."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.server
        words = self.path.strip("/").split("-")
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        server.asked.append((self.path, int(wanted[1]) if wanted else 0))
        if "missing" in words:
            return self.send_error(404)
        if "busy" in words and len(server.asked) < 3:
            return self.send_error(503)
        if words[0] == "redirect":
            self.send_response(302)
            self.send_header("Location", "/" + "-".join(words[1:]))
            return self.end_headers()
        content = b"<html>" * 1000 if "page" in words else CONTENT[:-7] if "short" in words else CONTENT
        content += bytes(9 << 20) if "more" in words else b""
        tag = f'"{server.version}"'
        first = 0
        if wanted and "whole" not in words and self.headers.get("If-Range", tag) == tag:
            first = int(wanted[1])
            if first >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                return self.end_headers()
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("ETag", tag)
        if "endless" not in words:
            self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        if ("breaks" in words and first < len(content) // 2) or "dead" in words:
            content = content[: first + (0 if "dead" in words and first else 100_000)]
        self.wfile.write(content[first:])
        return None


@pytest.fixture(name="server")
def server_fixture(monkeypatch):
    monkeypatch.setattr(download_module, "_PAUSE_SECONDS", 0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.version = [], 1
    server.url = lambda words: f"http://127.0.0.1:{server.server_address[1]}/{words}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def section_of(server, *words, size=SIZE, sha256=""):
    sha256 = sha256 or ("" if size else SHA256)
    return DownloadSection("log.gz", "terms", {server.url(word): size for word in words}, sha256)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("words", "size", "asked"),
    [
        (["good"], SIZE, [0]),
        (["good"], 0, [0]),
        (["endless"], SIZE, [0]),
        (["endless"], 0, [0]),
        (["more", "good"], SIZE, [0, 0]),
        (["more-endless", "good"], SIZE, [0, 0]),
        (["endless-breaks"], SIZE, [0, 100_000, 200_000, 300_000]),
        (["breaks"], 0, [0, 100_000, 200_000, 300_000]),
        (["redirect-good"], SIZE, [0, 0]),
        (["busy"], SIZE, [0, 0, 0]),
        (["missing", "short", "good"], SIZE, [0, 0, SIZE - 7, 0]),
        (["missing", "page", "good"], 0, [0, 0, 0]),
        (["dead", "good"], SIZE, [0, *[100_000] * 6]),
    ],
)
def test_the_file_arrives_whole(tmp_path, server, words, size, asked):
    path = download(section_of(server, *words, size=size), tmp_path)
    assert path == tmp_path / "log.gz"
    assert path.read_bytes() == CONTENT
    assert names(tmp_path) == ["log.gz"]
    assert [first for _, first in server.asked] == asked


def test_a_server_without_ranges_starts_over(tmp_path, server):
    with pytest.raises(OSError, match=r"whole-dead: .*, 5 times in a row"):
        download(section_of(server, "whole-dead"), tmp_path)
    assert download(section_of(server, "whole-good"), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(("part", "asked"), [(100_000, [100_000]), (SIZE, []), (SIZE + 1, [0])])
def test_a_part_is_resumed(tmp_path, server, part, asked):
    (tmp_path / "mine.gz.partial").write_bytes((CONTENT + b"x")[:part])
    assert download(section_of(server, "good"), tmp_path / "mine.gz").read_bytes() == CONTENT
    assert [first for _, first in server.asked] == asked
    assert names(tmp_path) == ["mine.gz"]


def test_a_part_that_is_the_whole_file_is_taken_by_its_checksum(tmp_path, server):
    (tmp_path / "log.gz.partial").write_bytes(CONTENT)
    assert download(section_of(server, "good", size=0), tmp_path).read_bytes() == CONTENT


def test_received_bytes_stay_for_the_next_command(tmp_path, server):
    with pytest.raises(OSError, match=r"dead: .*, 5 times in a row"):
        download(section_of(server, "dead"), tmp_path)
    assert (tmp_path / "log.gz.partial").read_bytes() == CONTENT[:100_000]


@pytest.mark.parametrize(
    ("words", "size", "sha256", "message"),
    [
        ("missing", SIZE, "", "missing: The requested URL returned error: 404"),
        ("more", SIZE, "", "more: .*file size"),
        ("short", SIZE, "", f"short: served {SIZE - 7:,} bytes, expected {SIZE:,}"),
        ("short-endless", SIZE, "", f"short-endless: served {SIZE - 7:,} bytes, expected {SIZE:,}"),
        ("more-endless", SIZE, "", f"served {SIZE + (9 << 20):,} bytes, expected {SIZE:,}"),
        ("page", 0, "", "served no gzip file: it starts with b'<h'"),
        ("good", 0, "0" * 64, f"served a file with SHA-256 {SHA256}, expected {'0' * 64}"),
    ],
)
def test_another_file_is_refused(tmp_path, server, words, size, sha256, message):
    with pytest.raises(OSError, match=rf"(?s)no address served log.gz:\n.*{message}.*\nDownload it by hand"):
        download(section_of(server, words, size=size, sha256=sha256), tmp_path)
    assert names(tmp_path) == []


def test_the_checksum_may_be_in_capitals(tmp_path, server):
    assert download(section_of(server, "good", sha256=SHA256.upper()), tmp_path).exists()


def test_no_server_no_room_and_no_curl_are_errors(tmp_path, server, monkeypatch):
    with pytest.raises(OSError, match=r"127.0.0.1:9/x: Failed to connect to 127.0.0.1 port 9.*, 5 times in a row"):
        download(DownloadSection("log.gz", "", {"http://127.0.0.1:9/x": 1}), tmp_path)
    with monkeypatch.context() as full:
        full.setattr(download_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
        with pytest.raises(OSError, match=rf"no room for log.gz.partial: {SIZE:,} more bytes needed in .*, 1 free"):
            download(section_of(server, "good"), tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="needs the program curl"):
        download(section_of(server, "good"), tmp_path)


def test_https_is_never_left_for_another_protocol(tmp_path, monkeypatch):
    """A stand-in for curl shows its words, as no server here has a certificate."""
    (tmp_path / "curl").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/words\necho "000 refused"\nexit 1\n')
    (tmp_path / "curl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(OSError, match=r"https://b.example/log.gz: refused"):
        download(DownloadSection("log.gz", "", {"https://b.example/log.gz": SIZE}), tmp_path)
    assert "--proto =https --proto-redir =https " in (tmp_path / "words").read_text()


@pytest.mark.parametrize(
    ("sources", "sha256", "message"),
    [
        ({"https://a.example/x": 0}, "", "the size of https://a.example/x is 0, so a part of the file would pass"),
        ({"https://a.example/x": -1}, SHA256, "the size of https://a.example/x is -1"),
        ({"https://a.example/x": 0}, SHA256[1:], "sha256 must be 64 hex digits"),
        ({"ftp://a.example/x": 1}, "", "is no http or https address"),
    ],
)
def test_a_file_that_could_not_be_checked_is_refused(sources, sha256, message):
    with pytest.raises(ValueError, match=message):
        DownloadSection("log.gz", "", sources, sha256)


def test_another_file_of_the_name_stays(tmp_path, server):
    (tmp_path / "log.gz").write_bytes(CONTENT[:-1])
    with pytest.raises(OSError, match=rf"log.gz exists, but has {SIZE - 1:,} bytes, expected {SIZE:,};"):
        download(section_of(server, "good"), tmp_path)
    assert (tmp_path / "log.gz").read_bytes() == CONTENT[:-1]


@pytest.fixture(name="data")
def data_fixture(tmp_path, server):
    path = tmp_path / "data.yaml"
    path.write_text(f"download:\n  file: log.gz\n  terms: Be kind.\n  sources: {{{server.url('good')}: {SIZE}}}\n")
    return path


def test_the_command_shows_the_terms_and_asks(tmp_path, server, data, capsys, monkeypatch):
    (tmp_path / "out").mkdir()
    command = ["download", str(tmp_path / "out"), "--data", str(data)]
    assert main(command) == 2
    assert (
        capsys.readouterr().err
        == "Be kind.\nerror: the terms above must be accepted first; if you do, give --accept-terms\n"
    )
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, status in (("no", 2), ("yes", 0)):
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        assert main(command) == status
        assert (tmp_path / "out" / "log.gz").exists() == (status == 0)
    capsys.readouterr()
    assert main([*command, "--accept-terms"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'log.gz'}\n"
    assert len(server.asked) == 1  # it was there already


def test_criteos_file_names_addresses(pytestconfig):
    options = download_module.read_download_section(pytestconfig.rootpath / "configs" / "data" / "criteo.yaml")
    assert options.file == "dac.tar.gz"
    assert "Criteo" in options.terms
    assert len(options.sources) >= 2
    with pytest.raises(ValueError, match=r"avazu.yaml does not name an address of its log"):
        download_module.read_download_section(pytestconfig.rootpath / "configs" / "data" / "avazu.yaml")
