"""Measure training steps of two ranks on two hosts, whose link is unlimited, of 10 Gbit/s, or of 1 Gbit/s.

    python -m benchmarks.training.links                     about two minutes
    python -m benchmarks.training.links --beside COMMIT     also another commit, in turns: twice as long, and its build
    python -m benchmarks.training.links --quick             few steps: does everything work?

The hosts are network namespaces of this machine, and `tc tbf` limits their links; both need root. One training runs on
them and takes its steps in turns with each link. With another commit, or another folder with the built project, a
second training takes turns with the first. One of them is always suspended. Each rank has half of the cores.

The batches have 2,000 rows. D is 80 and the tower 1024-64. The ids are random among so many that nearly all of a batch
are distinct. Bytes are those that the interfaces of the hosts count, headers included: the mean of both hosts. The
last column is the time in which they pass the link, which the step would take at least if it only sent.
"""

from __future__ import annotations

import itertools
import os
import shutil
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.commands import checked_out, run_command, work_folder
from benchmarks.harness.hosts import Hosts
from benchmarks.harness.paused_training import PausedTraining
from benchmarks.harness.timing import Timing, in_turns, new_parser, print_result
from benchmarks.training.storage import write_log
from common.packages import PROJECT
from common.process import num_cores

# Bits per second of the links, by the names that `tc` gives these rates.
LINKS = {"unlimited": 0.0, "10gbit": 1e10, "1gbit": 1e9}
BATCH_SIZE, NUM_VALUES = 2000, 50_000  # NUM_VALUES: of each of the 26 columns.
SETTINGS = (
    f"train.batch_size={BATCH_SIZE}",
    "train.log_every_steps=1",
    "train.epochs=100",  # It is ended long before.
    "model.embedding_dim=80",
    "model.hidden_widths=[1024,64]",
    "device.precision=auto",
    "eval.every_steps=0",
    "checkpoint.every_steps=0",
)
PREPARATION = ("prepare.min_count=1", "prepare.integer_buckets=false")
WARM_UP_STEPS = 3
THIS = "this tree"


def start_training(tree: Path, folder: Path, prepared: Path, hosts: Hosts) -> PausedTraining:
    """Start a training with the sources in `tree` on both hosts, and wait until it has taken its first steps."""
    words = ("--config", str(PROJECT / "configs" / "criteo.yaml"), "--dataset", str(prepared), *SETTINGS)
    job = ("--ranks", "2", "--hostfile", str(hosts.file), f"device.threads={max(1, num_cores() // 2)}")
    training = PausedTraining(
        *words, *job, folder=folder, batch_size=BATCH_SIZE, tree=tree, environment=hosts.environment
    )
    try:
        training.take(WARM_UP_STEPS)
    except BaseException:
        training.close()
        raise
    return training


def turn(training: PausedTraining, link: str, steps: int, hosts: Hosts) -> tuple[list[float], int]:
    """Take steps with a link. Return the seconds of each, and the bytes that a host sent, by the mean of both."""
    hosts.limit(link if LINKS[link] else None)
    before = hosts.sent_bytes()
    seconds = training.take(steps)
    return seconds, (hosts.sent_bytes() - before) // len(hosts.names)


def summarize(turns: dict[str, list[tuple[list[float], int]]]) -> dict[str, dict[str, float]]:
    """Return the figures of one tree for each link: quartiles of the steps' seconds, the ratio of the median to that
    without limit, the bytes that a host sent in a step, and the seconds in which these bytes pass the link.
    """
    seconds = {link: list(itertools.chain.from_iterable(taken for taken, _ in turns[link])) for link in LINKS}
    # Each turn also takes one step that is not timed. Where it begins and ends differs by less than a step.
    steps = sum(len(taken) + 1 for link in LINKS for taken, _ in turns[link])
    sent = sum(num_bytes for link in LINKS for _, num_bytes in turns[link]) / steps
    unlimited = Timing.of(seconds["unlimited"]).median
    return {
        link: {
            **vars(timing),
            "over_unlimited": timing.median / unlimited,
            "bytes": sent,
            "calculated": 8 * sent / rate if rate else 0.0,
        }
        for link, rate in LINKS.items()
        for timing in (Timing.of(seconds[link]),)
    }


def show(figures: dict[str, dict[str, dict[str, float]]]) -> None:
    for name, links in figures.items():
        print(f"\n{name}: {links['unlimited']['bytes'] / 1e6:.1f} MB sent per host and step")
        print(f"{'link':10} {'median':>9} {'quartiles':>18} {'/ unlimited':>12} {'bytes / rate':>13}")
        for link, found in links.items():
            quartiles = f"[{1e3 * found['lower']:.0f} … {1e3 * found['upper']:.0f}]"
            line = f"{link:10} {1e3 * found['median']:6.0f} ms {quartiles:>18} {found['over_unlimited']:12.2f}"
            line += f"{1e3 * found['calculated']:11.0f} ms" if found["calculated"] else ""
            if name != THIS:
                line += f"   {found['median'] / figures[THIS][link]['median']:.2f} × {THIS}"
            print(line)


def measure(options: Any, folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Measure this tree, and the other version if there is one. Return the figures of each, by link."""
    # Every training row is taken at most once. 80 % of the rows are training rows.
    num_steps = WARM_UP_STEPS + 2 + (options.rounds * len(LINKS) + 1) * (options.steps + 2)
    write_log(folder / "log.txt", num_steps * BATCH_SIZE * 5 // 4, NUM_VALUES)
    run_command("data_prep", "prepare", "log.txt", "prepared", *PREPARATION, folder=folder)
    (folder / "hosts").mkdir()
    with ExitStack() as running:
        trees = {THIS: PROJECT}
        if (other := options.beside) is not None:
            is_folder = Path(other).is_dir()
            trees[other] = Path(other).resolve() if is_folder else running.enter_context(checked_out(other))
        hosts = running.enter_context(Hosts(folder / "hosts"))
        trainings = {}
        for number, (name, tree) in enumerate(trees.items()):
            training = start_training(tree, folder / f"run-{number}", folder / "prepared", hosts)
            trainings[name] = running.enter_context(closing(training))
        turns = {
            f"{name} {link}": partial(turn, training, link, options.steps, hosts)
            for link in LINKS
            for name, training in trainings.items()
        }
        found = in_turns(turns, options.rounds)
    return {name: summarize({link: found[f"{name} {link}"] for link in LINKS}) for name in trees}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="of a turn (%(default)s)")
    parser.add_argument("--beside", metavar="FOLDER_OR_COMMIT", help="also measure this version of the project")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 2 steps")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps = 2, 2
    if os.geteuid():
        raise SystemExit("error: network namespaces and limits of links need root; start this benchmark as root")
    if missing := [name for name in ("ip", "tc", "nsenter", "unshare") if shutil.which(name) is None]:
        raise SystemExit(f"error: {', '.join(missing)} missing: apt-get install iproute2 util-linux")
    load = os.getloadavg()[0]
    try:
        with work_folder(None) as folder:
            figures = measure(options, folder)
    except PermissionError as error:
        raise SystemExit(f"error: {error}") from error
    show(figures)
    print_result(options, load_before=load, trees=figures)


if __name__ == "__main__":
    main()
