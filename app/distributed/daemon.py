"""Start the command in the arguments with SIGINT and SIGTERM blocked: `python daemon.py COMMAND ARGUMENT...`.

mpirun starts its daemon on another host in this way (app/distributed/mpirun.py).
"""

import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    # The program of the daemon, prted, lies in the folder of this Python, or else on PATH.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 (mpirun's own words)
