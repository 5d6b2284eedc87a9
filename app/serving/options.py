"""Options of the service, from the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """Bounds of what a process takes on."""

    max_batch: int = 256  # rows that are scored together; a request with more is scored alone
    max_delay_ms: float = 0.0  # that the first request of a batch waits for others
    max_queue: int = 256  # requests that wait
    max_wait_ms: float = 15.0  # for the requests before a new one to be scored; beyond it, that is refused
    deadline_ms: float = 1000.0  # of a request that waits; a request may shorten its own
    max_rows: int = 10_000  # of a request
    max_body_mib: int = 64


@dataclass(frozen=True)
class ServerOptions:
    """Options of the command line."""

    path: Path
    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    threads: int = 1  # of onnxruntime, a worker
    watch_seconds: float = 0.5
    logged_share: float = 0.0  # of the requests, in the log
    limits: Limits = field(default_factory=Limits)
