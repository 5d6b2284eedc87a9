"""Run a program, and kill it at the N-th call of a callback of the training: killed.py N PROGRAM [ARGUMENT …]

The process is killed once the run has a checkpoint. A run without one would start over in a new folder.
"""

import os
import runpy
import signal
import sys
import time
from typing import Any

import app

train, calls = app.train, 0


def killed(callback: Any) -> Any:
    """Return a callback that calls `callback`, and kills the process at its N-th call."""

    def called(run: Any, *values: Any) -> None:
        global calls
        calls += 1
        callback(run, *values)
        if calls >= int(number):
            while not list(run.path.glob("checkpoints/step-????????")):  # It is written in the background.
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

    return called if callback else None


def train_until_killed(*arguments: Any, on_step: Any = None, on_evaluation: Any = None, **named: Any) -> Any:
    """Call `app.train` with callbacks that kill the process."""
    return train(*arguments, on_step=killed(on_step), on_evaluation=killed(on_evaluation), **named)


_, number, *sys.argv = sys.argv
app.train = train_until_killed
sys.path.insert(0, os.path.dirname(sys.argv[0]))  # noqa: PTH120
runpy.run_path(sys.argv[0], run_name="__main__")
