"""The memory of docs/online.md for values that come and go: what tables, vocabulary, ages and counts take of a process.

The structures of an online run in a process of their own, without MindSpore: `python -P tests/…/test_memory.py FOLDER`.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from app.config.optimizer_settings import FtrlOptions, LazyAdamOptions
from app.online.expiry import IN_ROWS, Expiry, ExpiryOptions
from app.tables.interface import TableField, TablesSpec
from app.tables.native.tables import NativeTables
from common.arrays.pages import give_back_freed_memory
from data_prep.encoding.growing import SMALL_FIELD, GrowingVocabulary, open_to_grow
from data_prep.kernels.parsed import Chunk
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from tests.programs import run_python

COLUMNS, ROWS = 4, 25_000  # each cell of a part is a new value
MOST_IDS, NUM_NEW, FULL_EVERY, SKETCH_MIB = 200_000, COLUMNS * ROWS, 6, 8
NUM_PARTS = 10 * MOST_IDS // NUM_NEW
WIDTH = 16
PREPARE = PrepareOptions(
    data=LogFormat(columns={"click": "label", **{f"c{n}": "hex32" for n in range(COLUMNS)}}),
    min_count=1,
    workers=1,
    train_fraction=1.0,
    valid_fraction=0.0,
    test_fraction=0.0,
)


def bound(row_bytes):
    """The formula of docs/online.md, with the counts of --admission-mib."""
    num_rows = MOST_IDS + NUM_NEW + SMALL_FIELD * COLUMNS
    num_ids = MOST_IDS + NUM_NEW * FULL_EVERY + SMALL_FIELD * COLUMNS
    return 1.1 * num_rows * row_bytes + num_ids * (12 / 0.7 + 8 + 48 + 4) + (SKETCH_MIB + 10 << 20)


def lines_of(part, num_rows):
    """Rows of values that no other part has."""
    values = np.arange(part * ROWS, part * ROWS + num_rows, dtype=np.uint64) * np.uint64(0x9E3779B1) % np.uint64(2**32)
    return b"".join(
        b"\t".join([b"%d" % (row % 2), *[b"%08x" % value] * COLUMNS]) + b"\n" for row, value in enumerate(values)
    )


def resident_bytes():
    """Bytes in use, after what is free went back to the system as after a part."""
    give_back_freed_memory()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def main(folder):
    """Let values come and go, and print the bytes that are in use after each part."""
    log = folder / "log.txt"
    log.write_bytes(lines_of(0, 1000))
    prepare(log, folder / "first", PREPARE)
    schema = open_to_grow(folder / "first", folder / "prepared", None)
    spec = TablesSpec(
        vocabulary_size=schema.vocabulary_size,
        embedding_dim=WIDTH,
        fields=tuple(TableField(f"c{n}") for n in range(COLUMNS)),
        seed=1,
        initial_scale=0.01,
        l2_coef=0.0,
        wide_optimizer=FtrlOptions(),
        deep_optimizer=LazyAdamOptions(),
    )
    vocabulary = GrowingVocabulary(folder / "prepared", SKETCH_MIB << 20)
    tables = NativeTables(spec, {"wide": lambda step: 0.1, "deep": lambda step: 0.1}, 1)
    expiry, options, seen = Expiry(schema.vocabulary_size, None), ExpiryOptions(0, IN_ROWS, MOST_IDS), []
    before = resident_bytes()
    for part in range(1, NUM_PARTS + 1):
        parsed, rows = vocabulary.encoder.encode(Chunk(0, ROWS, lines_of(part, ROWS)))
        num_new, rows = vocabulary.add_values_of([parsed.rows], rows)
        assert num_new == NUM_NEW
        size = vocabulary.schema.vocabulary_size
        tables.grow(size)
        tables.touch(np.unique(rows.ids).astype(np.int64))
        expiry.touch(rows.ids, size, part * ROWS)
        gone = expiry.expire(vocabulary.can_expire(), vocabulary.counts_of_ids(), options)
        if len(gone):
            vocabulary.expire(gone)
            tables.remove(gone)
        if part % FULL_EVERY == 0 and vocabulary.schema.num_expired:
            counts, anew = vocabulary.counts(), folder / f"prepared-{part}"
            new_ids = vocabulary.renumbered(anew)
            vocabulary = GrowingVocabulary(anew, SKETCH_MIB << 20)
            vocabulary.load_counts([counts])
            tables.renumber(new_ids, vocabulary.schema.vocabulary_size)
            expiry.renumber(new_ids, vocabulary.schema.vocabulary_size)
        del parsed, rows
        seen.append(resident_bytes() - before)
    print([mib >> 20 for mib in seen])
    print(json.dumps({"seen": seen, "bound": bound(spec.row_bytes())}))


@pytest.mark.slow
def test_ten_times_more_values_than_fit_take_what_the_docs_say(tmp_path, command_environment, needs_native):
    needs_native()
    done = run_python("-P", __file__, tmp_path, env=command_environment)
    found = json.loads(done.stdout.splitlines()[-1])
    assert 0.5 * found["bound"] < max(found["seen"]) <= 1.05 * found["bound"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
