#!/usr/bin/env bash
# wandb 0.31.0, offline: a training that is killed loses all rows that it logged in the last seconds. Each of its calls
# of log had returned. wandb writes to its file when a block of 32 KiB is full, and otherwise every 15 seconds, and it
# does not write what is left after the kill. Five rows, logged 5 seconds before SIGKILL, are lost, and the file has 7
# bytes, its heading. Logged 60 seconds before, or with finish in place of the kill, all are there.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check wandb==0.31.0 protobuf==7.36.2
cd "$work"
cat > training.py <<'PROGRAM'
import os
import signal
import sys
import time

import wandb

folder, seconds, end = sys.argv[1:]
run = wandb.init(project="clicks", dir=folder)
for step in range(5):
    run.log({"loss": 1 / (1 + step)})
time.sleep(float(seconds))
if end == "finish":
    run.finish()
os.kill(os.getpid(), signal.SIGKILL)
PROGRAM
cat > program.py <<'PROGRAM'
import subprocess
import sys
import time
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, HEADER = 32 * 1024, 7  # The file is a log of LevelDB after a heading of 7 bytes.


def rows_in(path):
    """Return the number of logged rows in a file of wandb."""
    content, at, record, rows = path.read_bytes(), HEADER, b"", 0
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        record += content[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (1, 4):  # the end of a record
            rows += Record.FromString(record).HasField("history")
            record = b""
    return rows


for name, seconds, end, right in (("soon", "5", "kill", 0), ("late", "60", "kill", 5), ("finish", "5", "finish", 5)):
    Path(name).mkdir()
    subprocess.run([sys.executable, "training.py", name, seconds, end], check=False, capture_output=True)
    time.sleep(5)
    (file,) = Path(name).glob("wandb/offline-run-*/run-*.wandb")
    print(f"{end} {seconds} s after the last row: {rows_in(file)} of 5 rows in a file of {file.stat().st_size:,} bytes")
    assert rows_in(file) == right
PROGRAM
HOME=$work WANDB_MODE=offline WANDB_SILENT=true venv/bin/python program.py
