"""Measure how much processor time each piece of the work on a part takes, by timing functions of `online --once`.

python -m benchmarks.online.pieces SOURCE RUN WORK [OPTION …]     train on the parts of SOURCE, and print a line of JSON
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from app.__main__ import main as app
from app.online import online_trainer
from app.online.log_parts import PartSource
from app.online.online_trainer import OnlineTrainer
from app.online.progress import Progress
from app.online.publish import Publisher, Samples
from data_prep.encoding.encoder import RowEncoder
from data_prep.encoding.growing import GrowingVocabulary
from data_prep.statistics.value_counts import ValueSketch

WHOLE = "rest"  # The piece that has the rest of a part's time.
PIECES: dict[str, list[tuple[Any, str]]] = {
    "find, checksum": [(PartSource, "next_part")],
    "read, parse": [(online_trainer, "read_part")],
    "encode": [(RowEncoder, "encode_rows")],
    "guard": [(GrowingVocabulary, "shares"), (online_trainer, "why_suspicious"), (Samples, "shift")],
    "score before": [(OnlineTrainer, "_measure_part")],
    "intervals": [(OnlineTrainer, "_values")],
    "new values": [(GrowingVocabulary, "add_values_of"), (OnlineTrainer, "_take_new_ids")],
    "admission": [(ValueSketch, "note"), (ValueSketch, "add"), (OnlineTrainer, "_save_counts")],
    "train": [(OnlineTrainer, "_train_part")],
    "score candidate": [(OnlineTrainer, "_judge")],
    "expire": [(OnlineTrainer, "_expire")],
    "checkpoint": [(OnlineTrainer, "_save_and_publish")],
    "bundle": [(Publisher, "publish")],
    "page, status": [(OnlineTrainer, "_write_status"), (Progress, "show")],
    WHOLE: [(OnlineTrainer, "_take_part")],
}


class Clock:
    """Seconds of processor time, of all threads, that each piece of the work on a part takes.

    A piece is a function of the product, without the functions that are pieces of their own.
    """

    def __init__(self) -> None:
        self.parts: list[dict[str, float]] = []
        self._seconds: dict[str, float] = defaultdict(float)
        self._stack, self._since = [""], time.process_time()

    def _switch(self) -> None:
        now = time.process_time()
        self._seconds[self._stack[-1]] += now - self._since
        self._since = now

    @contextmanager
    def piece(self, name: str) -> Iterator[None]:
        """Measure the `with` block as the piece `name`. The end of the piece WHOLE is the end of a part."""
        self._switch()
        self._stack.append(name)
        try:
            yield
        finally:
            self._switch()
            self._stack.pop()
            if name == WHOLE:
                self.parts.append(dict(self._seconds))
                self._seconds.clear()


def main() -> None:
    source, run, work = sys.argv[1:4]
    clock = Clock()
    for piece, functions in PIECES.items():
        for owner, name in functions:
            setattr(owner, name, clock.piece(piece)(getattr(owner, name)))
    folders = ["--work", f"{work}/online", "--serve", f"{work}/bundles"]
    if status := app(["online", source, *sys.argv[4:], "--from", run, *folders, "--once"]):
        raise SystemExit(status)
    print(json.dumps({piece: float(np.median([part.get(piece, 0) for part in clock.parts[1:]])) for piece in PIECES}))


if __name__ == "__main__":
    main()
