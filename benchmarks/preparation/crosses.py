"""Time of a preparation with crosses of the log's large fields, against the same without.

    python -m benchmarks.preparation.crosses [--rows 300000] [--rounds 5]

Both write the whole folder (no report) and take turns. The crosses are of two large fields, of a large and a small one,
and of three. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path

from benchmarks.harness.timing import machine, side_by_side
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.sources.synthetic import synthesize

CROSSES = (("C3", "C4"), ("C10", "C6"), ("C14", "C17", "C23"))


def main() -> None:
    """Print rows/s of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    plain = PrepareOptions()
    of_name = {"no crosses": plain, "3 crosses": dataclasses.replace(plain, crosses=CROSSES)}
    with tempfile.TemporaryDirectory() as folder:
        log, output = Path(folder) / "log.txt", Path(folder) / "prepared"
        synthesize(log, options.rows)
        contenders = {
            name: lambda chosen=chosen: prepare(log, output, chosen, overwrite=True) for name, chosen in of_name.items()
        }
        found = side_by_side(contenders, options.rounds, warm_up=1)
    for name, timing in found.items():
        print(f"{name:12} {options.rows / timing.median:10,.0f} rows/s   {timing}")
    ratio = found["3 crosses"].median / found["no crosses"].median
    print(f"3 crosses take {ratio:.2f} × the time")
    rates = {name: options.rows / timing.median for name, timing in found.items()}
    print(json.dumps({"machine": machine(), "rows": options.rows, "rows_per_second": rates, "times": ratio}))


if __name__ == "__main__":
    main()
