"""Programs that a test starts in a process of their own and waits for."""

import subprocess
import sys


def run_program(*words, status=0, **options):
    """Run a command to its end and return the finished process, with its output as text.

    The test fails with that output unless the command ends with `status`. With None it may end with any.
    """
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, **options)
    assert status is None or done.returncode == status, done.stdout[-2000:] + done.stderr
    return done


def run_python(*words, **options):
    """Run this Python with `words`, as `run_program` does."""
    return run_program(sys.executable, *words, **options)
