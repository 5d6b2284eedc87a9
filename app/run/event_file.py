"""Write TensorBoard event files that hold scalars. Each launch (start of a training) writes a file of its own.

Events and checksums come from tensorboardX, but the file is a `RunLog`: the writer of tensorboardX hands events to a
thread, so a kill would lose the latest events, and a full disk would end the thread.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from app.run.logs import RunLog


class EventFile(RunLog):
    """The TensorBoard event file that one launch (one start of a training) writes.

    `purge_step` is the first step that this launch takes. TensorBoard ignores points of this and later steps in older
    files, so that no point of a resumed run appears twice.
    """

    def __init__(self, folder: Path, purge_step: int) -> None:
        super().__init__(folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}")
        self._purge_step = purge_step

    def add(self, step: int, values: Mapping[str, Any], prefix: str) -> None:
        """Append a TensorBoard event with the finite numbers in `values` at `step` to the file.

        A number's tag is `prefix`/name. Values that are not finite numbers are left out.
        """
        numbers = {
            f"{prefix}/{name}": float(value)
            for name, value in values.items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        }
        if not numbers:
            return
        # Import tensorboardX only when the first event is written, because the import takes 0.2 s and more.
        with without_torch():
            from tensorboardX.proto.event_pb2 import Event, SessionLog
            from tensorboardX.proto.summary_pb2 import Summary
            from tensorboardX.record_writer import masked_crc32c

        events = []
        if self.is_written and not self.path.exists():
            events.append(Event(file_version="brain.Event:2"))
            if self._purge_step > 1:
                events.append(Event(step=self._purge_step, session_log=SessionLog(status=SessionLog.START)))
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
        events.append(Event(step=step, summary=Summary(value=scalars)))
        # If the folder cannot be made, `append` fails to open the file and logs the error.
        with suppress(OSError):
            self.path.parent.mkdir(exist_ok=True)
        for event in events:
            event.wall_time = time.time()
        # A record is framed by its length and checksums, as in TensorFlow's core/lib/io/record_writer.h.
        records = [event.SerializeToString() for event in events]
        parts = [part for record in records for part in (struct.pack("<Q", len(record)), record)]
        self.append(b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in parts))


@contextmanager
def without_torch() -> Iterator[None]:
    """Make `import torch` fail inside the `with` block, unless it was imported before.

    tensorboardX imports PyTorch, where it is installed, only for the name of a type. This takes two seconds, and one
    more at exit.
    """
    if "torch" in sys.modules:
        yield
        return
    # Python raises ImportError for a module that is None in `sys.modules`.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
