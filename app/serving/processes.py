"""Run the service as processes: open its sockets, start the workers that accept connections, and handle signals.

A worker process that dies is started again while the other workers continue to serve. After SIGTERM, the service ends
when all requests that have arrived are answered.
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
# Number of connections that one turn of the event loop accepts. The loop (libuv) accepts one connection per listening
# socket in a turn, so it is given each socket this many times. Under overload a turn takes tens of milliseconds. With
# one connection per turn, a thousand new clients, and a load balancer's health check behind them, would wait for a
# thousand turns.
ACCEPTS = 16
# Python's switch interval: a thread that runs Python code, such as the one that opens a new model, lets another waiting
# thread run after this time.
SWITCH_SECONDS = 0.0005
# Number of new objects after which Python collects garbage. With Python's default of 700, collections took a tenth of
# the time under overload, and some took 40 ms, because they had to look at thousands of waiting requests, which are not
# garbage.
COLLECTED_OBJECTS = 20_000
WATCH_NICE = 10  # Nice value of the thread that opens new models, so that it has a lower priority than the event loop.
CANNOT_START = 2  # Exit status if no model can be opened.
# If a worker ends after it ran for longer than this, it is restarted without a pause.
STABLE_SECONDS = 60.0
MOST_PAUSE_SECONDS = 60.0  # Longest pause before a worker that has ended is started again.
# Size of each of the five files in which a worker stores its metrics. Models with a thousand fields take half of the
# space.
METRICS_BYTES = 1 << 19
HUNG_SECONDS = 20.0  # A worker is killed if its event loop does not call `beat` for this long.
# If the supervisor itself did not run for longer than this, the machine was probably suspended, so missing beats of the
# workers mean nothing.
PAUSED_SECONDS = 5.0
# Number of open files, including connections, that the service allows itself, unless the system allows fewer.
MOST_FILES = 1 << 14
# The operating system closes a connection if the client acknowledges no data of a response for this long.
UNREAD_SECONDS = 30
# Workers that have not ended this long after the port was closed are killed. The time is longer than
# connections.FINISH_SECONDS, in which workers still answer waiting requests.
END_SECONDS = 35


def serve(options: ServerOptions) -> int:
    """Serve until SIGTERM or SIGINT arrives, and return the exit status of the process. Raise OSError if a port cannot
    be used.
    """
    # Until other handlers are installed, SIGTERM and SIGINT end the process with os._exit. The exception of sys.exit
    # would be lost if the signal arrived in a callback during an import.
    _handle_signals(lambda *_: os._exit(0))
    _allow_files()
    with ExitStack() as stack:
        sockets = [stack.enter_context(_listen("", options.host, options.port))]
        log.info("http://%s:%d serves %s", options.host, sockets[0].getsockname()[1], options.path)
        if options.admin_port is not None:
            sockets.append(stack.enter_context(_listen("admin-", options.admin_host, options.admin_port)))
            options = replace(options, admin_port=sockets[1].getsockname()[1])
            # The two ports must have different numbers, even on different addresses, because requests for
            # administration are recognized by the port's number.
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
    """Raise the limit of open files of this process, which its workers inherit, to MOST_FILES or to what the system
    allows if that is less.
    """
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
    # All workers share the socket and its blocking mode, and dup() in a starting worker sets the mode to the mode of
    # `listener`. So make `listener` non-blocking. Otherwise a worker could block in accept() if another one has taken
    # the connection.
    listener.setblocking(False)
    return listener


@dataclass
class _Seat:
    """What the supervisor (the process that starts the workers) keeps about one worker across restarts. A restarted
    worker has the same `number` as the worker that it replaces, and continues the metrics of that worker.
    """

    number: int
    recent: mmap.mmap  # Memory that all workers share, in which they count recent requests (`observed.Recent`).
    # A byte that worker and supervisor share: 1 if the worker's model is open, otherwise 0.
    serving: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 1))
    # A byte that worker and supervisor share. The worker's event loop changes it ten times a second. The byte is 0
    # before the event loop runs and when the loop is ending.
    pulse: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 1))
    last_pulse: int = 0  # Last value of `pulse` that the supervisor saw.
    # Time of the last change of `pulse` that the supervisor saw. `heard`, `start_time` and `due` are in seconds of
    # time.monotonic.
    heard: float = 0.0
    process: BaseProcess | None = None
    is_restart: bool = False
    start_time: float = 0.0
    pause_seconds: float = 0.0  # Pause before the next restart of the worker if it ends soon after its last start.
    due: float = 0.0

    def beat(self, is_ending: bool) -> None:
        """Tell the supervisor that this worker's event loop is alive, or, with `is_ending`, that the loop ends and need
        not be watched any more.
        """
        self.pulse[0] = 0 if is_ending else self.pulse[0] % 255 + 1

    def is_hung(self, now: float) -> bool:
        """Return True if the worker's event loop has not called `beat` for HUNG_SECONDS. The supervisor calls this
        method about once a second.
        """
        pulse = self.pulse[0]
        if not pulse or pulse != self.last_pulse:
            self.last_pulse, self.heard = pulse, now
        return now - self.heard > HUNG_SECONDS


class _Supervisor:
    """Starts the worker processes, restarts those that end, and kills those that hang."""

    def __init__(self, options: ServerOptions, sockets: list[socket.socket], metrics: Path) -> None:
        self._options, self._sockets, self._metrics = options, sockets, metrics
        # Set this environment variable before prometheus_client is imported, because the package reads it during its
        # import.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(self._metrics)
        recent = mmap.mmap(-1, options.workers * RECENT_BYTES)
        self._seats = [_Seat(number, recent) for number in range(options.workers)]
        self._stopping = False
        self._looked = time.monotonic()

    def run(self) -> int:
        """Start the worker processes and watch over them until SIGTERM or SIGINT arrives, or until no worker can be
        started. Return the exit status of the service.
        """
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
        """Kill each worker process whose event loop has not run for HUNG_SECONDS. A killed worker is restarted like any
        other worker that ends.
        """
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
        # Block SIGTERM and SIGINT while the worker is forked, until it has installed its own handlers. Otherwise such a
        # signal to the new worker would call the supervisor's handler in the worker, and not end the worker.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
            seat.process, seat.start_time = process, time.monotonic()
            # Other threads, such as those of a library, do not block SIGTERM and SIGINT. So a signal may have called
            # `_stop` before `seat` had this worker, and `_stop` did not end the worker.
            if self._stopping:
                process.terminate()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _plan_restart(self, seat: _Seat, exit_status: int | None) -> int:
        """Schedule the restart of a worker that has ended, and return 0. The pause before the restart doubles each time
        the worker ends soon after its start.

        If the worker ended before its model was open, and no other worker serves, stop the service instead and return
        CANNOT_START.
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
        """Send SIGTERM to the workers, and close the supervisor's own copies of the listening sockets.

        The port is then open only as long as a worker has it open, so that no client connects to a port on which nobody
        accepts.
        """
        self._stopping = True
        for listener in self._sockets:
            listener.close()
        for seat in self._seats:
            if seat.process is not None:
                seat.process.terminate()

    def _end(self) -> None:
        """Wait for the worker processes to end. Kill workers that take longer than `drain_seconds` + END_SECONDS."""
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
        """A metrics file whose disk space is allocated before it is mapped. Without this, writing to the mapped file
        when the disk is full would end the process with SIGBUS.
        """

        def __init__(self, filename: str, read_mode: bool = False) -> None:
            path = Path(filename)
            # A worker that reads the metrics file of another one would crash if the file were still empty. So allocate
            # the space of the file under another name, and then rename the file.
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
    # Name the metrics files by the number of the worker instead of the process id, so that a restarted worker continues
    # the counts of the worker that it replaces.
    values.ValueClass = values.MultiProcessValue(lambda: seat.number)
    os._exit(run_worker(options, sockets, seat))


def run_worker(options: ServerOptions, sockets: list[socket.socket], seat: _Seat) -> int:
    """Answer HTTP requests in this process until SIGTERM or SIGINT arrives or the supervisor ends. Return the exit
    status for the process. `sockets` are listening sockets, and `seat` is what this worker shares with the supervisor.
    """
    from app.serving.connections import Server

    sys.setswitchinterval(SWITCH_SECONDS)
    server = Server(options, seat.beat)
    _handle_signals(server.handle_exit)
    watch = _Watch(server, options, seat)
    watch.start()
    # A restarted worker waits until its model is open before it accepts a connection, because the other workers answer
    # requests meanwhile.
    while seat.is_restart and not watch.opened.wait(0.1):
        if server.application.is_draining:
            return 0
    if not server.should_exit:
        server.run(sockets=[*sockets, *(each.dup() for each in sockets for _ in range(ACCEPTS - 1))])
    watch.stopped.set()
    # Wait for the thread `watch`, because it may be opening a model, and Python must not exit meanwhile.
    watch.join(END_SECONDS)
    # From here on, ignore SIGTERM and SIGINT, so that they do not interrupt the exit of this process.
    _handle_signals(signal.SIG_IGN)
    return watch.status


class _Watch(threading.Thread):
    """Thread of a worker process that opens the first model to serve, and later looks for newer models in the
    folder.
    """

    def __init__(self, server: Server, options: ServerOptions, seat: _Seat) -> None:
        super().__init__(daemon=True)
        self._server, self._options, self._seat = server, options, seat
        self.opened, self.stopped = threading.Event(), threading.Event()
        self.status = 0

    def run(self) -> None:
        """Open the first model, then look for newer models every `watch_seconds` until the worker stops. If the first
        model cannot be opened, stop the worker with status CANNOT_START.
        """
        try:
            service = self._open()
        except Exception as error:
            log.error("error: %s", error, exc_info=not isinstance(error, ValueError | OSError))
            self.status, self._server.should_exit = CANNOT_START, True
            return
        finally:
            self.opened.set()
        # Exclude the objects that exist now from garbage collections, because they live as long as the process.
        gc.freeze()
        gc.set_threshold(COLLECTED_OBJECTS)
        self._server.application.open(service)
        self._seat.serving[0] = 1
        if sys.platform == "linux":  # Only on Linux does a thread have a priority of its own.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), WATCH_NICE)
        supervisor = multiprocessing.parent_process() if self._options.workers > 1 else None
        while not self.stopped.is_set():
            try:
                service.refresh()
            except Exception:  # Log the error and go on, because without this thread no newer model would ever serve.
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
    """Log a warning with the reason if rows are parsed with NumPy instead of the native library, which is faster.
    Without the warning, nobody would notice.
    """
    from data_prep.encoding.encoder import why_slow

    if reason := why_slow():
        log.warning("warning: rows are parsed several times slower than they could be: %s", reason)
