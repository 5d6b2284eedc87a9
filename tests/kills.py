"""Number of kills of each test that kills at random moments: NUM_KILLS in all, 12 by default."""

import os

SHARES = {"training": 3, "ranks": 2, "servers": 1, "preparation": 3, "commands": 3, "online": 2}


def num_kills(subject: str) -> int:
    """Return the share of a subject, rounded up."""
    return -(-int(os.environ.get("NUM_KILLS", "12")) * SHARES[subject] // sum(SHARES.values()))
