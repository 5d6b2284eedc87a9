"""A Slurm cluster on two hosts of benchmarks/harness/hosts.py."""

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
