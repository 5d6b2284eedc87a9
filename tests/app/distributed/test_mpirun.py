"""Host files, mpirun's options and its notices; whole jobs are in tests/ranks/."""

import io
import os
import signal
import sys

import pytest

from app.distributed.mpirun import OutputFilter, check_hosts, explain, find_mpirun, mpirun_options, supervise

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
    check_hosts(hosts("# ours\nhost1 slots=2\n\nhost2  # one slot\n"), 3)


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
        check_hosts(hosts(text), 4)


def test_no_host_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no host file .*nowhere; HOSTFILE= names a file of lines like"):
        check_hosts(tmp_path / "nowhere", 2)


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


def test_signals_that_are_blocked_here_reach_the_job(capfd):
    """Its ranks would inherit the mask, and Ctrl-C would never end them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1})
    try:
        status = supervise([sys.executable, "-c", "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert (status, capfd.readouterr().out) == (0, "set()\n")


def test_a_launcher_of_another_mpi_is_refused(tmp_path, monkeypatch):
    other = tmp_path / "mpirun"
    other.write_text("#!/bin/sh\necho HYDRA build details: 4.2\n")
    other.chmod(0o755)
    monkeypatch.setenv("MPIRUN", str(other))
    with pytest.raises(
        OSError, match=r"is not Open MPI's, whose options are used here .its --version prints: HYDRA build"
    ):
        find_mpirun()


def test_several_hosts_keep_to_their_slots(tmp_path):
    assert "--oversubscribe" in mpirun_options(None)
    options = mpirun_options(tmp_path / "hosts")
    assert "--oversubscribe" not in options
    assert str(tmp_path / "hosts") in options


def test_ranks_find_the_project_however_it_was_started(project, monkeypatch):
    for before, after in (("", [str(project)]), (f"/else:{project}", [str(project), "/else"])):
        monkeypatch.setenv("PYTHONPATH", before)
        exported = next(word for word in mpirun_options(None) if word.startswith("PYTHONPATH="))
        assert exported.removeprefix("PYTHONPATH=").split(os.pathsep) == after
