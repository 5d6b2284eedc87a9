"""`download`: get a data set's log from the addresses in its file in configs/data.

Addresses are tried in turn. Received bytes stay in FILE.partial. A range request resumes the download, now or by the
same command later, if the server still has the same file. FILE appears when it is complete and checked.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import json
import logging
import re
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import settings
from common.console import progress_bar
from common.files import make_folder, sync_folder
from data_prep.options.prepare_options import DOWNLOAD_SECTION

_READ_BYTES = 1 << 20
_STALLED_SECONDS = 60.0
_ATTEMPTS = 5  # at an address, in a row, without a new byte
_PAUSE_SECONDS = 1.0  # before the second attempt; doubled each time
_GZIP_MAGIC = b"\x1f\x8b"
_NOTHING_THERE = http.client.REQUESTED_RANGE_NOT_SATISFIABLE
_RETRIED = (408, 429, 500, 502, 503, 504)  # temporary HTTP statuses

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DownloadOptions:
    """The section `download` of a data set's file."""

    file: str = ""
    terms: str = ""
    sources: dict[str, int] = field(default_factory=dict)  # address: size in bytes, 0 if sha256 is known instead
    sha256: str = ""  # of the file

    def __post_init__(self) -> None:
        for address, size in self.sources.items():
            if not address.startswith(("http://", "https://")):
                raise ValueError(f"sources: {address!r} is no http or https address")
            if size < 0 or (size == 0 and not self.sha256):
                raise ValueError(
                    f"sources: the size of {address} is {size}, so a part of the file would pass for all of it; give "
                    "its size in bytes, or the file's sha256"
                )
        if self.sha256 and re.fullmatch("[0-9A-Fa-f]{64}", self.sha256) is None:
            raise ValueError(f"sha256 must be 64 hex digits; found {self.sha256!r}")


class Refused(Exception):
    """Raised if an address serves nothing, or another file: the next address is tried."""


class _BrokenOff(Exception):
    """Raised if the connection ended before the file did: the same address is tried again."""


def read_download_options(data_path: Path) -> DownloadOptions:
    """Read the section `download` of a data set's file. Raises ValueError if it names no addresses."""
    section: Any = settings.read_yaml(data_path).get(DOWNLOAD_SECTION, {})
    options = settings.merge(DownloadOptions(), section, where=f"{data_path}, {DOWNLOAD_SECTION}")
    if not options.sources or not options.file:
        raise ValueError(f"{data_path} does not name an address of its log (section {DOWNLOAD_SECTION})")
    return options


def accept_terms(terms: str, accepted: bool) -> None:
    """Print the terms, and ask unless they are `accepted` already. Raises ValueError if they are not."""
    print(terms.strip(), file=sys.stderr)
    if accepted:
        return
    if not sys.stdin.isatty():
        raise ValueError("the terms above must be accepted first; if you do, give --accept-terms")
    if input("Do you accept these terms? (yes/no) ").strip().lower() not in ("yes", "y"):
        raise ValueError("the terms were not accepted; nothing was downloaded")


def download(options: DownloadOptions, output: Path) -> Path:
    """Download the file to `output`, or into it if it is a folder; return its path.

    Raises OSError if no address serves it or the disk is full; received bytes are kept.
    """
    path = output / options.file if output.is_dir() else output
    if path.exists():
        found, sizes = path.stat().st_size, set(options.sources.values()) - {0}
        if sizes and path.is_file() and found not in sizes:
            raise OSError(
                f"{path} exists, but has {found:,} bytes, expected {' or '.join(f'{size:,}' for size in sizes)}; "
                "remove it, or give another output"
            )
        log.info("%s exists already", path)
        return path
    make_folder(path.parent)
    partial = _Partial(path)
    refusals = []
    for address in sorted(options.sources, key=lambda address: address != partial.state.get("address")):
        try:
            _get(address, options.sources[address], partial)
            _check_content(partial, path.name, options.sha256)
        except Refused as refusal:
            refusals.append(f"{address}: {refusal}")
            log.warning("%s", refusals[-1])
            continue
        partial.finish()
        return path
    listed = "\n".join(refusals)
    raise OSError(f"no address served {path.name}:\n{listed}\nDownload it by hand, and give it to prepare as the input")


class _Partial:
    """Received bytes and their origin: FILE.partial and FILE.partial.json."""

    def __init__(self, path: Path) -> None:
        self._finished_path = path
        self.path = path.with_name(path.name + ".partial")
        self._state_path = path.with_name(path.name + ".partial.json")
        self.state: dict[str, Any] = {}
        try:
            state = json.loads(self._state_path.read_text(encoding="utf-8"))
            self.state = state if isinstance(state, dict) else {}
        except FileNotFoundError:
            if self.path.is_symlink() or self.size:
                raise FileExistsError(
                    f"{self.path} is in the way: there is no {self._state_path.name} beside it, so it is not "
                    "this program's; remove it or give another output"
                ) from None
        except ValueError:  # damaged: start over
            pass

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def begin(self, **state: Any) -> None:
        """Start over."""
        self.state = state
        self._state_path.write_text(json.dumps(state), encoding="utf-8")
        self.path.write_bytes(b"")

    def discard(self) -> None:
        self.path.unlink()
        self._state_path.unlink()
        self.state = {}

    def finish(self) -> None:
        sync_folder(self.path)
        self.path.replace(self._finished_path)
        sync_folder(self.path.parent)  # before the state goes: a crash leaves the file or what is needed to resume
        self._state_path.unlink()


def _get(address: str, size: int, partial: _Partial) -> None:
    """Download the file from an address, with as many attempts as it takes while they bring new bytes."""
    failures, reached = 0, partial.size
    while True:
        try:
            _attempt(address, size, partial)
            return
        except _BrokenOff as error:
            failures = 0 if partial.size > reached else failures + 1
            reached = max(reached, partial.size)  # starting over brings no new bytes either
            if failures == _ATTEMPTS:
                raise Refused(f"{error}, {_ATTEMPTS} times in a row") from error
            log.info("%s; trying again", error)
            time.sleep(_PAUSE_SECONDS * 2**failures)


def _attempt(address: str, size: int, partial: _Partial) -> None:
    validator = partial.state.get("validator") if partial.state.get("address") == address else None
    with _ask(address, partial.size, validator) as answer:
        total = _check_answer(answer, address, size, partial)
        folder = partial.path.parent
        needed, free = total - partial.size, shutil.disk_usage(folder).free
        if needed > free:
            raise OSError(f"no room for {partial.path.name}: {needed:,} more bytes needed in {folder}, {free:,} free")
        if answer.status != _NOTHING_THERE:
            _append(answer, total, partial.path)
    if partial.size < total:
        raise _BrokenOff(f"the connection ended after {partial.size:,} of {total:,} bytes")
    if partial.size > total:
        partial.discard()
        raise Refused(f"served more than the expected {total:,} bytes")


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to an address whose content others could change."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Return the redirected request. Raises Refused."""
        allowed = ("https://",) if req.full_url.startswith("https://") else ("https://", "http://")
        if not newurl.startswith(allowed):
            raise Refused(f"leads to {newurl}, which is no {' or '.join(allowed)} address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@functools.cache
def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_SafeRedirects)


@contextmanager
def _ask(address: str, first: int, validator: str | None) -> Iterator[Any]:
    """Request the bytes from `first` on; yield the response, or the HTTPError of status _NOTHING_THERE."""
    headers = {"User-Agent": "wide-deep-data-prep", "Accept-Encoding": "identity"}
    if first:
        headers["Range"] = f"bytes={first}-"
        if validator:  # the server sends the whole file if it has changed
            headers["If-Range"] = validator
    try:
        request = urllib.request.Request(address, headers=headers)
        with _opener().open(request, timeout=_STALLED_SECONDS) as answer:
            yield answer
    except urllib.error.HTTPError as error:
        if error.code == _NOTHING_THERE and first:
            yield error
        elif error.code in _RETRIED:
            raise _BrokenOff(f"HTTP status {error.code} {error.reason}") from error
        else:
            raise Refused(f"HTTP status {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _BrokenOff(f"no connection ({error.reason})") from error
    except (http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
        raise _BrokenOff(f"the connection broke off ({error})") from error


def _check_answer(answer: Any, address: str, size: int, partial: _Partial) -> int:
    """Return the size of the whole file, from the server or else `size`; start over if the answer is not the rest.

    Raises Refused if neither is known.
    """
    length = answer.headers.get("Content-Length") if answer.status == http.client.OK else None
    span = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+)", answer.headers.get("Content-Range", ""))
    total = int(span[2]) if span else int(length) if length is not None else size
    if size and total != size:  # bytes from another address stay
        raise Refused(f"serves {total:,} bytes, expected {size:,}")
    if not total:
        raise Refused("does not send the file's size")
    if answer.status == http.client.OK:
        if partial.size:
            log.info("the server sends the file from its start: the file has changed, or the server cannot send parts")
        tag: str | None = answer.headers.get("ETag")
        is_strong = tag and not tag.startswith("W/")
        version = tag if is_strong else answer.headers.get("Last-Modified")  # of the file
        partial.begin(address=address, validator=version, total=total)
        return total
    # Files of the same size at two addresses count as the same; a gzip file's own checksum decides in the end.
    is_rest = span is not None and total == partial.state.get("total") and int(span[1] or partial.size) == partial.size
    if not is_rest or (answer.status == _NOTHING_THERE and total != partial.size):
        partial.begin()
        raise _BrokenOff("the server's file is not the one that was partly received; starting over")
    return total


def _append(answer: Any, total: int, path: Path) -> None:
    """Append the answer's bytes to the file, at most a block more than `total` bytes in all."""
    with (
        path.open("ab") as file,
        progress_bar(total=total, initial=file.tell(), desc="download", unit="B", unit_scale=True) as bar,
    ):
        while file.tell() <= total and (block := answer.read(_READ_BYTES)):
            file.write(block)
            bar.update(len(block))


def _check_content(partial: _Partial, name: str, sha256: str) -> None:
    """Raise Refused, and remove the file, if it is not gzip despite its name, or has another SHA-256."""
    with partial.path.open("rb") as file:
        start = file.read(len(_GZIP_MAGIC))
        file.seek(0)
        found = hashlib.file_digest(file, "sha256").hexdigest() if sha256 else ""
    wrong = ""
    if name.endswith((".gz", ".tgz")) and start != _GZIP_MAGIC:
        wrong = f"served no gzip file: it starts with {start!r}, as a web page might"
    elif found != sha256.lower():
        wrong = f"served a file with SHA-256 {found}, expected {sha256}"
    if wrong:
        partial.discard()
        raise Refused(wrong)
