"""Prepare Criteo's log as the MindSpore model zoo does, as a contender of `benchmarks.preparation.prepare`.

    python -m benchmarks.peers.prepare_zoo LOG OUTPUT

The program follows preprocess_data.py of the zoo's Wide&Deep (gitee.com/mindspore/models,
official/recommend/Wide_and_Deep). It is a Python loop over the lines, with dictionaries whose keys have the form
"cat_3_68fd1e64". A first pass collects counts and ranges, a second one makes ids and scaled numbers. Samples of 1,000
rows are gathered in lists, and the last, incomplete sample of each part is dropped. They are written as MindRecord in
21 and 3 shards. Values are kept by the threshold of `benchmarks.preparation.prepare`, and not by the zoo's "more than
100".
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

NUM_VALUES, NUM_CATEGORIES = 13, 26
ROWS_A_SAMPLE = 1_000
SAMPLES_A_WRITE = 100  # the zoo's part_rows of 100,000
TRAIN_SHARDS, TEST_SHARDS = 21, 3
TEST_SHARE, SEED = 0.1, 2020


class Statistics:
    """Counts and ranges, then ids."""

    def __init__(self) -> None:
        self.num_lines = 0
        self.maxima = {f"val_{i + 1}": 0.0 for i in range(NUM_VALUES)}
        self.minima = {f"val_{i + 1}": 0.0 for i in range(NUM_VALUES)}
        self.counts: dict[str, dict[str, int]] = {f"cat_{i + 1}": defaultdict(int) for i in range(NUM_CATEGORIES)}
        self.ids = {key: i for i, key in enumerate(self.maxima)}
        self.ids |= {"OOV" + key: NUM_VALUES + i for i, key in enumerate(self.counts)}

    def add(self, values: list[str], categories: list[str]) -> None:
        self.num_lines += 1
        for i, value in enumerate(values):
            key = f"val_{i + 1}"
            if value != "":
                self.maxima[key] = max(self.maxima[key], float(value))
                self.minima[key] = min(self.minima[key], float(value))
        for i, category in enumerate(categories):
            self.counts[f"cat_{i + 1}"][category] += 1

    def give_ids(self, min_count: int) -> None:
        """Give ids to the values that were seen at least `min_count` times, in the order in which they first came."""
        for key, counts in self.counts.items():
            for category, count in counts.items():
                if count >= min_count:
                    self.ids[key + "_" + category] = len(self.ids)

    def encode(self, values: list[str], categories: list[str]) -> tuple[list[int], list[float]]:
        """Return the 39 ids and the 39 weights of one line."""
        ids, weights = [], []
        for i, value in enumerate(values):
            key = f"val_{i + 1}"
            ids.append(self.ids[key])
            weights.append(0.0 if value == "" else float(value) / self.maxima[key])
        for i, category in enumerate(categories):
            key = f"cat_{i + 1}"
            ids.append(self.ids.get(key + "_" + category, self.ids["OOV" + key]))
            weights.append(1.0)
        return ids, weights


class Part:
    """The training or the test rows, collected in lists until they fill a sample, and written as MindRecord files."""

    def __init__(self, path: Path, num_shards: int) -> None:
        from mindspore.mindrecord import FileWriter

        self._writer = FileWriter(str(path), num_shards)
        self._writer.add_schema(
            {
                "label": {"type": "float32", "shape": [-1]},
                "feat_vals": {"type": "float32", "shape": [-1]},
                "feat_ids": {"type": "int32", "shape": [-1]},
            },
            "CRITEO",
        )
        self._samples: list[dict[str, Any]] = []
        self._ids: list[int] = []
        self._weights: list[float] = []
        self._labels: list[float] = []

    def add(self, ids: list[int], weights: list[float], label: float) -> None:
        self._ids.extend(ids)
        self._weights.extend(weights)
        self._labels.append(label)
        if len(self._labels) == ROWS_A_SAMPLE:
            self._samples.append(
                {
                    "feat_ids": np.array(self._ids, np.int32),
                    "feat_vals": np.array(self._weights, np.float32),
                    "label": np.array(self._labels, np.float32),
                }
            )
            self._ids, self._weights, self._labels = [], [], []
        if len(self._samples) == SAMPLES_A_WRITE:
            self._write()

    def finish(self) -> None:
        """Write the collected samples and close the files. Rows that do not fill a sample are dropped."""
        if self._samples:
            self._write()
        self._writer.commit()

    def _write(self) -> None:
        self._writer.write_raw_data(self._samples)
        self._samples = []


def split_line(line: str) -> tuple[str, list[str], list[str]]:
    items = line.strip("\n").split("\t")
    return items[0], items[1 : 1 + NUM_VALUES], items[1 + NUM_VALUES :]


def prepare(log: Path, output: Path, min_count: int) -> None:
    statistics = Statistics()
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            _, values, categories = split_line(line)
            statistics.add(values, categories)
    statistics.give_ids(min_count)

    order = list(range(statistics.num_lines))
    np.random.seed(SEED)
    np.random.shuffle(order)
    test_lines = set(order[: int(statistics.num_lines * TEST_SHARE)])
    output.mkdir(parents=True)
    train = Part(output / "train_input_part.mindrecord", TRAIN_SHARDS)
    test = Part(output / "test_input_part.mindrecord", TEST_SHARDS)
    with log.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            label, values, categories = split_line(line)
            part = test if number in test_lines else train
            part.add(*statistics.encode(values, categories), float(label))
    train.finish()
    test.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--min-count", type=int, default=10)
    command = parser.parse_args()
    prepare(command.log, command.output, command.min_count)


if __name__ == "__main__":
    main()
