"""`python -m app serve`: answer requests for scores over HTTP with a bundle. `python -m app.cli.serve` does the same
where MindSpore is not installed.
"""

from __future__ import annotations

from common.signals import die_quietly

# From here on, Ctrl-C ends the process silently. During the imports below, which take a moment, it would otherwise
# print a traceback.
if __name__ == "__main__":
    die_quietly()

import argparse
import logging
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from app.cli.predict import main
from app.scoring.bundle_folder import MANIFEST, read_manifests, short
from app.serving.options import Limits, ServerOptions, host_name
from app.serving.processes import serve
from app.serving.statement import Statement
from common.arguments import add_shared
from common.console import log_with_times
from common.packages import require
from common.process import cpu_quota

log = logging.getLogger("app")

Options = TypeVar("Options", Limits, ServerOptions)
NEWEST = "newest"  # Value of --version that removes the pin (the version in current.json), so that the newest serves.
_LIMITS = {
    "max_batch": "rows that are scored at once",
    "max_delay_ms": "time that a request waits for others to be scored with it",
    "max_queue": "maximum number of waiting requests; more are refused",
    "max_wait_ms": "maximum time for scoring the waiting requests; if it takes longer, new requests are refused",
    "deadline_ms": "maximum time that a request waits; a request can shorten it with X-Timeout-Ms",
    "max_rows": "maximum number of rows in a request",
    "max_body_mib": "maximum size of a request in MiB",
}


def add_parser(commands: Any) -> None:
    """Add the command `serve` with its arguments to the parser of `python -m app`."""
    add_arguments(commands.add_parser("serve", help="score rows over HTTP with a bundle, or the newest of a folder"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command `serve` to `parser`."""
    parser.add_argument(
        "path", type=Path, metavar="BUNDLE", help="bundle written by `export`, or folder of bundles to watch"
    )
    parser.add_argument("--name", help="name of the model in URLs (name of the folder)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (8000)")
    parser.add_argument("--admin-port", type=int, metavar="PORT", help="serve administration on this port only")
    parser.add_argument("--admin-host", default="127.0.0.1", help="address of that port (127.0.0.1)")
    parser.add_argument(
        "--allowed-hosts",
        type=lambda text: tuple(host_name(host) for host in text.split(",")),
        default=(),
        metavar="HOST[,HOST]",
        help="values of the header Host to accept, * for any (names of this machine, if only it can connect)",
    )
    parser.add_argument(
        "--drain-seconds",
        type=float,
        default=0.0,
        metavar="S",
        help="time to keep answering after SIGTERM while reporting not ready (0)",
    )
    add_shared(parser, "--workers", default=1, help="number of processes (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads per process for the tower (1)")
    parser.add_argument(
        "--watch-seconds", type=float, default=0.5, metavar="S", help="time between checks of the folder (0.5)"
    )
    parser.add_argument("--version", help="version in the folder to pin, or newest to remove the pin (unchanged)")
    parser.add_argument("--state", type=Path, metavar="DIR", help="folder for current.json with the pin (BUNDLE)")
    parser.add_argument(
        "--access-log", choices=["json"], help="write a line of JSON to standard output for each request (none)"
    )
    parser.add_argument(
        "--log-requests",
        type=float,
        metavar="SHARE",
        help="share of the requests that are logged (1 with --access-log, otherwise 0)",
    )
    for limit in fields(Limits):
        kind, default = type(limit.default), limit.default
        flag = f"--{limit.name.replace('_', '-')}"
        parser.add_argument(flag, type=kind, default=default, metavar="N", help=f"{_LIMITS[limit.name]} ({default:g})")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command: serve until SIGTERM or Ctrl-C, and return the exit status."""
    require("httptools", "msgspec", "onnxruntime", "prometheus_client", "starlette", "uvicorn", "uvloop")
    for name in ("workers", "threads", "max_batch", "max_queue", "max_rows", "max_body_mib", "watch_seconds"):
        if getattr(arguments, name) <= 0:
            raise ValueError(f"--{name.replace('_', '-')} must be above 0, found {getattr(arguments, name)}")
    share = float(arguments.access_log is not None) if arguments.log_requests is None else arguments.log_requests
    if not 0 <= share <= 1:
        raise ValueError(f"--log-requests must be a share, 0 … 1; found {share}")
    for name, port in (("--port", arguments.port), ("--admin-port", arguments.admin_port or 0)):
        if not 0 <= port < 65536:
            raise ValueError(f"{name} must be 0 … 65535, found {port}")
    if not 0 <= arguments.drain_seconds < 3600:
        raise ValueError(f"--drain-seconds must be 0 … 3600, found {arguments.drain_seconds}")
    if not arguments.path.exists():
        raise FileNotFoundError(f"{arguments.path} is not there; give a bundle of `export`, or a folder of bundles")
    name = arguments.name or arguments.path.resolve().name
    name, limits = re.sub(r"[^A-Za-z0-9._-]", "-", name), _options(Limits, arguments)
    options = _options(ServerOptions, arguments, name=name, logged_share=share, limits=limits)
    if arguments.version:
        _pin(options, arguments.version)
    log_with_times()
    if quota := cpu_quota()[1]:
        log.info("workers: %d, threads of each: %d%s", options.workers, options.threads, quota)
    return serve(options)


def _options(kind: type[Options], arguments: argparse.Namespace, **named: Any) -> Options:
    """Create and return an object of the options class `kind`. Its fields get the values in `named`, or else those of
    the command's arguments with the same name.
    """
    names = [field.name for field in fields(kind) if field.name not in named]
    return kind(**{name: getattr(arguments, name) for name in names}, **named)


def _pin(options: ServerOptions, version: str) -> None:
    """Pin the version that the option --version names: write it into current.json before the service starts. "newest"
    removes the pin. Raise ValueError if the folder of bundles has no such version.
    """
    if (options.path / MANIFEST).is_file():
        raise ValueError(f"--version is for a folder of bundles; {options.path} is one bundle")
    versions = {short(manifest.version): folder.name for folder, manifest in read_manifests(options.path).items()}
    if version not in (NEWEST, *versions):
        versions_text = ", ".join(f"{version} ({name})" for version, name in versions.items())
        raise ValueError(f"--version {version}: {options.path} has no such version; it has {versions_text or 'none'}")
    Statement(options).write(None if version == NEWEST else version)


if __name__ == "__main__":
    sys.exit(main(add_arguments, "app.cli.serve"))
