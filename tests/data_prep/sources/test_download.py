import email
import gzip
import hashlib
import io
import json
import re
import threading
import urllib.request
import urllib.response
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from data_prep.__main__ import main
from data_prep.sources import download as download_module
from data_prep.sources.download import DownloadOptions, download

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


def options_of(server, *words, size=SIZE, sha256=""):
    sha256 = sha256 or ("" if size else SHA256)
    return DownloadOptions("log.gz", "terms", {server.url(word): size for word in words}, sha256)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_is_synced_before_the_state_goes(tmp_path, server, monkeypatch):
    seen = []
    monkeypatch.setattr(download_module, "sync_folder", lambda path: seen.append(path.is_dir() and names(path)))
    download(options_of(server, "good"), tmp_path)
    assert seen == [False, ["log.gz", "log.gz.partial.json"]]  # the file itself, then its name


@pytest.mark.parametrize(
    ("words", "size", "num_asked"),
    [
        (["good"], SIZE, 1),
        (["good"], 0, 1),
        (["endless"], SIZE, 1),
        (["endless", "good"], 0, 2),
        (["more-endless", "good"], SIZE, 2),
        (["endless-breaks"], SIZE, 4),
        (["redirect-good"], SIZE, 2),
        (["busy"], SIZE, 3),
        (["missing", "page", "short", "good"], SIZE, 4),
        (["missing", "page", "good"], 0, 3),
        (["breaks"], SIZE, 4),
        (["breaks"], 0, 4),
        (["dead", "good"], SIZE, 7),
    ],
)
def test_the_file_comes_whole(tmp_path, server, words, size, num_asked):
    path = download(options_of(server, *words, size=size), tmp_path)
    assert path == tmp_path / "log.gz"
    assert path.read_bytes() == CONTENT
    assert names(tmp_path) == ["log.gz"]
    assert len(server.asked) == num_asked


def test_broken_off_downloads_go_on_where_they_were(tmp_path, server):
    download(options_of(server, "breaks"), tmp_path / "mine.gz")
    assert [first for _, first in server.asked] == [0, 100_000, 200_000, 300_000]
    assert names(tmp_path) == ["mine.gz"]


def test_another_address_goes_on_with_the_part_of_the_first(tmp_path, server):
    assert download(options_of(server, "dead", "good"), tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == ("/good", 100_000)


def test_an_address_with_another_file_leaves_the_part_of_the_first(tmp_path, server):
    kept_part(tmp_path, server)
    with pytest.raises(OSError, match="short: serves"):
        download(options_of(server, "short"), tmp_path)
    assert (tmp_path / "log.gz.partial").read_bytes() == CONTENT[:100_000]


def test_a_server_that_ignores_ranges_begins_anew(tmp_path, server):
    with pytest.raises(OSError, match=r"whole-dead: the connection ended after 100,000 of .* bytes, 5 times in a row"):
        download(options_of(server, "whole-dead"), tmp_path)
    assert download(options_of(server, "whole-good"), tmp_path).read_bytes() == CONTENT


def kept_part(folder, server, words="dead"):
    with pytest.raises(OSError, match="no address served"):
        download(options_of(server, words), folder)
    assert names(folder) == ["log.gz.partial", "log.gz.partial.json"]
    server.asked.clear()


def test_what_has_come_is_kept_for_the_next_run(tmp_path, server):
    kept_part(tmp_path, server)
    assert (tmp_path / "log.gz.partial").read_bytes() == CONTENT[:100_000]
    assert download(options_of(server, "good"), tmp_path).read_bytes() == CONTENT
    assert server.asked == [("/good", 100_000)]


def test_a_file_that_changed_meanwhile_is_fetched_anew(tmp_path, server):
    kept_part(tmp_path, server)
    (tmp_path / "log.gz.partial").write_bytes(b"x" * 100_000)  # what the other version began with
    server.version = 2
    state = tmp_path / "log.gz.partial.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "address": server.url("good")}))
    assert download(options_of(server, "good"), tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_all_of_it_or_too_much(tmp_path, server):
    kept_part(tmp_path, server)
    (tmp_path / "log.gz.partial").write_bytes(CONTENT)
    assert download(options_of(server, "good"), tmp_path).read_bytes() == CONTENT
    assert server.asked == [("/good", SIZE)]
    (tmp_path / "log.gz").unlink()
    kept_part(tmp_path, server)
    (tmp_path / "log.gz.partial").write_bytes(CONTENT + b"x")
    assert download(options_of(server, "good"), tmp_path).read_bytes() == CONTENT


def test_the_checksum_is_checked(tmp_path, server):
    good = SHA256
    assert download(options_of(server, "good", sha256=good.upper()), tmp_path / "a.gz").exists()
    with pytest.raises(OSError, match=rf"served a file with SHA-256 {good}, expected {'0' * 64}"):
        download(options_of(server, "good", sha256="0" * 64), tmp_path / "b.gz")
    assert names(tmp_path) == ["a.gz"]


@pytest.mark.parametrize(
    ("words", "size", "message"),
    [
        ("missing", SIZE, "missing: HTTP status 404 Not Found"),
        ("short", SIZE, f"short: serves {SIZE - 7:,} bytes, expected {SIZE:,}"),
        ("short-endless", SIZE, f"short-endless: serves {SIZE - 7:,} bytes, expected {SIZE:,}"),
        ("more-endless", SIZE, f"served more than the expected {SIZE:,} bytes"),
        ("endless", 0, "does not send the file's size"),
        ("page", 0, "served no gzip file: it starts with b'<h'"),
    ],
)
def test_what_is_not_the_file_is_refused(tmp_path, server, words, size, message):
    with pytest.raises(OSError, match=rf"(?s)no address served log.gz:\n.*{message}.*\nDownload it by hand"):
        download(options_of(server, words, size=size), tmp_path)
    assert "log.gz" not in names(tmp_path)


def test_no_server_and_no_room_are_errors(tmp_path, server, monkeypatch):
    with pytest.raises(OSError, match=r"127.0.0.1:9/x: no connection \(.*refused\), 5 times in a row"):
        download(DownloadOptions("log.gz", "", {"http://127.0.0.1:9/x": 1}), tmp_path)
    monkeypatch.setattr(download_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    with pytest.raises(OSError, match=rf"no room for log.gz.partial: {SIZE:,} more bytes needed in .*, 1 free"):
        download(options_of(server, "good"), tmp_path)


@pytest.mark.parametrize("url", ["http://a.example/log.gz", "ftp://a.example/log.gz"])
def test_no_redirect_leaves_https(url, monkeypatch, tmp_path):
    asked = []

    class Answers(urllib.request.HTTPSHandler):
        """A server behind https that leads elsewhere."""

        def https_open(self, request):
            asked.append(request.full_url)
            headers = email.message_from_string(f"Location: {url}\n")
            answer = urllib.response.addinfourl(io.BytesIO(), headers, request.full_url, 302)
            answer.msg = "Found"
            return answer

        def http_open(self, request):
            asked.append(request.full_url)

        ftp_open = http_open

    opener = download_module._opener.__wrapped__()
    opener.add_handler(Answers())
    opener.handle_open = {scheme: [Answers()] for scheme in ("https", "http", "ftp")}
    monkeypatch.setattr(download_module, "_opener", lambda: opener)
    with pytest.raises(OSError, match=rf"https://b.example/log.gz: leads to {url}, which is no https:// address"):
        download(DownloadOptions("log.gz", "", {"https://b.example/log.gz": SIZE}), tmp_path)
    assert asked == ["https://b.example/log.gz"]


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
        DownloadOptions("log.gz", "", sources, sha256)


def test_a_users_file_of_a_name_of_ours_stays(tmp_path, server):
    (tmp_path / "log.gz.partial").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"log.gz.partial is in the way: there is no log.gz.partial.json"):
        download(options_of(server, "good"), tmp_path)
    assert (tmp_path / "log.gz.partial").read_bytes() == b"mine" and names(tmp_path) == ["log.gz.partial"]
    (tmp_path / "log.gz.partial").unlink()
    (tmp_path / "log.gz").write_bytes(CONTENT[:-1])
    with pytest.raises(OSError, match=rf"log.gz exists, but has {SIZE - 1:,} bytes, expected {SIZE:,};"):
        download(options_of(server, "good"), tmp_path)


@pytest.mark.parametrize("state", ["[]", "3", "{", "\0"])
def test_a_damaged_state_begins_anew(tmp_path, server, state):
    kept_part(tmp_path, server)
    (tmp_path / "log.gz.partial.json").write_text(state)
    assert download(options_of(server, "good"), tmp_path).read_bytes() == CONTENT


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
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'out' / 'log.gz'}\n"
    assert len(server.asked) == 1  # it was there already


def test_criteos_file_names_addresses(pytestconfig):
    options = download_module.read_download_options(pytestconfig.rootpath / "configs" / "data" / "criteo.yaml")
    assert options.file == "dac.tar.gz"
    assert "Criteo" in options.terms
    assert len(options.sources) >= 2
    with pytest.raises(ValueError, match=r"avazu.yaml does not name an address of its log"):
        download_module.read_download_options(pytestconfig.rootpath / "configs" / "data" / "avazu.yaml")
