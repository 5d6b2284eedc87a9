"""Host files, mpirun's options and its notices; whole jobs are in tests/ranks/."""

import io
import os
import re
import signal
import sys

import pytest

from app.distributed.mpirun import (
    STARTED,
    OutputFilter,
    check_num_processes,
    check_slots,
    explain,
    find_mpirun,
    mpirun_options,
    mpirun_variables,
    read_hosts,
    slurm_slots,
    supervise,
)

RULE = b"-" * 74 + b"\n"
CHATTER = b"[vm:10549] PMIX ERROR: PMIX_ERR_UNREACH in file ptl_base_connection_hdlr.c at line 103\n"
KILLED = b"""prterun noticed that process rank 1 with PID 27745 on node vm exited on
signal 9 (Killed).
"""


@pytest.fixture
def hosts(tmp_path):
    def write(text):
        path = tmp_path / "hosts"
        path.write_text(text)
        return path

    return write


def read(*chunks):
    """Return the output that is passed on of these chunks, and the filter."""
    notices = OutputFilter(io.BytesIO())
    source, sink = os.pipe()
    with os.fdopen(source, "rb") as stream:
        for chunk in chunks:
            os.write(sink, chunk)
        os.close(sink)
        notices.read(stream)
    return notices._output.getvalue(), notices


def test_hosts_with_a_slot_for_each_rank(hosts):
    slots = read_hosts(hosts("# ours\nhost1 slots=2\n\nhost2  # one slot\n"))
    assert slots == {"host1": 2, "host2": 1}
    check_slots("file", slots, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("host1 slots=2\nhost2\n", r"has 3 slots \(host1 2, host2 1\), 4 ranks need one each"),
        ("\n", "names no host"),
        ("host1 slots=0\n", "slots of host1 must be 1 or more, found 'slots=0'"),
    ],
)
def test_a_wrong_host_file(hosts, text, message):
    with pytest.raises(ValueError, match=message):
        check_slots("file", read_hosts(hosts(text)), 4)


def test_no_host_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no host file .*nowhere; HOSTFILE= names a file of lines like"):
        read_hosts(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("tasks", "slots"), [("2(x2),1", {"n1": 2, "n2": 2, "n7": 1}), (None, {"n1": 1, "n2": 1, "n7": 1})]
)
def test_a_slurm_job_has_its_hosts_and_tasks(programs_on_path, monkeypatch, tasks, slots):
    programs_on_path("scontrol", 'test "$*" = "show hostnames n[1-2,7]" && printf "n1\\nn2\\nn7\\n"')
    assert slurm_slots() == {}
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2,7]")
    if tasks:
        monkeypatch.setenv("SLURM_TASKS_PER_NODE", tasks)
    assert slurm_slots() == slots
    options = mpirun_options(None, slots)
    assert options[options.index("--host") + 1] == ",".join(f"{host}:{count}" for host, count in slots.items())
    programs_on_path("scontrol", "exit 1")
    with pytest.raises(OSError, match="the hosts of the Slurm job are unknown, 'scontrol show hostnames n"):
        slurm_slots()


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("SLURM_STEP_NUM_TASKS", "srun has started this command 2 times .*without srun, with --ranks 2 "),
        ("PMI_SIZE", "MPICH's or Intel MPI's mpirun has started this command 2 times"),
    ],
)
def test_another_launcher_of_several_processes_is_refused(monkeypatch, variable, message):
    for size in "1", "2":
        monkeypatch.setenv(variable, size)
        for num_ranks in 1, 2:
            if size == "1":
                check_num_processes(num_ranks)
            else:
                with pytest.raises(ValueError, match=message):
                    check_num_processes(num_ranks)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")  # Open MPI has started the ranks, with daemons that srun started.
    check_num_processes(2)


def test_what_ranks_say_is_passed_on_and_notices_are_kept():
    passed, notices = read(b"step 1\r", b"step 2\r\n\0error: no rows\n", RULE + KILLED, RULE, CHATTER, b"last words")
    assert passed == b"step 1\rstep 2\r\nerror: no rows\nlast words"
    assert notices.has_error
    assert notices.notices == [KILLED.decode(), CHATTER.decode()]


def test_known_notices_are_a_line_and_others_stay_as_they_are():
    (line,) = explain([KILLED.decode()], 137)
    assert line.startswith("error: rank 1 on vm was ended by signal 9 (Killed)")
    assert explain(["something else\n"], 1) == ["something else\n", "error: mpirun ended with status 1"]


def test_a_host_that_cannot_be_reached_has_its_whole_name():
    """mpirun cuts no.such.host to `no`."""
    notice = "Local host:    vm\n  Remote host:   no\n  Daemon exit status: 255\n"
    (line,) = explain([notice], 1, hosts=["no.such.host", "other.host"])
    assert line.startswith("error: host no.such.host of the host file cannot be used: 'ssh no.such.host true'")
    (line,) = explain([notice.replace("no\n", "192.0.2.1\n")], 1, hosts=["192.0.2.1"])
    assert line.startswith("error: host 192.0.2.1 of the host file")


NO_ANSWER = b"""PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-vm-28568@0,0] on node vm
  Remote daemon: [prterun-vm-28568@0,2] on node host2
"""


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            STARTED + RULE + b"  Remote host:   host2\n" + RULE,
            "error: host host2 is lost: .*; run the same command again",
        ),
        (STARTED + RULE + NO_ANSWER + RULE, "error: host host2 is lost"),
        (RULE + b"  Remote host:   host2\n" + RULE, "error: host host2 of the host file cannot be used"),
    ],
)
def test_a_host_that_is_lost_fails_the_job(capfd, output, line):
    """mpirun ends with status 0 in this case."""
    assert supervise([sys.executable, "-c", f"print({output.decode()!r})"]) == 1
    printed, errors = capfd.readouterr()
    assert printed.strip() == ""
    assert re.match(line, errors), errors


def test_a_closed_reader_does_not_hold_up_the_ranks(tmp_path):
    """Otherwise the pipe of their output fills, and they wait for ever."""
    source, sink = os.pipe()
    os.close(source)
    with os.fdopen(sink, "wb", buffering=0) as nobody, (tmp_path / "said").open("wb+") as said:
        said.write(b"step\n" * 3 + b"error: no rows\n")
        said.seek(0)
        notices = OutputFilter(nobody)
        notices.read(said)
    assert notices.has_error


def test_mpirun_blocks_only_the_signals_for_everyone(capfd):
    """The ranks handle SIGINT and SIGTERM themselves, and must be able to receive the signals that replace them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1})
    try:
        status = supervise([sys.executable, "-c", "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    blocked = capfd.readouterr().out
    assert status == 0
    assert set(re.findall(r"SIG\w+", blocked.replace("Signals", ""))) == {"SIGINT", "SIGTERM"}


@pytest.fixture
def programs_on_path(tmp_path, monkeypatch):
    """Return a function that puts a shell script on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def write(name, script):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return write


def test_only_launchers_of_open_mpi_are_accepted(programs_on_path, monkeypatch):
    monkeypatch.setenv("MPIRUN", "another-mpirun")
    for version in "mpirun (Open MPI) 5.0.11", "mpirun.openmpi (OpenRTE) 4.1.4":
        programs_on_path("another-mpirun", f"echo '{version}'")
        assert find_mpirun() == "another-mpirun"
    programs_on_path("another-mpirun", "echo HYDRA build details: 4.2")
    with pytest.raises(
        OSError, match=r"is not Open MPI's, whose options are used here .its --version prints: HYDRA build"
    ):
        find_mpirun()


def test_several_hosts_keep_to_their_slots(tmp_path):
    assert "--oversubscribe" in mpirun_options(None)
    options = mpirun_options(tmp_path / "hosts", {"host1": 2})
    assert "--oversubscribe" not in options
    assert str(tmp_path / "hosts") in options


def test_ranks_find_the_project_however_it_was_started(project, monkeypatch):
    for before, after in (("", [str(project)]), (f"/else:{project}", [str(project), "/else"])):
        monkeypatch.setenv("PYTHONPATH", before)
        exported = next(word for word in mpirun_options(None) if word.startswith("PYTHONPATH="))
        assert exported.removeprefix("PYTHONPATH=").split(os.pathsep) == after


def test_ranks_have_two_connections_unless_the_user_says_otherwise(monkeypatch):
    name = "OMPI_MCA_btl_tcp_links"
    assert mpirun_variables(10)[name] == "2"
    monkeypatch.setenv(name, "1")
    assert mpirun_variables(10)[name] == "1"
