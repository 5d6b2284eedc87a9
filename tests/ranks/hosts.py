"""Two hosts with names and addresses of their own, which are network namespaces, and a Slurm cluster on them."""

import os
import shutil
import subprocess
import time

import pytest

from tests.programs import run_program

CONFIGURATION = """
ClusterName=test
SlurmctldHost={controller}({address}.1)
NodeName={names[0]} NodeHostname={names[0]} NodeAddr={address}.11 CPUs=2 RealMemory=1000
NodeName={names[1]} NodeHostname={names[1]} NodeAddr={address}.12 CPUs=2 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES OverSubscribe=YES
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={port}
SlurmdPort={next_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=60
"""

# `agent ADDRESS COMMAND...` runs a command on a host, as ssh does.
AGENT = """#!/bin/sh
number=${1##*.1}
shift
exec nsenter --net=/run/netns/%s$number unshare --uts sh -c "hostname %s$number; exec sh -c '$*'"
"""


def call(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True).stdout


class Hosts:
    """Two network namespaces, joined to this machine by a bridge. `agent` runs a command on one of them."""

    def __init__(self, folder):
        number = os.getpid() % 250
        self.folder, self.prefix, self.bridge = folder, f"wd{number}h", f"wd{number}"
        self.address, self.agent, self.file = f"10.213.{number}", folder / "agent", folder / "hosts"
        self.names = [f"{self.prefix}{host}" for host in (1, 2)]
        self.addresses = [f"{self.address}.1{host}" for host in (1, 2)]
        self.file.write_text("".join(f"{address} slots=1\n" for address in self.addresses))
        self.agent.write_text(AGENT % (self.prefix, self.prefix))
        self.agent.chmod(0o755)
        self.environment = {"HOSTFILE": str(self.file), "PRTE_MCA_plm_ssh_agent": str(self.agent)}

    def __enter__(self):
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
            pytest.skip(f"hosts need root and network namespaces: {getattr(error, 'stderr', error)}")
        return self

    def __exit__(self, *_):
        for name in self.names:
            self.kill(name)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", self.bridge], capture_output=True, check=False)

    def pids(self, name):
        done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        return [int(pid) for pid in done.stdout.split()]

    def kill(self, name):
        subprocess.run(["kill", "-9", *map(str, self.pids(name))], capture_output=True, check=False)

    def set_link(self, name, state):
        call("ip", "link", "set", f"{name}v", state)

    def isolate(self, on):
        """Let the hosts reach this machine but not each other, or let them reach each other again."""
        for name in self.names:
            call("ip", "link", "set", f"{name}v", "type", "bridge_slave", "isolated", "on" if on else "off")

    def limit(self, rate):
        """Limit what each host sends and receives to `rate` bits per second; None removes the limit."""
        for name in self.names:
            for place in (["-n", name], "eth0"), ([], f"{name}v"):
                subprocess.run(
                    ["tc", *place[0], "qdisc", "delete", "dev", place[1], "root"], capture_output=True, check=False
                )
                if rate:
                    words = ["rate", rate, "burst", "512kb", "latency", "100ms"]
                    call("tc", *place[0], "qdisc", "add", "dev", place[1], "root", "tbf", *words)


class Slurm:
    """A Slurm controller on this machine, and a daemon on each of two hosts. `run` calls a command of Slurm."""

    def __init__(self, hosts):
        if missing := [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]:
            pytest.skip(f"{', '.join(missing)} missing: apt-get install slurm-wlm munge")
        self.hosts, self.folder, self._started = hosts, hosts.folder, []
        port = 20_000 + 2 * (os.getpid() % 1000)
        values = {"controller": os.uname().nodename, "port": port, "next_port": port + 1}
        values |= {"address": hosts.address, "names": hosts.names, "folder": self.folder}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(**values))
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self):
        key, socket = self.folder / "munge.key", self.folder / "munge.socket"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.folder.chmod(0o755)
        files = [f"--{name}-file={self.folder}/munge.{name}" for name in ("pid", "log", "seed", "key")]
        self._start("munged", "--foreground", "--force", f"--socket={socket}", *files)
        self._start("slurmctld", "-D", "-L", self.folder / "slurmctld.log")
        for name, address in zip(self.hosts.names, self.hosts.addresses, strict=True):
            self._start(self.hosts.agent, address, "slurmd", "-D", "-N", name, "-L", self.folder / f"slurmd-{name}.log")
        end = time.monotonic() + 60
        while self.run("sinfo", "--noheader", "--format", "%t %D").strip() != "idle 2":
            assert time.monotonic() < end, self.run("sinfo", "-R")
            time.sleep(0.5)
        return self

    def __exit__(self, *_):
        for process in reversed(self._started):
            process.terminate()
        for process in self._started:
            process.wait(30)

    def _start(self, *words):
        log = (self.folder / "daemons.log").open("a")
        process = subprocess.Popen([str(word) for word in words], env=self.environment, stdout=log, stderr=log)
        self._started.append(process)

    def run(self, *words, cwd=None):
        done = run_program(*words, env=self.environment, cwd=cwd, status=None)
        return done.stdout + done.stderr
