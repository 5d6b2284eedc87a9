import threading
import time
from contextlib import closing

import pytest

from data_prep.execution.tasks import read_ahead


def numbers(count, taken, closed=None):
    try:
        for number in range(count):
            taken.append((number, threading.current_thread()))
            yield number
    finally:
        if closed is not None:
            closed.set()


@pytest.mark.parametrize("num_ahead", [1, 3, 1000])
def test_all_items_come_in_their_order_from_another_thread(num_ahead):
    taken = []
    assert list(read_ahead(numbers(100, taken), num_ahead)) == list(range(100))
    assert threading.current_thread() not in {thread for _, thread in taken}


@pytest.mark.parametrize("num_ahead", [1, 3])
def test_so_many_are_taken_while_the_user_is_busy(num_ahead):
    taken = []
    with closing(read_ahead(numbers(100, taken), num_ahead)) as items:
        for used in range(1, 4):
            next(items)
            give_up = time.monotonic() + 60
            while len(taken) < used + num_ahead:
                assert time.monotonic() < give_up
                time.sleep(0.001)
            time.sleep(0.02)
            assert len(taken) == used + num_ahead


def test_an_error_comes_in_its_place():
    def failing():
        yield from range(3)
        raise OSError("no more")

    items, found = read_ahead(failing(), 10), []
    with pytest.raises(OSError, match="no more"):
        for item in items:
            time.sleep(0.01)
            found.append(item)
    assert found == [0, 1, 2]


@pytest.mark.parametrize("num_used", [1, 100])
def test_closing_ends_the_thread_and_closes_what_it_read(num_used):
    closed, before = threading.Event(), threading.active_count()
    items = read_ahead(numbers(100, [], closed), 2)
    for _ in range(num_used):
        next(items)
    items.close()
    assert closed.is_set()
    assert threading.active_count() == before


def test_a_signal_stops_the_waiting(monkeypatch):
    class Stop(BaseException):
        pass

    def stop():
        raise Stop

    wanted = threading.Event()

    def slow():
        wanted.wait(60)
        yield 1

    monkeypatch.setattr("data_prep.execution.tasks.check_stop", stop)
    threading.Timer(1.0, wanted.set).start()  # the thread is waited for
    with pytest.raises(Stop):
        next(read_ahead(slow(), 1))
