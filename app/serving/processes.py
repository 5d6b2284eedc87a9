"""Run the service as processes: open its sockets, start the workers that accept connections, and handle signals.

A worker that dies is started again while the others serve. After SIGTERM the service ends when all requests are
answered.
"""

from __future__ import annotations

import gc
import logging
import mmap
import multiprocessing
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from app.serving.options import RECENT_BYTES, ServerOptions

if TYPE_CHECKING:
    from app.serving.connections import Server
    from app.serving.service import Service

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)  # These signals end the service.
BACKLOG = 2048
# Number of connections that a turn of the event loop accepts. libuv accepts one per listening socket and turn, so each
# socket is passed this many times. In overload a turn takes tens of milliseconds, and a thousand new clients, or a load
# balancer's health check, would otherwise wait for as many turns.
ACCEPTS = 16
# Time that one thread can keep the others from running, for example the one that opens a new model.
SWITCH_SECONDS = 0.0005
# Number of new objects between two garbage collections. Thousands of waiting requests are not garbage. With Python's
# default of 700, collections took a tenth of the time in overload, and some of them 40 ms.
COLLECTED_OBJECTS = 20_000
WATCH_NICE = 10  # Priority of the thread that opens new models.
CANNOT_START = 2  # Exit status if no model can be opened.
# A worker that ran this long is restarted without a pause.
STABLE_SECONDS = 60.0
MOST_PAUSE_SECONDS = 60.0  # Longest pause before a worker is restarted.
# Size of a metrics file. A worker has five such files. A thousand fields take half of the space.
METRICS_BYTES = 1 << 19
HUNG_SECONDS = 20.0  # A worker is killed if its event loop does not beat for this long.
# If the supervisor itself did not look for this long, the machine was suspended, and older beats mean nothing.
PAUSED_SECONDS = 5.0
# Maximum number of open files, including connections, if the system allows it.
MOST_FILES = 1 << 14
# Time for a client to take part of an answer, before the system closes the connection.
UNREAD_SECONDS = 30
# Time for the workers to end after the port was closed: the time that requests have, and some more.
END_SECONDS = 35


def serve(options: ServerOptions) -> int:
    """Serve until a signal arrives, and return the exit status. Raise OSError if a port cannot be used."""
    # os._exit instead of SystemExit, which is lost if it is raised in a callback of an import.
    _handle_signals(lambda *_: os._exit(0))
    _allow_files()
    with ExitStack() as stack:
        sockets = [stack.enter_context(_listen("", options.host, options.port))]
        log.info("http://%s:%d serves %s", options.host, sockets[0].getsockname()[1], options.path)
        if options.admin_port is not None:
            sockets.append(stack.enter_context(_listen("admin-", options.admin_host, options.admin_port)))
            options = replace(options, admin_port=sockets[1].getsockname()[1])
            # Equal numbers on two addresses are not allowed, because the port number identifies the administration
            # port.
            if options.admin_port == sockets[0].getsockname()[1]:
                raise OSError(f"--admin-port {options.admin_port} is the number of --port too; give another")
            log.info("http://%s:%d administers it", options.admin_host, options.admin_port)
        if options.workers == 1:
            return run_worker(options, sockets, _Seat(0, mmap.mmap(-1, RECENT_BYTES)))
        metrics = stack.enter_context(tempfile.TemporaryDirectory(prefix="serving-"))
        return _Supervisor(options, sockets, Path(metrics)).run()


def _handle_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in _SIGNALS:
        signal.signal(number, handler)


def _allow_files() -> None:
    """Raise the limit of open files for this process and its workers as far as the system allows, up to MOST_FILES."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_files = MOST_FILES if most == resource.RLIM_INFINITY else min(MOST_FILES, most)
    if allowed != resource.RLIM_INFINITY and allowed < num_files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, most))


def _listen(kind: str, host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sys.platform == "linux":  # Accepted connections inherit this option.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * UNREAD_SECONDS)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        flags = f"--{kind}host {host} --{kind}port {port}"
        raise OSError(f"{flags} cannot be listened on: {error.strerror}; give others") from None
    listener.listen(BACKLOG)
    # All processes share the blocking mode of the socket, and dup() sets it anew. A starting worker must not make
    # another worker block in accept() for a connection that a third one has taken.
    listener.setblocking(False)
    return listener


@dataclass
class _Seat:
    """The place of a worker. A worker that is restarted has the same number, so its metrics continue."""

    number: int
    recent: mmap.mmap  # Memory that all workers share.
    # Byte shared with the supervisor: 1 when the worker's model is open.
    serving: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 1))
    # Byte shared with the supervisor. It changes with each beat of the event loop, and is 0 when the loop does not run.
    pulse: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 1))
    last_pulse: int = 0  # Last value of `pulse` that the supervisor saw.
    # Time when `last_pulse` changed. Like `start_time` and `due`, in seconds of time.monotonic.
    heard: float = 0.0
    process: BaseProcess | None = None
    is_restart: bool = False
    start_time: float = 0.0
    pause_seconds: float = 0.0  # Pause before the next start.
    due: float = 0.0

    def beat(self, is_ending: bool) -> None:
        """Tell the supervisor that the event loop runs, or that it is ending and must not be watched."""
        self.pulse[0] = 0 if is_ending else self.pulse[0] % 255 + 1

    def is_hung(self, now: float) -> bool:
        """Return True if the event loop did not beat for too long. The supervisor calls this about once a second."""
        pulse = self.pulse[0]
        if not pulse or pulse != self.last_pulse:
            self.last_pulse, self.heard = pulse, now
        return now - self.heard > HUNG_SECONDS


class _Supervisor:
    """Starts the workers and restarts those that end."""

    def __init__(self, options: ServerOptions, sockets: list[socket.socket], metrics: Path) -> None:
        self._options, self._sockets, self._metrics = options, sockets, metrics
        # prometheus_client reads this variable when it is imported.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(self._metrics)
        recent = mmap.mmap(-1, options.workers * RECENT_BYTES)
        self._seats = [_Seat(number, recent) for number in range(options.workers)]
        self._stopping = False
        self._looked = time.monotonic()

    def run(self) -> int:
        """Start the workers and watch over them until a signal arrives. Return the exit status."""
        _handle_signals(lambda *_: self._stop())
        status = 0
        while not self._stopping:
            for seat in self._seats:
                if seat.process is None and time.monotonic() >= seat.due:
                    self._start(seat)
            wait([seat.process.sentinel for seat in self._seats if seat.process is not None], timeout=1)
            for seat in self._seats:
                if not self._stopping and seat.process is not None and not seat.process.is_alive():
                    status = self._plan_restart(seat, seat.process.exitcode)
            self._kill_hung()
        self._end()
        return status

    def _kill_hung(self) -> None:
        """Kill workers whose event loop hangs. They are restarted like all workers that end."""
        before, self._looked = self._looked, time.monotonic()
        for seat in self._seats:
            if self._looked - before > PAUSED_SECONDS:
                seat.heard = self._looked
            if seat.is_hung(self._looked) and seat.process is not None:
                log.error("worker %d has hung for %g s and is killed", seat.number, HUNG_SECONDS)
                seat.process.kill()
                seat.heard = self._looked

    def _start(self, seat: _Seat) -> None:
        arguments = (self._options, self._sockets, seat)
        process = multiprocessing.get_context("fork").Process(target=_worker, args=arguments)
        # Signals are held back until the worker has its own handlers. Otherwise the supervisor's handlers would run in
        # the worker, and the signal would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            # A signal arrived after the last worker was started. Nothing would end a worker started now.
            if self._stopping:
                return
            process.start()
            seat.process, seat.start_time = process, time.monotonic()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _plan_restart(self, seat: _Seat, exit_status: int | None) -> int:
        """Schedule the restart of a worker after a growing pause.

        If no worker serves and this one never did, stop the service and return CANNOT_START, otherwise return 0.
        """
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(seat.number, str(self._metrics))
        has_served, seat.serving[0], seat.pulse[0] = seat.serving[0], 0, 0
        now, seat.process, seat.is_restart = time.monotonic(), None, True
        if not has_served and not any(other.serving[0] for other in self._seats):
            log.error("worker %d ended with status %s before it served, and no other serves", seat.number, exit_status)
            self._stop()
            return CANNOT_START
        pause = 0.0 if now - seat.start_time > STABLE_SECONDS else seat.pause_seconds
        seat.due, seat.pause_seconds = now + pause, min(max(2 * pause, 1.0), MOST_PAUSE_SECONDS)
        log.warning("worker %d ended with status %s and is started again in %g s", seat.number, exit_status, pause)
        return 0

    def _stop(self) -> None:
        """End the workers, and close the supervisor's sockets.

        The workers alone then keep the port open, so that no client waits for a connection that nobody accepts.
        """
        self._stopping = True
        for listener in self._sockets:
            listener.close()
        for seat in self._seats:
            if seat.process is not None:
                seat.process.terminate()

    def _end(self) -> None:
        """Wait for the workers to end, and kill those that take too long."""
        processes = [seat.process for seat in self._seats if seat.process is not None]
        until = time.monotonic() + self._options.drain_seconds + END_SECONDS
        for process in processes:
            process.join(max(until - time.monotonic(), 0))
        for process in processes:
            process.kill()


def _worker(options: ServerOptions, sockets: list[socket.socket], seat: _Seat) -> None:
    _handle_signals(lambda *_: os._exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    from prometheus_client import values

    class Allocated(values.MmapedDict):
        """A metrics file whose disk space is reserved. If a mapped file got no space later, SIGBUS would end the
        process.
        """

        def __init__(self, filename: str, read_mode: bool = False) -> None:
            path = Path(filename)
            # Reading an empty metrics file crashes the reader, so fill it before it gets its name.
            beside = path if path.exists() else path.with_suffix(".new")
            with beside.open("ab") as file:
                try:
                    os.posix_fallocate(file.fileno(), 0, METRICS_BYTES)
                except OSError as error:
                    where = f"{filename} cannot have {METRICS_BYTES:,} bytes"
                    raise OSError(f"{where}: {error.strerror}; let TMPDIR name a folder with space") from None
            beside.replace(path)
            super().__init__(filename, read_mode)

    values.MmapedDict = Allocated  # type: ignore[misc]
    # Metrics files are named by worker number, not by process, so a restarted worker continues the counts.
    values.ValueClass = values.MultiProcessValue(lambda: seat.number)
    os._exit(run_worker(options, sockets, seat))


def run_worker(options: ServerOptions, sockets: list[socket.socket], seat: _Seat) -> int:
    """Serve in this process until a signal arrives or the supervisor ends. Return the exit status."""
    from app.serving.connections import Server

    sys.setswitchinterval(SWITCH_SECONDS)
    server = Server(options, seat.beat)
    _handle_signals(server.handle_exit)
    watch = _Watch(server, options, seat)
    watch.start()
    # The other workers serve, so accept no connection before the model is open.
    while seat.is_restart and not watch.opened.wait(0.1):
        if server.application.is_draining:
            return 0
    if not server.should_exit:
        server.run(sockets=[*sockets, *(each.dup() for each in sockets for _ in range(ACCEPTS - 1))])
    watch.stopped.set()
    # Python must not exit while a thread is opening a model.
    watch.join(END_SECONDS)
    # A second signal must not interrupt the exit, either.
    _handle_signals(signal.SIG_IGN)
    return watch.status


class _Watch(threading.Thread):
    """Thread that opens the model of a worker, and later newer models."""

    def __init__(self, server: Server, options: ServerOptions, seat: _Seat) -> None:
        super().__init__(daemon=True)
        self._server, self._options, self._seat = server, options, seat
        self.opened, self.stopped = threading.Event(), threading.Event()
        self.status = 0

    def run(self) -> None:
        """Open the model, then check for newer models until the worker stops."""
        try:
            service = self._open()
        except Exception as error:
            log.error("error: %s", error, exc_info=not isinstance(error, ValueError | OSError))
            self.status, self._server.should_exit = CANNOT_START, True
            return
        finally:
            self.opened.set()
        # Objects that exist now live as long as the process, so exclude them from garbage collections.
        gc.freeze()
        gc.set_threshold(COLLECTED_OBJECTS)
        self._server.application.open(service)
        self._seat.serving[0] = 1
        if sys.platform == "linux":  # On Linux each thread has its own priority.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), WATCH_NICE)
        supervisor = multiprocessing.parent_process() if self._options.workers > 1 else None
        while not self.stopped.is_set():
            try:
                service.refresh()
            except Exception:  # This thread must continue after any error.
                log.exception("what is served cannot be refreshed")
            if supervisor is not None and os.getppid() != supervisor.pid:  # The supervisor was killed.
                self._server.should_exit = True
            self.stopped.wait(self._options.watch_seconds)

    def _open(self) -> Service:
        from app.serving.generations import Generations
        from app.serving.observed import Observed, Recent
        from app.serving.service import Service

        if self._seat.number == 0:
            _log_slow_kernels()
        observed = Observed(self._seat.is_restart, Recent(self._seat.recent, self._seat.number))
        return Service(Generations(self._options, self._seat.number == 0), observed, self._options)


def _log_slow_kernels() -> None:
    """Log why rows are parsed with NumPy, if they are. Nothing else would show it."""
    from data_prep.encoding.encoder import why_slow

    if reason := why_slow():
        log.warning("warning: rows are parsed several times slower than they could be: %s", reason)
