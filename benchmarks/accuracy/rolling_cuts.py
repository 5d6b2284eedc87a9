"""Rolling cuts of a log: train on what came before, test on the tenth that came next.

Cut k tests the tenth k (0 … 9) with a model of all rows before it. Its settings are chosen without them: by models of
the rows before the tenth k - 1, judged on that tenth.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import SCHEMA_FILE

TENTHS = 10
CUTS = (5, 6, 7, 8, 9)


@dataclass(frozen=True)
class Cut:
    """Cut number `k` of a log of `lines` lines. Its prepared folders are made in `folder` when they are first used."""

    log: Path
    lines: int
    k: int
    folder: Path

    def choosing(self, options: PrepareOptions) -> Path:
        """Return the prepared folder in which settings are chosen.

        Its training rows are all before the tenth k - 1, its valid rows are that tenth, and it has no test rows.
        """
        return self._prepared("choosing", options, self._tenth(self.k - 1), self._tenth(self.k), self._tenth(self.k))

    def testing(self, options: PrepareOptions) -> Path:
        """Return the prepared folder in which models are tested.

        Its training rows are all before the tenth k, it has no valid rows, and its test rows are the tenth k.
        """
        return self._prepared("testing", options, self._tenth(self.k), self._tenth(self.k), self._tenth(self.k + 1))

    def _tenth(self, tenth: int) -> int:
        return self.lines * tenth // TENTHS

    def _prepared(self, name: str, options: PrepareOptions, train_end: int, valid_end: int, end: int) -> Path:
        output = self.folder / f"cut-{self.k}" / f"{name}-min{options.min_count}"
        if not (output / SCHEMA_FILE).is_file():
            output.parent.mkdir(parents=True, exist_ok=True)
            part = output.with_name(f"{output.name}.txt")
            with self.log.open("rb") as log, part.open("wb") as lines:
                lines.writelines(itertools.islice(log, end))
            train, valid = train_end / end, (valid_end - train_end) / end
            test = (end - valid_end) / end
            shares = replace(options, train_fraction=train, valid_fraction=valid, test_fraction=test)
            prepare(part, output, replace(shares, split="chronological", workers=1))
            part.unlink()
        return output


def make_cuts(log: Path, folder: Path, ks: tuple[int, ...] = CUTS) -> list[Cut]:
    with log.open("rb") as file:
        lines = sum(1 for _ in file)
    return [Cut(log, lines, k, folder) for k in ks]
