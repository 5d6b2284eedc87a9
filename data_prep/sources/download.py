"""Download the log of a data set with curl, from the addresses in the data set's file in configs/data.

The addresses are tried in turn. Received bytes are written to FILE.partial; after an interruption, the same command
appends the missing bytes. FILE.partial is renamed to FILE when its size and checksum have been checked.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import settings, yaml_settings
from common.files import make_folder, sync_folder
from common.text import show
from data_prep.options.options_file import DOWNLOAD_SECTION

_ATTEMPTS = 5  # After this number of attempts in a row that bring no new byte, an address is given up.
_PAUSE_SECONDS = 1.0  # Pause before the second attempt. It doubles with each further attempt.
_GZIP_MAGIC = b"\x1f\x8b"
_NOTHING_LEFT = 416  # HTTP status of a request for bytes after the end of the file.
_RETRIED = (408, 429, 500, 502, 503, 504)  # HTTP statuses of temporary errors.
# Exit codes of curl. curl's own option --retry is not used, because it discards the bytes that a failed attempt has
# received.
_HTTP_ERROR, _NOT_WRITTEN, _NO_RANGES = 22, 23, 33
# Exit codes of curl for errors that no further attempt can mend: protocol, address, redirects, certificate, size.
_FINAL = (1, 3, 47, 60, 63)
_STALLED = ("--connect-timeout", "60", "--speed-limit", "1", "--speed-time", "60")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DownloadSection:
    """The section `download` of a data set's YAML file: the addresses of the log, its terms of use and its checksum."""

    file: str = ""
    terms: str = ""
    # Address of the file -> its size in bytes, or 0 if the size is unknown and `sha256` is given instead.
    sources: dict[str, int] = field(default_factory=dict)
    sha256: str = ""  # SHA-256 of the file.

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
    """Raised if an address does not serve the log: the download failed, or the file has a wrong size or content.

    `download` then tries the next address.
    """


def read_download_section(data_path: Path) -> DownloadSection:
    """Read the section `download` of a data set's YAML file. Raise ValueError if it lacks an address or a file name."""
    content: Any = yaml_settings.read_yaml(data_path).get(DOWNLOAD_SECTION, {})
    section = settings.merge(DownloadSection(), content, where=f"{data_path}, {DOWNLOAD_SECTION}")
    if not section.sources or not section.file:
        raise ValueError(f"{data_path} does not name an address of its log (section {DOWNLOAD_SECTION})")
    return section


def accept_terms(terms: str, accepted: bool) -> None:
    """Print the terms of use of a log. Unless `accepted` is true, ask the user in the terminal to accept the terms.

    Raise ValueError if the user does not accept them, or if there is no terminal to ask in.
    """
    show(terms.strip(), file=sys.stderr)
    if accepted:
        return
    if not sys.stdin.isatty():
        raise ValueError("the terms above must be accepted first; if you do, give --accept-terms")
    if input("Do you accept these terms? (yes/no) ").strip().lower() not in ("yes", "y"):
        raise ValueError("the terms were not accepted; nothing was downloaded")


def download(section: DownloadSection, output: Path) -> Path:
    """Download the log of a data set to the path `output`, or into `output` if it is a folder. Return the file's path.

    A complete file that exists already is not downloaded again. Raise OSError if the existing file has a wrong size, if
    no address serves the file, or if the disk is full. Received bytes are kept in FILE.partial.
    """
    path = output / section.file if output.is_dir() else output
    if path.exists():
        num_bytes, sizes = path.stat().st_size, set(section.sources.values()) - {0}
        if sizes and path.is_file() and num_bytes not in sizes:
            raise OSError(
                f"{path} exists, but has {num_bytes:,} bytes, expected {' or '.join(f'{size:,}' for size in sizes)}; "
                "remove it, or give another output"
            )
        log.info("%s exists already", path)
        return path
    make_folder(path.parent)
    partial = path.with_name(f"{path.name}.partial")
    refusals = []
    for address, size in section.sources.items():
        try:
            _fetch(address, size, partial)
            _check_content(partial, path.name, size, section.sha256)
        except Refused as refusal:
            refusals.append(f"{address}: {refusal}")
            log.warning("%s", refusals[-1])
            continue
        sync_folder(partial)
        partial.replace(path)
        sync_folder(path.parent)
        return path
    listed = "\n".join(refusals)
    raise OSError(f"no address served {path.name}:\n{listed}\nDownload it by hand, and give it to prepare as the input")


def _fetch(address: str, size: int, partial: Path) -> None:
    """Download the bytes of the file at `address` that the file `partial` lacks, and append them to `partial`.

    A failed attempt is repeated until `_ATTEMPTS` in a row have brought no new byte. `size` is the expected size of the
    file, or 0 if it is unknown. Raise Refused if the address does not serve the file, OSError if `partial` cannot be
    written.
    """
    failures, reached = 0, _size(partial)
    while not size or _size(partial) != size:
        if size and _size(partial) > size:
            partial.unlink()
        _check_room(partial, size)
        status, http_status, message = _curl(address, size, partial)
        if (status == 0 and _size(partial) >= size) or http_status == _NOTHING_LEFT:
            return
        if status == _NOT_WRITTEN:
            raise OSError(f"{partial} cannot be written: {message}; the bytes so far are kept")
        if status in _FINAL or (status == _HTTP_ERROR and http_status not in _RETRIED):
            raise Refused(message)
        if status == _NO_RANGES:
            log.info("the server sends the file from its start")
            partial.unlink()
        # If the server does not announce the file's length, curl reports no error when the connection ends early.
        message = message or f"the connection ended after {_size(partial):,} bytes"
        failures = 0 if _size(partial) > reached else failures + 1
        # If the download had to start over from byte 0, bytes count as new only after the largest size reached before.
        reached = max(reached, _size(partial))
        if failures == _ATTEMPTS:
            raise Refused(f"{message}, {_ATTEMPTS} times in a row")
        log.info("%s; trying again", message)
        time.sleep(_PAUSE_SECONDS * 2**failures)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _check_room(partial: Path, size: int) -> None:
    needed, free = size - _size(partial), shutil.disk_usage(partial.parent).free
    if needed > free:
        raise OSError(f"no room for {partial.name}: {needed:,} more bytes needed in {partial.parent}, {free:,} free")


def _curl(address: str, size: int, partial: Path) -> tuple[int, int, str]:
    """Run curl once to download more of a file. Return its exit code, the HTTP status, and the error message.

    An https address is never redirected to http, where others could change the content.
    """
    if shutil.which("curl") is None:
        raise FileNotFoundError("download needs the program curl, which is not installed: apt-get install curl")
    protocols = "=https" if address.startswith("https://") else "=http,https"
    process = subprocess.run(  # noqa: S603
        [
            *("curl", "--fail", "--location", "--proto", protocols, "--proto-redir", protocols, *_STALLED),
            *("--progress-bar" if sys.stderr.isatty() else "--silent", "--write-out", "%{http_code} %{errormsg}"),
            *(("--max-filesize", str(size)) if size else ()),
            *("--continue-at", "-", "--output", partial, "--", address),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    http_status, _, message = process.stdout.partition(" ")
    return process.returncode, int(http_status), message


def _check_content(partial: Path, name: str, size: int, sha256: str) -> None:
    """Check the size and the SHA-256 of a downloaded file, as far as they are known, and the first bytes of a .gz file.

    If one is wrong, remove the file and raise Refused.
    """
    if not partial.exists():
        raise Refused("served nothing")
    with partial.open("rb") as file:
        start = file.read(len(_GZIP_MAGIC))
        file.seek(0)
        actual = hashlib.file_digest(file, "sha256").hexdigest() if sha256 else ""
    wrong = ""
    if size and _size(partial) != size:
        wrong = f"served {_size(partial):,} bytes, expected {size:,}"
    elif name.endswith((".gz", ".tgz")) and start != _GZIP_MAGIC:
        wrong = f"served no gzip file: it starts with {start!r}, as a web page might"
    elif actual != sha256.lower():
        wrong = f"served a file with SHA-256 {actual}, expected {sha256}"
    if wrong:
        partial.unlink()
        raise Refused(wrong)
