"""A benchmark's own ranks: the same module once more, under mpirun, on this host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from app.distributed.launch import find_mpirun, mpirun_options


def run_ranks(num_ranks: int, module: str, *words: str) -> str:
    """What `python -m MODULE …` prints on ranks of one thread each; raises CalledProcessError where one fails."""
    command = [find_mpirun(), *mpirun_options(None), "-n", str(num_ranks), sys.executable, "-m", module, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def found_by_ranks(num_ranks: int, module: str, *words: str) -> Any:
    """The JSON of the last line that they print."""
    return json.loads(run_ranks(num_ranks, module, *words).splitlines()[-1])
