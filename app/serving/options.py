"""Define the options of the service."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

ADMIN_PATHS = ("/v1/pin", "/v1/unpin", "/v1/rollback")
# Shared memory of a worker in which it counts the requests of the last two minutes.
RECENT_BYTES = 1 << 14


@dataclass(frozen=True)
class Limits:
    """Bounds on requests and on the work of a process."""

    # Rows that are scored together. A request with more rows is scored alone.
    max_batch: int = 256
    max_delay_ms: float = 0.0  # Time that the first request of a batch waits for others.
    max_queue: int = 256  # Number of waiting requests.
    # A request is refused if scoring the requests before it would take longer.
    max_wait_ms: float = 15.0
    # Maximum time that a request may wait. A request can set a shorter time.
    deadline_ms: float = 1000.0
    max_rows: int = 10_000  # Rows in a request.
    max_body_mib: int = 64


@dataclass(frozen=True)
class ServerOptions:
    """Options of the service's command line."""

    path: Path
    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    threads: int = 1  # Number of onnxruntime's threads in each worker.
    watch_seconds: float = 0.5
    # Folder of the statement of which version must serve. The default is `path`.
    state: Path | None = None
    logged_share: float = 0.0  # Share of the requests that are written to the access log.
    limits: Limits = field(default_factory=Limits)
    # Time after SIGTERM in which the service reports not to be ready, but still answers.
    drain_seconds: float = 0.0
    # Port for administration, which is then not available on the public port.
    admin_port: int | None = None
    admin_host: str = "127.0.0.1"
    # Accepted hosts, which replace the rule in `allows`. "*" accepts any host.
    allowed_hosts: tuple[str, ...] = ()

    def allows(self, host: str, is_admin: bool, is_admin_port: bool) -> bool:
        """Return True if a request with this value of the header Host is answered.

        A web page can make its own host name resolve to this machine and then send requests from a visitor's browser
        (DNS rebinding). If the port can only be reached from this machine, Host must therefore name this machine.
        Administration is only allowed for `localhost` and for numeric addresses.
        """
        if self.allowed_hosts:
            return host_name(host) in self.allowed_hosts or "*" in self.allowed_hosts
        address, bound = _address(host_name(host)), _address(self.admin_host if is_admin_port else self.host)
        if bound is not None and bound.is_loopback:
            return address is not None and address.is_loopback
        return address is not None or not is_admin


def host_name(host: str) -> str:
    """Return the name or address in a Host header, in lower case, without port and brackets."""
    match = re.fullmatch(r"(\[.*\]|[^:]*)(:\d*)?", host.lower())
    return match[1].strip("[]") if match else host.lower()


def _address(name: str) -> IPv4Address | IPv6Address | None:
    with suppress(ValueError):
        return ip_address("127.0.0.1" if name == "localhost" else name)
    return None
