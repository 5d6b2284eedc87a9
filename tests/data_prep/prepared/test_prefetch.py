import threading

import pytest

from data_prep.prepared.prefetch import Prefetcher


def running_prefetchers():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_items_come_in_order():
    with Prefetcher(iter(range(100))) as items:
        assert list(items) == list(range(100))
    assert items.waited_seconds > 0


def test_no_items_are_an_empty_loop():
    with Prefetcher([]) as items:
        assert list(items) == []


def test_an_error_comes_after_the_items_before_it():
    def failing():
        yield 1
        yield 2
        raise ValueError("the third is bad")

    taken = []
    with pytest.raises(ValueError, match="the third is bad"), Prefetcher(failing()) as items:
        for item in items:
            taken.append(item)
    assert taken == [1, 2]


def test_no_more_is_made_ahead_than_asked_for():
    made = []

    def counting():
        for i in range(10_000):
            made.append(i)
            yield i

    with Prefetcher(counting(), depth=2) as items:
        for taken, _ in enumerate(items, start=1):
            assert len(made) <= taken + 2 + 1  # two in the queue, one in the thread's hands


def test_leaving_the_loop_early_ends_the_thread():
    with Prefetcher(iter(range(10**9))) as items:
        for item in items:
            if item == 3:
                break
    assert running_prefetchers() == []


def test_an_error_in_the_loop_ends_the_thread():
    with pytest.raises(KeyError), Prefetcher(iter(range(10**9))) as items:
        for _ in items:
            raise KeyError
    assert running_prefetchers() == []
