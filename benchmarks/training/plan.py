"""Compare the memory that `python -m app plan` predicts with the memory that trainings really take.

    python -m benchmarks.training.plan                       all of configs/*.yaml and 60 random settings, half an hour
    python -m benchmarks.training.plan --number 6 --seed 2   only six random settings, others than those of seed 1
    python -m benchmarks.training.plan --number 60 --minutes 20   as many of them as begin within 20 minutes

Each of the settings is first trained without a limit, and the training's log says what it expected and what it took.
Then `plan` judges the same settings in a cgroup whose limit is 0.8 to 1.3 times what was taken. If `plan` says that
they fit, they are trained in that cgroup, and must not be killed. If `plan` refuses although less than 85 % of the
limit was taken, it refused needlessly. Without the rights to make a cgroup, only the first comparison is made.
"""

from __future__ import annotations

import random
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.cgroup import memory_cgroup, run_app, set_limit
from benchmarks.harness.commands import run_command
from benchmarks.harness.timing import new_parser, print_result
from common.packages import PROJECT

MIB = 1 << 20
LEAST_LIMIT, MOST_LIMIT = 0.8, 1.3  # Range of the random limits, as multiples of the memory that was taken.
NEEDLESS = 0.85
VERDICTS = "fits", "killed", "refused", "refused needlessly"
JOBS = ((), ("--ranks", "2"), ("--ranks", "1", "--servers", "1"))
SIZE = re.compile(r"([\d.,]+) (KiB|MiB|GiB)")
USED = re.compile("memory used at most: (.*); expected: (.*)")
# What a training prints if it found no room for its rows (`require_memory`, or a refused allocation), and what mpirun
# prints if the system has killed a rank.
NO_MEMORY = re.compile(r"error: .* needs [\d,]+ MiB more; |error: no memory |MemoryError|bad_alloc|signal 9 \(Killed\)")
KILLED = -9, 137
# Random settings, beside those that `random_words` draws itself.
CHOICES = {
    "train.ema_decay": ("0", "0", "0.999"),
    "tables.dtype": ("float32", "float32", "bfloat16"),
    "device.precision": ("float32", "float32", "bfloat16"),
    "deep_optimizer.name": ("adam", "lazy_adam", "adagrad", "rowwise_adagrad", "sgd", "partial_rowwise_adam"),
    "tower_optimizer.name": ("adam", "adam", "adamw", "adagrad"),
    "model.embedding_dim": ("4", "8", "16", "32"),
    "train.batch_size": ("200", "1000", "3000", "6000"),
    "model.dropout": ("0", "0", "0.2"),
    "model.batch_norm": (*["false"] * 4, "true"),
    "model.activation": (*["relu"] * 9, "gelu"),
    "checkpoint.every_steps": ("0", "0", "40"),
    "checkpoint.background": ("true", "false"),
    "checkpoint.delta": ("false", "true"),
    "eval.every_steps": ("0", "0", "60"),
    "train.epochs": ("1", "1", "2"),
    "train.profile": (*["false"] * 5, "true"),
    "train.auto": ("false",),
    "tables.storage": ("memory",),
}
# Preparations of the same synthetic log: many values, few values, and few rows.
PREPARATIONS = {
    "many": ("prepare.min_count=1", "prepare.integer_buckets=false"),
    "few": ("prepare.min_count=10", "prepare.integer_buckets=true"),
    "lists": ("prepare.min_count=2", "--data"),
}
ROWS = 60_000
LISTS = """
header: true
separator: ","
missing: [""]
columns: {click: label, user: string, item: string, price: integer, tags: list}
lists: {tags: {separator: "|", max_length: 8}}
"""


@dataclass(frozen=True)
class Measured:
    """What one training expected and took, in MiB of the rank, and what happened under a limit: "" if there was none,
    else "fits", "killed" although `plan` said that it fits, "refused" or "refused needlessly".
    """

    words: tuple[str, ...]
    expected: float
    taken: float
    verdict: str = ""

    @property
    def ratio(self) -> float:
        return self.expected / self.taken


def prepare(folder: Path) -> dict[str, Path]:
    """Prepare logs with many values, with few values, and with a list. Return the prepared folders by name."""
    run_command("data_prep", "synthesize", "log.txt", "--rows", str(ROWS), folder=folder)
    rng = random.Random(0)  # noqa: S311 (not for secrets)
    lines = ["click,user,item,price,tags"]
    for _ in range(ROWS):
        tags = "|".join(f"t{rng.randrange(3000)}" for _ in range(rng.randrange(8)))
        values = rng.randrange(2), f"u{rng.randrange(60_000)}", f"i{rng.randrange(9000)}", rng.randrange(100), tags
        lines.append(",".join(map(str, values)))
    (folder / "lists.csv").write_text("\n".join(lines) + "\n")
    (folder / "lists.yaml").write_text(LISTS)
    for name, words in PREPARATIONS.items():
        log, more = ("lists.csv", ("lists.yaml",)) if name == "lists" else ("log.txt", ())
        run_command("data_prep", "prepare", log, name, *words, *more, folder=folder)
    return {name: folder / name for name in PREPARATIONS}


def random_words(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    """Return the name of a preparation, and random arguments of `train`."""
    chosen = {name: rng.choice(values) for name, values in CHOICES.items()}
    widths = [rng.choice((16, 64, 256, 512)) for _ in range(rng.randint(1, 3))]
    words = [f"{name}={value}" for name, value in chosen.items()]
    words.append(f"model.hidden_widths={widths}".replace(" ", ""))
    job = rng.choice(JOBS) if rng.random() < 0.15 else ()
    return rng.choice(list(PREPARATIONS)), (*words, *job)


def mib(text: str) -> float:
    """Return the first size in a text such as "1.2 GiB, 300 MiB" in MiB."""
    match = SIZE.search(text)
    assert match is not None, text
    return float(match[1].replace(",", "")) * {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[match[2]]


def train(words: tuple[str, ...], dataset: Path, folder: Path, group: Path | None = None) -> re.Match[str] | None:
    """Train a new run. Return the match of its log line on memory, or None if it found too little memory: it was
    killed, or it ended with an error that says so. Raise SystemExit if it fails for another reason.
    """
    arguments = ("--dataset", str(dataset), "--name", "run", "train.resume=never", *words)
    status, printed = run_app("train", *arguments, folder=folder, group=group)
    for run in folder.glob("run*"):
        subprocess.run(["rm", "-r", str(run)], check=True)
    match = USED.search(printed)
    if match is None and status not in KILLED and not NO_MEMORY.search(printed):
        raise SystemExit(f"train {' '.join(arguments)} ended with {status}:\n{printed[-2000:]}")
    return match


def measure(words: tuple[str, ...], dataset: Path, folder: Path, group: Path | None, factor: float) -> Measured:
    """Train with and without a limit, which is `factor` times what the training takes without one."""
    match = train(words, dataset, folder)
    if match is None:
        raise SystemExit(f"this machine has too little memory for train {' '.join(words)}")
    measured = Measured(words, mib(match[2]), mib(match[1]))
    if group is None or not factor:
        return measured
    taken = sum(mib(size) for size in match[1].split(", "))
    set_limit(group, int(factor * taken * MIB))
    status, printed = run_app("plan", str(dataset), *words, folder=folder, group=group)
    if status == 2:
        assert "it does not fit" in printed, printed
        return replace(measured, verdict="refused needlessly" if 1 / factor < NEEDLESS else "refused")
    return replace(measured, verdict="killed" if train(words, dataset, folder, group) is None else "fits")


def measure_all(number: int, seed: int, recipes: list[Path], seconds: float) -> list[Measured]:
    """Measure recipes of configs/ with one process, two ranks and a server, and then random settings. Begin none after
    `seconds`.
    """
    results, start = [], time.monotonic()
    with tempfile.TemporaryDirectory() as name, memory_cgroup() as group:
        folder = Path(name)
        prepared = prepare(folder)
        cases = []
        for recipe in recipes:
            steps = ("train.epochs=1", "tables.storage=memory")
            for job in JOBS:
                # Servers do not take the cosine schedules of some recipes.
                constant = [
                    f"{part}_optimizer.schedule.name=constant" for part in ("wide", "deep") if "--servers" in job
                ]
                cases.append(("few", ("--config", str(recipe), *steps, *constant, *job), 0.0))
        rng = random.Random(seed)  # noqa: S311 (not for secrets)
        for _ in range(number):
            preparation, words = random_words(rng)
            cases.append((preparation, words, rng.uniform(LEAST_LIMIT, MOST_LIMIT)))
        for preparation, words, factor in cases:
            if time.monotonic() - start > seconds:
                break
            measured = measure(words, prepared[preparation], folder, group, factor)
            results.append(measured)
            shown = f"{measured.expected:7,.0f} MiB expected, {measured.taken:7,.0f} taken, {measured.ratio:.2f}"
            print(f"{shown}  {measured.verdict:18}  {preparation} {' '.join(words)}", flush=True)
    return results


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--number", type=int, metavar="N", help="of random settings alone (60, and configs/*.yaml)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the random settings (%(default)s)")
    parser.add_argument("--minutes", type=float, default=60, metavar="N", help="begin no training later (%(default)s)")
    options = parser.parse_args()
    recipes = sorted((PROJECT / "configs").glob("*.yaml")) if options.number is None else []
    results = measure_all(60 if options.number is None else options.number, options.seed, recipes, 60 * options.minutes)
    ratios = sorted(result.ratio for result in results)
    found = [result.verdict for result in results]
    figures = {
        "expected over taken, least": ratios[0],
        "expected over taken, median": ratios[len(ratios) // 2],
        "expected over taken, most": ratios[-1],
        "settings": len(results),
        **{f"{verdict} under a limit": found.count(verdict) for verdict in VERDICTS},
    }
    print("\n" + "\n".join(f"{name}: {figure:.3g}" for name, figure in figures.items()))
    print_result(options, ratios=figures)


if __name__ == "__main__":
    main()
