"""Kills and errors at a chosen call, and how many kills each test at random moments has: NUM_KILLS, 12 by default.

Those of an online run, whose launches are many, come besides: half of NUM_KILLS, 3 by default.
"""

import itertools
import os
import traceback
from contextlib import contextmanager

import pytest

SHARES = {"training": 3, "ranks": 2, "servers": 1, "preparation": 3, "commands": 3}


def num_kills(subject: str) -> int:
    """Return the share of a subject, rounded up."""
    if subject == "online":
        return int(os.environ.get("NUM_KILLS", "6")) // 2
    return -(-int(os.environ.get("NUM_KILLS", "12")) * SHARES[subject] // sum(SHARES.values()))


def in_child(action, *words):
    """Begin an action in a forked process, and return its id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            action(*words)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


class Killed(BaseException):
    """Stands for a kill: an error that no handler of the product expects."""


@contextmanager
def fails_at(owner, name, number, error):
    """Let the call `number` (1, 2, …) of a function raise an error."""
    calls, function = itertools.count(1), getattr(owner, name)

    def failing(*arguments, **keywords):
        if next(calls) == number:
            raise error
        return function(*arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, failing)
        yield
