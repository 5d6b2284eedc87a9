"""Compare prepared folders and runs of two commits, byte by byte.

    python -m benchmarks.same_bytes COMMIT_A COMMIT_B [--rows 3000] [--only prepare one_rank] [--keep DIR]

Each commit is checked out into a temporary folder, its native parts are built, and both work on the same small logs,
with this Python and its packages. Prints a line for each comparison. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

from benchmarks.harness.commands import checked_out, run_command, work_folder

CONFIG, AVAZU = "configs/tiny.yaml", "configs/data/avazu.yaml"
# With fewer rows, all would go into the files of remaining rows, and none into the files of whole samples.
ZOO_ROWS = 16000


@dataclass(frozen=True)
class Version:
    """A commit of the project: its working tree, and the folder in which its commands run."""

    commit: str
    tree: Path
    folder: Path

    def must(self, *words: str) -> None:
        """Run `python -P -m WORDS` of this version in its folder. Raise SystemExit if the exit status is not 0."""
        run_command(*words, folder=self.folder, tree=self.tree, OMP_NUM_THREADS="1")


def write_avazu(path: Path, rows: int) -> None:
    """Write a log of Avazu's form: with a header, no numeric field, and hex values and short strings as cells."""
    rng, row = np.random.default_rng(1), np.arange(rows)
    site, app = ("site_id", "site_domain", "site_category"), ("app_id", "app_domain", "app_category")
    columns = {"id": 10**19 + row.astype(np.uint64), "click": (rng.random(rows) < 0.2).astype(int)}
    columns |= {"hour": 14102100 + 100 * (row * 10 // rows) + row % 24, "C1": np.full(rows, 1005)}
    columns |= {"banner_pos": rng.integers(3, size=rows)}
    for name in (*site, *app, "device_id", "device_ip", "device_model"):
        values = rng.pareto(0.8, rows).astype(np.int64) % 3000 * 2654435761 % 2**32
        columns[name] = np.array([f"{value:08x}" for value in values])
    for name in ("device_type", "device_conn_type", *(f"C{number}" for number in range(14, 22))):
        columns[name] = rng.choice(["0", "1", "", "35", "é/ü"], rows)
    pd.DataFrame(columns).to_csv(path, index=False)


# ---------------------------------------------------------------------- what is compared


def same_schema(a: Path, b: Path) -> bool:
    """Return True if two schema.json are equal. The folder of a synthetic log's truth file and checksums may differ."""
    ours, theirs = (json.loads(path.read_text()) for path in (a, b))
    for content in (ours, theirs):
        if truth := content["source"]["truth"]:
            content["source"]["truth"] = Path(truth).name
            content.pop("checksum", None)
    return bool(ours == theirs)


def same_tensors(a: Path, b: Path) -> bool:
    """Return True if two safetensors files hold arrays that are equal in every bit."""
    ours, theirs = load_file(a), load_file(b)
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype
        and ours[name].shape == theirs[name].shape
        and np.array_equal(ours[name].reshape(-1).view(np.uint8), theirs[name].reshape(-1).view(np.uint8))
        for name in ours
    )


def same_bytes(a: Path, b: Path) -> bool:
    return a.read_bytes() == b.read_bytes()


PREPARED: dict[str, Callable[[Path, Path], bool]] = {
    "*.mindrecord*": same_bytes,
    "vocabulary.parquet": same_bytes,
    "rejects.tsv": same_bytes,
    "statistics.json": same_bytes,
    "schema.json": same_schema,
}
RUN: dict[str, Callable[[Path, Path], bool]] = {
    "device_*/loss.log": same_bytes,
    "device_*/eval.log": same_bytes,
    "device_0/checkpoints/step-*/*.safetensors": same_tensors,
}


class Comparison:
    """Compares the files of two versions, prints what it finds, and counts the differences."""

    def __init__(self, a: Version, b: Version) -> None:
        self.versions = (a, b)
        self.differences = 0

    def files(self, title: str, folder: str, kinds: dict[str, Callable[[Path, Path], bool]]) -> None:
        """Compare the files in `folder` of both versions. `kinds` maps patterns of names to the comparison to use."""
        a, b = (version.folder / folder for version in self.versions)
        for pattern, same in kinds.items():
            ours, theirs = ({path.relative_to(top): path for path in top.glob(pattern)} for top in (a, b))
            differing = sorted(str(name) for name in ours.keys() ^ theirs.keys())
            differing += sorted(str(name) for name in ours.keys() & theirs.keys() if not same(ours[name], theirs[name]))
            detail = ", ".join(differing[:5]) if differing else f"{len(ours)} files"
            is_same = bool(ours) and not differing
            self.differences += not is_same
            found = f"{title}: {pattern}  {detail if ours or theirs else 'none found'}"
            print(f"{'same     ' if is_same else 'DIFFERENT'}  {found}", flush=True)

    def each(self, *words: str) -> None:
        """Run a command in both versions. It must succeed in both."""
        for version in self.versions:
            version.must(*words)


# ---------------------------------------------------------------------- the scenarios


def prepare_log(comparison: Comparison) -> None:
    """Prepare the log for the trainings in both versions, unless that is done already."""
    if not (comparison.versions[0].folder / "prepared").is_dir():
        comparison.each("data_prep", "prepare", "log.txt", "prepared", "--config", CONFIG, "prepare.workers=2")


def prepare(comparison: Comparison) -> None:
    """Prepared folders of Criteo's form, of Avazu's, and in the model zoo's layout."""
    prepare_log(comparison)
    comparison.files("Criteo", "prepared", PREPARED)
    words = ("--data", AVAZU, "prepare.workers=1", "prepare.oov_buckets=3")
    comparison.each("data_prep", "prepare", "avazu.csv", "avazu", "--config", CONFIG, *words)
    comparison.files("Avazu", "avazu", PREPARED)
    zoo = ("--layout", "zoo", "prepare.workers=1")
    comparison.each("data_prep", "prepare", "zoo.txt", "zoo", "--config", CONFIG, *zoo)
    comparison.files("zoo layout", "zoo", PREPARED)


def trained(title: str, *words: str) -> Callable[[Comparison], None]:
    """Return a scenario that trains both versions for one epoch with the options `words`, and compares the runs."""

    def scenario(comparison: Comparison) -> None:
        """A short training, in a folder of its own."""
        prepare_log(comparison)
        for version in comparison.versions:
            folder = version.folder / title
            folder.mkdir()
            (folder / "prepared").symlink_to(version.folder / "prepared")
            (folder / "configs").symlink_to(version.tree / "configs")
            there = Version(version.commit, version.tree, folder)
            there.must("app", "train", "--config", CONFIG, "--dataset", "prepared", *words, "train.epochs=1")
        comparison.files(title, title, RUN)

    return scenario


SCENARIOS: dict[str, Callable[[Comparison], None]] = {
    "prepare": prepare,
    "one_rank": trained("one_rank"),
    "stock": trained("stock", "tables.backend=stock"),
    "two_ranks": trained("two_ranks", "--ranks", "2"),
    "server": trained("server", "--servers", "1", "--ranks", "1"),
}


def compare(versions: tuple[Version, Version], rows: int, chosen: list[str]) -> int:
    """Run the chosen scenarios on two versions, whose folders are empty. Return the number of differences."""
    a, b = versions
    for version in versions:
        version.folder.mkdir(parents=True)
        (version.folder / "configs").symlink_to(version.tree / "configs")
    a.must("data_prep", "synthesize", "log.txt", "--rows", str(rows), "--seed", "1")
    a.must("data_prep", "synthesize", "zoo.txt", "--rows", str(max(rows, ZOO_ROWS)), "--seed", "2")
    write_avazu(a.folder / "avazu.csv", rows)
    # Copy the logs, and the true click probabilities of synthetic logs, to the other version.
    for path in a.folder.iterdir():
        if path.is_file() and not path.is_symlink():
            os.link(path, b.folder / path.name)
    comparison = Comparison(a, b)
    for name, scenario in SCENARIOS.items():
        if name in chosen:
            print(f"\n{name}: {(scenario.__doc__ or '').removesuffix('.')}")
            scenario(comparison)
    print(f"\n{comparison.differences or 'no'} differences between {a.commit} and {b.commit}")
    return comparison.differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs=2, metavar="COMMIT")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--keep", type=Path, help="work in this folder and leave the results there")
    options = parser.parse_args()
    a, b = options.commits
    with checked_out(a) as tree_a, checked_out(b) as tree_b, work_folder(options.keep) as folder:
        versions = Version(a, tree_a, folder / "a"), Version(b, tree_b, folder / "b")
        return int(compare(versions, options.rows, options.only) > 0)


if __name__ == "__main__":
    sys.exit(main())
