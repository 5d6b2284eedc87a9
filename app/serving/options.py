"""Options of the service, from the command line."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

ADMIN_PATHS = ("/v1/pin", "/v1/unpin", "/v1/rollback")
RECENT_BYTES = 1 << 14  # that a worker shares with the others: its requests of the last two minutes


@dataclass(frozen=True)
class Limits:
    """Bounds of what a process takes on."""

    max_batch: int = 256  # rows that are scored together. A request with more is scored alone
    max_delay_ms: float = 0.0  # that the first request of a batch waits for others
    max_queue: int = 256  # requests that wait
    max_wait_ms: float = 15.0  # A request is refused if scoring those before it takes longer
    deadline_ms: float = 1000.0  # of a request that waits. A request may shorten its own
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
    state: Path | None = None  # folder of the statement of what serves, in place of `path`
    logged_share: float = 0.0  # of the requests, in the access log
    limits: Limits = field(default_factory=Limits)
    drain_seconds: float = 0.0  # from SIGTERM on, in which the service is not ready and answers all the same
    admin_port: int | None = None  # of administration, which the public port then does not have
    admin_host: str = "127.0.0.1"
    allowed_hosts: tuple[str, ...] = ()  # in place of the rule of `allows`; "*" for any

    def allows(self, host: str, is_admin: bool, is_admin_port: bool) -> bool:
        """Return whether a request with this header Host is answered.

        A page from elsewhere can have its own name resolve to this machine, and then send what it likes. So if only
        this machine can reach the port, Host must name it. Administration is for `localhost` and addresses.
        """
        if self.allowed_hosts:
            return host_name(host) in self.allowed_hosts or "*" in self.allowed_hosts
        address, bound = _address(host_name(host)), _address(self.admin_host if is_admin_port else self.host)
        if bound is not None and bound.is_loopback:
            return address is not None and address.is_loopback
        return address is not None or not is_admin


def host_name(host: str) -> str:
    """Return the name or address in a header Host, in lower case, without its port and brackets."""
    match = re.fullmatch(r"(\[.*\]|[^:]*)(:\d*)?", host.lower())
    return match[1].strip("[]") if match else host.lower()


def _address(name: str) -> IPv4Address | IPv6Address | None:
    with suppress(ValueError):
        return ip_address("127.0.0.1" if name == "localhost" else name)
    return None
