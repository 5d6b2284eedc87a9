"""Two hosts with names and addresses of their own, which are network namespaces of this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# `agent ADDRESS COMMAND...` runs a command on a host, as ssh does.
AGENT = """#!/bin/sh
number=${1##*.1}
shift
exec nsenter --net=/run/netns/%s$number unshare --uts sh -c "hostname %s$number; exec sh -c '$*'"
"""


def call(*words: object) -> str:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True).stdout


class Hosts:
    """Two network namespaces, joined to this machine by a bridge. `agent` runs a command on one of them.

    They exist during a `with` block. Entering it raises PermissionError without root or network namespaces.
    """

    def __init__(self, folder: Path) -> None:
        number = os.getpid() % 250
        self.folder, self.prefix, self.bridge = folder, f"wd{number}h", f"wd{number}"
        self.address, self.agent, self.file = f"10.213.{number}", folder / "agent", folder / "hosts"
        self.names = [f"{self.prefix}{host}" for host in (1, 2)]
        self.addresses = [f"{self.address}.1{host}" for host in (1, 2)]
        self.file.write_text("".join(f"{address} slots=1\n" for address in self.addresses))
        self.agent.write_text(AGENT % (self.prefix, self.prefix))
        self.agent.chmod(0o755)
        self.environment = {"HOSTFILE": str(self.file), "PRTE_MCA_plm_ssh_agent": str(self.agent)}

    def __enter__(self) -> Hosts:
        try:
            call("ip", "link", "add", self.bridge, "type", "bridge")
            call("ip", "address", "add", f"{self.address}.1/24", "dev", self.bridge)
            call("ip", "link", "set", self.bridge, "up")
            for name, address in zip(self.names, self.addresses, strict=True):
                call("ip", "netns", "add", name)
                call("ip", "link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0", "netns", name)
                call("ip", "link", "set", f"{name}v", "master", self.bridge, "up")
                call("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
                call("ip", "-n", name, "link", "set", "eth0", "up")
                call("ip", "-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            if os.geteuid() == 0 and "File exists" in getattr(error, "stderr", ""):
                raise
            reason = getattr(error, "stderr", error)
            raise PermissionError(f"hosts need root and network namespaces: {reason}") from error
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            self.kill(name)
            # The system removes the links of a deleted namespace later, and their names are needed again at once.
            subprocess.run(["ip", "link", "delete", f"{name}v"], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", self.bridge], capture_output=True, check=False)

    def pids(self, name: str) -> list[int]:
        done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        return [int(pid) for pid in done.stdout.split()]

    def kill(self, name: str) -> None:
        subprocess.run(["kill", "-9", *map(str, self.pids(name))], capture_output=True, check=False)

    def set_link(self, name: str, state: str) -> None:
        call("ip", "link", "set", f"{name}v", state)

    def isolate(self, on: bool) -> None:
        """Let the hosts reach this machine but not each other, or let them reach each other again."""
        for name in self.names:
            call("ip", "link", "set", f"{name}v", "type", "bridge_slave", "isolated", "on" if on else "off")

    def limit(self, rate: str | None) -> None:
        """Limit what each host sends and receives to `rate` bits per second; None removes the limit."""
        for name in self.names:
            for place in (["-n", name], "eth0"), ([], f"{name}v"):
                subprocess.run(
                    ["tc", *place[0], "qdisc", "delete", "dev", place[1], "root"], capture_output=True, check=False
                )
                if rate:
                    words = ["rate", rate, "burst", "512kb", "latency", "100ms"]
                    call("tc", *place[0], "qdisc", "add", "dev", place[1], "root", "tbf", *words)

    def sent_bytes(self) -> int:
        """Return the bytes that both hosts together have sent so far, by the counters of their interfaces.

        What a host sends is what the other end of its link receives.
        """
        counters = (Path(f"/sys/class/net/{name}v/statistics/rx_bytes") for name in self.names)
        return sum(int(counter.read_text()) for counter in counters)
