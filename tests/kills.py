"""Processes to kill, and how many kills each test at random moments has: NUM_KILLS in all, 12 by default.

Those of an online run, whose launches are many, come besides: half of NUM_KILLS, 3 by default.
"""

import os
import traceback

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
