"""Run the tests that draw examples, with other seeds, until the time is over: `make fuzz MINUTES=10`.

Each round is a process of its own with its own seed, so that a crash ends no more than the round. What a failing round
printed (the examples included) is saved, with the commands that repeat it.
"""

import argparse
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).parents[1]
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::\S+)", re.MULTILINE)
SECONDS_TO_END = 60  # for a round that is interrupted
DRAWS = re.compile(r"^from hypothesis|^import hypothesis", re.MULTILINE)
# pytest's status: passed, interrupted, no test ran; interrupted before it began, or by MindSpore's handler for Ctrl-C
OVER = (0, 2, 5, -signal.SIGINT, -signal.SIGTERM)


def round_command(seed: int, tests: list[str]) -> list[str]:
    """Return the command that runs `tests` with the examples of a seed."""
    words = ["-q", "-m", "hypothesis", "--hypothesis-profile=fuzz", f"--hypothesis-seed={seed}"]
    return [sys.executable, "-m", "pytest", f"--config-file={PROJECT / 'pyproject.toml'}", *words, *tests]


def run_round(seed: int, tests: list[str], seconds: float) -> tuple[int, str]:
    """Return the status and the output of a round, which is interrupted after so many seconds."""
    with subprocess.Popen(
        round_command(seed, tests), cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                output, _ = process.communicate(timeout=SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
    return process.returncode, output


def save_failure(folder: Path, seed: int, tests: list[str], status: int, output: str) -> Path | None:
    """Save and print what a round found, if it found anything."""
    failed = FAILED.findall(output)
    if status in OVER and not failed:
        return None
    repeat = "\n".join(shlex.join(round_command(seed, found)) for found in [[test] for test in failed] or [tests])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{seed}.txt"
    path.write_text(f"status {status}; to repeat:\n{repeat}\n\n{output}")
    print(path.read_text(), f"saved in {path}", sep="\n", flush=True)
    return path


def drawing_tests(folder: Path, seed: int) -> list[str]:
    """Return the test files that draw examples, in the seed's order: a short time is not always spent on the same."""
    files = sorted(str(path) for path in folder.rglob("test_*.py") if DRAWS.search(path.read_text()))
    random.Random(seed).shuffle(files)
    return files


def main() -> int:
    """Run rounds until the time is over; 1 where one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9, help="of the first round")
    parser.add_argument("--tests", type=Path, default=PROJECT / "tests")
    parser.add_argument("--output", type=Path, default=PROJECT / "build" / "fuzz")
    words = parser.parse_args()
    seed, end, saved = words.seed, time.monotonic() + 60 * words.minutes, []
    while (seconds := end - time.monotonic()) > 0:
        tests = drawing_tests(words.tests, seed)
        status, output = run_round(seed, tests, seconds)
        print(f"seed {seed}: {output.strip().splitlines()[-1] if output.strip() else 'no output'}", flush=True)
        saved.append(save_failure(words.output, seed, tests, status, output))
        seed += 1
    return int(any(saved))


if __name__ == "__main__":
    sys.exit(main())
