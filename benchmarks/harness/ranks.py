"""Run a benchmark's module under mpirun on this host, for its own ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from app.distributed.launch import find_mpirun, mpirun_options


def run_ranks(num_ranks: int, module: str, *words: str) -> str:
    """Run `python -m MODULE …` on ranks of one thread each; return its output. Raises CalledProcessError."""
    command = [find_mpirun(), *mpirun_options(None), "-n", str(num_ranks), sys.executable, "-m", module, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def found_by_ranks(num_ranks: int, module: str, *words: str) -> Any:
    """Run ranks as above; return the JSON of the last line that they print."""
    return json.loads(run_ranks(num_ranks, module, *words).splitlines()[-1])
