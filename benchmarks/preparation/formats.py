"""Time the parsers, and whole preparations, of made logs in each shipped format, and in those of an older commit.

    python -m benchmarks.preparation.formats --rows 300000 --rounds 3 --before FOLDER    an older commit's files, built

A parser reads 4 MiB of lines several times in a process of its own. A preparation is a process with one worker; its
seconds are CPU seconds after the imports: they depend little on what else the machine does. Each format takes its turn
round by round. MB/s are of the log's text, cells are those of its lines.
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
from data_prep.options.prepare_options import read_options
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


_PARSERS = """
import statistics, sys, time
from pathlib import Path
from data_prep.execution.memory import keep_freed_memory
from data_prep.kernels.choose import choose_kernels
from data_prep.kernels.rows import Chunk, FileOfLog
from data_prep.options.prepare_options import read_options
log, data = map(Path, sys.argv[1:])
log_format = read_options(None, [], data).data
keep_freed_memory()  # as a preparation does
text = log.read_bytes()
header, lines = text.split(b"\\n", 1) if log_format.header else (b"", text)
lines = lines[:lines.rindex(b"\\n", 0, 4 << 20) + 1]
chunk = Chunk(0, lines.count(b"\\n"), lines)
if getattr(log_format, "others", "") == "ignored":
    chunk = Chunk(0, chunk.num_lines, lines, FileOfLog(columns=tuple(header.decode().split(","))))
for name, calls in (("native", 25), ("numpy", 3)):
    seconds = []
    for _ in range(calls + 1):
        start = time.perf_counter()
        choose_kernels(name).parse_chunk(chunk, log_format)
        seconds.append(time.perf_counter() - start)
    print(name, statistics.median(seconds[1:]) / chunk.num_lines)
"""


def parse(project: Path, log: Path, data: str) -> dict[str, float]:
    """Parse a log by the code in `project`; return the seconds a line by kernels."""
    words = [sys.executable, "-c", _PARSERS, str(log), str(project / "configs" / "data" / f"{data}.yaml")]
    done = subprocess.run(words, cwd=project, check=True, capture_output=True, text=True)
    return {name: float(seconds) for name, seconds in (line.split() for line in done.stdout.splitlines())}


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
    seconds: dict[tuple[str, str, str], list[float]] = {}  # a line
    with tempfile.TemporaryDirectory() as folder:
        logs = {name: Path(folder) / f"{name}.txt" for name in MAKERS}
        for name, make in MAKERS.items():
            make(logs[name], words.rows)
        for _ in range(words.rounds):
            for name, when, project in sorted(contenders):
                for kernels, of_line in parse(project, logs[name], name).items():
                    seconds.setdefault((f"parser, {kernels}", name, when), []).append(of_line)
        for _ in range(words.rounds):
            for name, when, project in sorted(contenders):
                whole = prepare(project, logs[name], name, Path(folder) / f"{name}-{when}")
                seconds.setdefault(("preparation", name, when), []).append(whole / words.rows)
        line_bytes = {name: log.stat().st_size / words.rows for name, log in logs.items()}
    found = {}
    for (what, name, when), each in seconds.items():
        median = statistics.median(each)
        cells = len(read_options(None, [], PROJECT / "configs" / "data" / f"{name}.yaml").data.columns)
        found[f"{what} {name} {when}"] = figures = {
            "rows_per_second": round(1 / median),
            "mb_per_second": round(line_bytes[name] / median / 1e6, 1),
            "million_cells_per_second": round(cells / median / 1e6, 1),
            "spread": round((max(each) - min(each)) / median, 2),
        }
        row = "{rows_per_second:>10,} rows/s {mb_per_second:>7} MB/s {million_cells_per_second:>6} M cells/s".format(
            **figures
        )
        print(f"{what:15} {name:10} {when:7} {row}  spread {figures['spread']:.0%}")
    print(json.dumps({"machine": machine(), "rows": words.rows, "rounds": words.rounds, "found": found}))


if __name__ == "__main__":
    main()
