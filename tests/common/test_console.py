"""Progress and messages: a bar on a terminal, plain lines elsewhere; and a reader who has had enough."""

import itertools
import logging
import os
import pty
import re
import select
import termios

import pytest

from common import console


@pytest.fixture
def logger():
    """A logger that writes as a command's do, to the standard error of the moment."""
    name = logging.getLogger("test_console")
    handlers = []

    def start():
        handlers.append(console.AboveBars(console.sys.stderr))
        name.addHandler(handlers[-1])
        name.propagate = False
        return name

    yield start
    for handler in handlers:
        name.removeHandler(handler)


def test_where_there_is_no_terminal_each_state_is_a_plain_line(capsys, monkeypatch, logger):
    monkeypatch.setattr(console, "SECONDS_PER_LINE", 0)
    log = logger()
    with console.progress_bar(total=3, desc="epoch 1", unit="step") as bar:
        for _ in range(3):
            with console.progress_bar(total=2, desc="evaluate", leave=False) as inner:
                inner.update()
            log.warning("judged")
            bar.update()
    lines = capsys.readouterr().err.split("\n")
    assert lines.count("judged") == 3
    assert any(re.fullmatch(r"epoch 1: +67% 2/3 \[.*step/s\]", line) for line in lines), lines
    assert any(line.startswith("evaluate:  50% 1/2 [") for line in lines), lines
    assert all(re.fullmatch(r"judged|(epoch 1|evaluate): .*\]|", line) for line in lines), lines
    assert not re.search(r"[\r\x1b]", "".join(lines))
    assert all(line != after for line, after in itertools.pairwise(lines))


def test_a_line_without_a_total_shows_how_much_was_done(capsys, monkeypatch):
    monkeypatch.setattr(console, "SECONDS_PER_LINE", 0)
    with console.progress_bar(total=None, desc="download", unit="B", unit_scale=True) as bar:
        bar.update(5_000)
    assert re.search(r"^download: 5.00kB \[", capsys.readouterr().err, re.MULTILINE)


def test_short_work_is_not_reported(capsys):
    with console.progress_bar(total=1, desc="short") as bar:
        bar.update()
    assert capsys.readouterr().err == ""


def test_a_closed_reader_of_the_lines_does_not_end_the_work(monkeypatch):
    monkeypatch.setattr(console, "SECONDS_PER_LINE", 0)
    source, sink = os.pipe()
    os.close(source)
    with os.fdopen(sink, "w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        with console.progress_bar(total=1, desc="long") as bar:
            bar.update()
            assert bar.n == 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sink)  # what is left in the buffer


def test_on_a_terminal_a_message_is_not_glued_to_the_bar(monkeypatch, logger):
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        log = logger()
        with console.progress_bar(total=2, desc="epoch 1") as bar:
            log.warning("the message")
            bar.update()
        shown = ""
        while select.select([master], [], [], 0.2)[0]:  # the system hands bytes over some time after the write
            shown += os.read(master, 1 << 16).decode()
    os.close(master)
    assert "\repoch 1:   0%|" in shown
    assert re.search(r"(^|[\r\n])the message\r\n", shown)


def test_another_pipe_that_breaks_is_an_error():
    assert not console.has_no_reader(BrokenPipeError("of a worker"))
    assert not console.has_no_reader(ValueError())


def test_a_message_has_no_escape_sequence(capsys, logger):
    logger().warning("warning: column %s", "\x1b[31mred\x1b[0m")
    assert capsys.readouterr().err == "warning: column \\x1b[31mred\\x1b[0m\n"
