"""Helpers for tests that kill processes: errors and kills at a chosen call, and the number of kills at random moments.

The environment variable NUM_KILLS (default 12) is the number of these kills, which SHARES divides among the subjects of
the tests. Tests of online runs have half of NUM_KILLS (default 3) in addition.
"""

import itertools
import os
import traceback
from contextlib import contextmanager

import pytest

SHARES = {"training": 3, "ranks": 2, "servers": 1, "preparation": 3, "commands": 3}


def num_kills(subject: str) -> int:
    """Return how often the tests of a subject (a key of SHARES, or online) kill a process at a random moment."""
    if subject == "online":
        return int(os.environ.get("NUM_KILLS", "6")) // 2
    return -(-int(os.environ.get("NUM_KILLS", "12")) * SHARES[subject] // sum(SHARES.values()))


def in_child(action, *words):
    """Call `action(*words)` in a forked process, and return the id of this process. It ends with 0 or, after an error,
    1.
    """
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
    """Raised in place of a kill. As a BaseException it passes through the product's handlers of errors."""


@contextmanager
def fails_at(owner, name, number, error):
    """In the `with` block, let call number `number` (from 1 on) of the function `owner.name` raise `error`."""
    calls, function = itertools.count(1), getattr(owner, name)

    def failing(*arguments, **keywords):
        if next(calls) == number:
            raise error
        return function(*arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, failing)
        yield
