"""Define the options of the HTTP service on its command line, and its limits on requests."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

ADMIN_PATHS = ("/v1/pin", "/v1/unpin", "/v1/rollback")
# Number of bytes of shared memory in which a worker counts the requests of the last two minutes.
RECENT_BYTES = 1 << 14


@dataclass(frozen=True)
class Limits:
    """Bounds on requests and on the work of one worker process."""

    # A batch (requests that are scored together) is full when its requests have this many rows.
    max_batch: int = 256
    # Time that the first request of a batch waits for others to join it. With 0, it does not wait.
    max_delay_ms: float = 0.0
    # Maximum number of requests that wait in one queue. If the queue is full, new requests are refused.
    max_queue: int = 256
    # A new request is refused if it would have to wait longer than this, as estimated from the times of recent batches.
    max_wait_ms: float = 15.0
    # Maximum time from the arrival of a request's headers until its scoring begins. A request can set a shorter time
    # with the header x-timeout-ms.
    deadline_ms: float = 1000.0
    max_rows: int = 10_000  # Maximum number of rows in a request.
    max_body_mib: int = 64  # Maximum size of the body of a request.


@dataclass(frozen=True)
class ServerOptions:
    """Options of the HTTP service, as given on its command line: bundles, addresses, processes, logging and limits."""

    path: Path  # A bundle, or a folder of bundles from which the newest or the pinned version serves.
    name: str  # Name of the model in URLs, such as /v2/models/NAME/infer.
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1  # Number of processes that answer requests.
    threads: int = 1  # Number of onnxruntime's threads in each worker.
    watch_seconds: float = 0.5  # Time in seconds between two checks whether the folder `path` has newer bundles.
    # Folder of the file current.json, which says which version must serve. If it is None, the file is in the folder
    # `path`.
    state: Path | None = None
    logged_share: float = 0.0  # Share of the requests that are written to the access log, from 0 to 1.
    limits: Limits = field(default_factory=Limits)
    # Time that the service keeps answering requests after SIGTERM. It answers readiness checks with status 503 in this
    # time, so that no new clients are sent to it.
    drain_seconds: float = 0.0
    # Separate port for the paths of administration (ADMIN_PATHS), which are then not available on `port`. If it is
    # None, these paths are available on `port`.
    admin_port: int | None = None
    admin_host: str = "127.0.0.1"  # Address that the service listens on for `admin_port`.
    # Values of the header Host that are accepted. "*" accepts any value. If it is empty, the rule in the docstring of
    # `allows` decides.
    allowed_hosts: tuple[str, ...] = ()

    def allows(self, host: str, is_admin: bool, is_admin_port: bool) -> bool:
        """Return True if a request with the value `host` in its header Host may be answered. `is_admin` says if its
        path is in ADMIN_PATHS, and `is_admin_port` if it came to `admin_port`.

        A web page can make its own host name resolve to this machine and then send requests from a visitor's browser
        (DNS rebinding). If the service listens on a loopback address, Host must therefore be `localhost` or a loopback
        address. Otherwise any Host is accepted, except that administration needs `localhost` or a numeric address.
        """
        if self.allowed_hosts:
            return host_name(host) in self.allowed_hosts or "*" in self.allowed_hosts
        address, bound = _address(host_name(host)), _address(self.admin_host if is_admin_port else self.host)
        if bound is not None and bound.is_loopback:
            return address is not None and address.is_loopback
        return address is not None or not is_admin


def host_name(host: str) -> str:
    """Return the host name or IP address in the value of a header Host, in lower case, without the port and the
    brackets of an IPv6 address.
    """
    match = re.fullmatch(r"(\[.*\]|[^:]*)(:\d*)?", host.lower())
    return match[1].strip("[]") if match else host.lower()


def _address(name: str) -> IPv4Address | IPv6Address | None:
    with suppress(ValueError):
        return ip_address("127.0.0.1" if name == "localhost" else name)
    return None
