"""Programs that a test starts in a process of their own and waits for."""

import signal
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


def close_output_at_once(*words, env):
    """Run this Python with `words`, and read nothing of what it prints, as `head -0` does.

    The test fails unless the program ends by SIGPIPE, without a message.
    """
    command = [sys.executable, *map(str, words)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 128 + signal.SIGPIPE
