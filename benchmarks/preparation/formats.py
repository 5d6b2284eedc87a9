"""Time whole preparations of made logs in each shipped format, and in those of an older commit.

    python -m benchmarks.preparation.formats --rows 300000 --rounds 3 --before FOLDER    an older commit's files, built

A preparation is a process of its own with one worker. Seconds are CPU seconds of the whole preparation, after the
imports: they depend little on what else the machine does. Each format takes its turn round by round. MB/s are of the
log's text.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness.timing import machine
from data_prep.sources.synthetic import synthesize

PROJECT = Path(__file__).parents[2]
_AVAZU = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip"
)
_AVAZU += ",device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
_GENRES = ("Action", "Comedy", "Drama", "Horror", "Romance", "Sci-Fi", "War", "Western")


def avazu(path: Path, rows: int) -> None:
    """Write lines as long as Avazu's."""
    draw = random.Random(1)  # noqa: S311
    with path.open("w") as file:
        file.write(_AVAZU + "\n")
        for _ in range(rows):
            hexes = ",".join(f"{int(draw.paretovariate(0.8)) % 9999 * 2654435761 % 2**32:08x}" for _ in range(9))
            codes = ",".join(str(draw.randrange(100, 2_000)) for _ in range(8))
            row = (
                f"{draw.randrange(10**19)},{draw.randrange(2)},141021{draw.randrange(24):02},1005,0,{hexes},1,0,{codes}"
            )
            file.write(row + "\n")


def movielens(path: Path, rows: int) -> None:
    """Write ratings with the genres of their movies."""
    draw = random.Random(1)  # noqa: S311
    with path.open("w") as file:
        file.write("userId,movieId,rating,timestamp,title,genres\n")
        for _ in range(rows):
            movie = int(draw.paretovariate(0.8)) % 50_000
            genres = "|".join(_GENRES[movie >> i & 7] for i in range(0, 3 * (1 + movie % 4), 3))
            row = f"{draw.randrange(200_000)},{movie},{draw.randrange(1, 11) / 2},{draw.randrange(10**9, 16 * 10**8)}"
            file.write(f"{row},Movie {movie} (1999),{genres}\n")


def criteo(path: Path, rows: int) -> None:
    """Write a synthetic log of Criteo's form."""
    synthesize(path, rows, 1)


MAKERS: dict[str, Callable[[Path, int], None]] = {"criteo": criteo, "avazu": avazu, "movielens": movielens}


_PROGRAM = """
import sys, time
from pathlib import Path
import mindspore.mindrecord
from data_prep.options.prepare_options import read_options
from data_prep.pipeline.prepare import prepare
log, data, output = map(Path, sys.argv[1:])
options = read_options(None, ["prepare.workers=1"], data)
start = time.process_time()
prepare(log, output, options, overwrite=True)
print(time.process_time() - start)
"""


def prepare(project: Path, log: Path, data: str, output: Path) -> float:
    """Prepare a log by the code in `project`; return the CPU seconds, after MindSpore is imported."""
    words = [sys.executable, "-c", _PROGRAM, str(log), str(project / "configs" / "data" / f"{data}.yaml"), str(output)]
    done = subprocess.run(words, cwd=project, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Print the rates of each format as a table and as one JSON line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, help="the files of an older commit, with its native parts built")
    words = parser.parse_args()
    contenders = [(name, "now", PROJECT) for name in MAKERS]
    if words.before:
        contenders += [(name, "before", words.before) for name in MAKERS if name != "movielens"]
    seconds: dict[tuple[str, str], list[float]] = {(name, when): [] for name, when, _ in contenders}
    with tempfile.TemporaryDirectory() as folder:
        for name, make in MAKERS.items():
            make(Path(folder) / f"{name}.txt", words.rows)
        for _ in range(words.rounds):
            for name, when, project in sorted(contenders):
                log = Path(folder) / f"{name}.txt"
                seconds[name, when].append(prepare(project, log, name, Path(folder) / f"{name}-{when}"))
        megabytes = {name: (Path(folder) / f"{name}.txt").stat().st_size / 1e6 for name in MAKERS}
    found = {}
    for (name, when), each in seconds.items():
        median = statistics.median(each)
        found[f"{name} {when}"] = {
            "rows_per_second": round(words.rows / median),
            "mb_per_second": round(megabytes[name] / median, 1),
            "spread": round((max(each) - min(each)) / median, 2),
        }
        print(f"{name:10} {when:7} {found[f'{name} {when}']}")
    print(json.dumps({"machine": machine(), "rows": words.rows, "rounds": words.rounds, "found": found}))


if __name__ == "__main__":
    main()
