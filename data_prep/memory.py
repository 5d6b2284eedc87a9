"""What `memory_limit` allows: how many workers there may be, and how much the counts of values may take.

The parts are upper bounds of measured ones (the sum of all processes' Pss), for chunks of 8 MiB.
"""

from __future__ import annotations

from data_prep.options import PrepareOptions

_MIB = 1 << 20
LIMIT_FOR_EARLY_IMPORT = 2048 * _MIB  # below, the counts of the first reading need MindSpore's room
_MAIN_BYTES = 200 * _MIB  # Python, its libraries and the chunks under way
_WORKER_BYTES = 120 * _MIB


def num_workers(options: PrepareOptions, num_cores: int) -> int:
    """Workers to start."""
    return options.workers or num_cores


def counts_bytes(options: PrepareOptions, num_workers: int) -> int:
    """Bytes that counts may take in the first reading."""
    left = options.memory_limit_bytes - _MAIN_BYTES - num_workers * _WORKER_BYTES
    return max(left, 0) // 2
