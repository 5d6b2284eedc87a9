"""Programs that run as several ranks."""

import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def run_ranks(mpirun):
    """Run a module as N ranks of one thread; returns what they printed."""

    def run(num_ranks: int, module: str, *arguments: str) -> str:
        command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", str(num_ranks)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        done = subprocess.run(
            [*command, sys.executable, "-m", module, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
