"""Native kernels, NumPy's and the plain reader of the format's description agree on hostile logs of any format.

python -m tests.data_prep.kernels.test_third_voice --schemas 200 --lines 1000000      compares on as many lines as that
"""

import argparse
import dataclasses
import gzip
import itertools
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.encoding.prepared_vocabulary import open_encoder
from data_prep.kernels import native
from data_prep.kernels.parsed import Chunk, FileOfLog
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.pipeline.split_files import window_order
from data_prep.prepared.data_files import row_numbers_file
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import SPLITS
from tests.data_prep.kernels.generated_logs import generate_log
from tests.data_prep.kernels.slow_reader import read_log, trains
from tests.prepared_folders import contents, field_options

KERNELS = ("native", "numpy") if native.is_available() else ("numpy",)
_ODD_BYTES = [b"\r", b"\r\r", b"\x1f", b'"', b"\0", b"\xff", b" ", b"\xef\xbb\xbf", b"x" * 70_000]


def draw_options(random_: random.Random, log) -> PrepareOptions:
    """Options of any kind for a log."""
    fields, is_small = log.log_format.categorical_fields, len(log.lines) < 1_000
    lists = {*log.log_format.columns_of_kind("list")}
    with_buckets = random_.random() < 0.4
    crossable = [*fields, *(f"{name}_bucket" for name in log.log_format.integer_fields if with_buckets)]
    crossable += [
        f"{name}_{part}" for name in log.log_format.time_fields for part in log.log_format.parts_of_time(name)
    ]
    split = random_.choice(["hash", "chronological", "stratified"])
    times = log.log_format.time_fields
    drawn = {tuple(sorted(random_.sample(crossable, min(random_.choice([2, 3]), len(crossable))))) for _ in range(2)}
    drawn |= {tuple(sorted({name, random_.choice(crossable)})) for name in lists if random_.random() < 0.5}
    crosses = tuple(sorted(parts for parts in drawn if len(parts) > 1))
    fields = [name for name in fields if name not in log.log_format.shares] + ["*".join(parts) for parts in crosses]
    of_lists = ["*".join(parts) for parts in crosses if lists & {*parts} and random_.random() < 0.5]
    hashed = random_.sample(fields, random_.choice([0, 0, 1, 2]) if len(fields) > 2 else 0)
    fields = [name for name in fields if name not in hashed]
    return PrepareOptions(
        data=log.log_format,
        vocabulary=random_.choice(["counted", "counted", "counted", "hash"]),
        min_count=random_.choice([1, 2, 10]),
        fields=field_options(
            min_count={random_.choice(fields): 3} if random_.random() < 0.3 else {},
            max_size={random_.choice(fields): random_.randrange(1, 9)} if random_.random() < 0.3 else {},
            hash_size={name: random_.choice([1, 7, 1_000]) for name in hashed},
            max_length={name: random_.choice([1, 3, 10, 30]) for name in of_lists},
        ),
        oov_buckets=random_.choice([1, 1, 3, 64]),
        split=split,
        split_by=random_.choice(times) if split == "chronological" and len(times) > 1 else "",
        train_fraction=0.7,
        valid_fraction=0.2,
        seed=random_.randrange(2**63),
        numeric_transform=random_.choice(["log1p", "max", "standardize", "log1p_standardize", "quantile", "piecewise"]),
        integer_buckets=with_buckets,
        crosses=crosses,
        shuffle_window_rows=random_.choice([7, 100, 10_000] if is_small else [1_000, 10_000]),
        max_reject_fraction=1.0,
        workers=1,
    )


def draw_files(random_: random.Random, log) -> dict[str, bytes]:
    """The log as one to three files: lines end in any way, and some have bytes where none should be."""
    lines = []
    for line in log.lines:
        if random_.random() < 0.02:
            place = random_.choice([0, len(line), random_.randint(0, len(line))])
            line = line[:place] + random_.choice(_ODD_BYTES) + line[place:]
        lines.append(line + random_.choice([b"\n", b"\n", b"\r\n"]))
    cuts = sorted(random_.sample(range(len(lines) + 1), random_.randint(0, 2)))
    header = log.header + b"\n" if log.log_format.header else b""
    parts = [header + b"".join(lines[first:end]) for first, end in itertools.pairwise([0, *cuts, len(lines)])]
    parts[-1] = parts[-1][:-1] if random_.random() < 0.5 else parts[-1]
    # A mark of UTF-8 at the start of a file is no part of its first cell.
    return {f"part-{number}.csv": part for number, part in enumerate(parts) if not part.startswith(b"\xef\xbb\xbf")}


def write_files(random_: random.Random, folder: Path, files: dict[str, bytes]) -> list[Path]:
    """Write each as it is, or packed; the paths."""
    folder.mkdir()
    paths = []
    for name, content in files.items():
        packed = random_.random() < 0.3
        paths.append(folder / (f"{name}.gz" if packed else name))
        paths[-1].write_bytes(gzip.compress(content, 1) if packed else content)
    return paths


def in_written_order(rows: list[tuple], schema) -> list[tuple]:
    """Return training rows, given in the order of the log, as the preparation shuffles them: window by window."""
    seed, window_rows = schema.options["seed"], schema.options["shuffle_window_rows"]
    windows = [rows[first : first + window_rows] for first in range(0, len(rows), window_rows)]
    return [window[row] for number, window in enumerate(windows) for row in window_order(seed, number, len(window))]


def check_folder(folder: Path, schema, expected) -> None:
    """Compare a prepared folder with what the plain reader expects."""
    assert schema.source["lines"] == expected.num_lines
    assert (folder / "rejects.tsv").read_bytes() == expected.rejects
    table = pq.read_table(folder / "vocabulary.parquet").to_pylist()
    assert [tuple(row[name] for name in ("field", "value", "count", "id")) for row in table] == expected.vocabulary
    for split in SPLITS:
        found = [
            (
                int(block.labels[row]),
                block.ids[row].tolist(),
                block.numeric[row].tolist(),
                1.0 if block.weights is None else float(block.weights[row]),
                {name: int(keys[row]) % 2**64 for name, keys in block.keys.items()},
                block.vectors[row].tolist(),
            )
            for block in read_blocks(folder, schema, split)
            for row in range(len(block))
        ]
        rows = [(*row[1:4], float(np.float32(row[4])), *row[5:]) for row in expected.rows[split]]
        of_split = schema.splits[split]
        assert (of_split.rows, of_split.clicks) == (len(rows), sum(label for label, *_ in rows))
        numbers = np.array([row[0] for row in expected.rows[split]], np.int64)
        assert of_split.membership == f"xxh3:{xxhash.xxh3_64(numbers.tobytes()).hexdigest()}"
        if split == "train":
            rows = in_written_order(rows, schema)
        elif (folder / row_numbers_file(split)).exists():
            assert np.load(folder / row_numbers_file(split)).tolist() == [row[0] for row in expected.rows[split]]
        assert [(*row[:2], *row[3:5]) for row in found] == [(*row[:2], *row[3:5]) for row in rows]
        assert np.allclose([row[2] for row in found], [row[2] for row in rows], rtol=1e-6, atol=1e-6)
        assert np.allclose([row[5] for row in found], [row[5] for row in rows], rtol=1e-5, atol=1e-5)


def check_scoring(folder: Path, log, files: dict[str, bytes], expected) -> None:
    """Compare what scoring, which needs no label, reads from the good lines with what the plain reader expects."""
    encoder, first, found = open_encoder(folder), 0, {}
    file = FileOfLog(columns=log.columns if log.log_format.others == "ignored" else ())
    for content in files.values():
        lines = content.partition(b"\n")[2] if log.log_format.header else content
        lines += b"\n" * (lines[-1:] not in (b"", b"\n"))
        parsed, rows = encoder.encode(Chunk(first, lines.count(b"\n"), lines, file))
        numbers = parsed.rows.row_numbers.tolist()
        of_rows = (rows.ids.tolist(), rows.numeric.tolist(), rows.vectors.tolist())
        found |= dict(zip(numbers, zip(*of_rows, strict=True), strict=True))
        first += lines.count(b"\n")
    rows = [row for of_split in expected.rows.values() for row in of_split]
    assert [found[row[0]][0] for row in rows] == [row[2] for row in rows]
    assert np.allclose([found[row[0]][1] for row in rows], [row[3] for row in rows], rtol=1e-6, atol=1e-6)
    assert np.allclose([found[row[0]][2] for row in rows], [row[6] for row in rows], rtol=1e-5, atol=1e-5)


def compare(seed: int, num_lines: int, folder: Path) -> tuple[int, int]:
    """Prepare the log of a seed by all kernels and by the plain reader; how many lines were kept, and rejected."""
    log, random_ = generate_log(seed, num_lines), random.Random(seed)
    options, files = draw_options(random_, log), draw_files(random_, log)
    if not files:
        return 0, 0
    if len(files) > 1 and random_.random() < 0.3:
        options = dataclasses.replace(options, split="files", split_by="", valid_files=("part-1.csv*",))
    paths = write_files(random_, folder / "log", files)
    files = {path.name: content for path, content in zip(paths, files.values(), strict=True)}
    expected = read_log(files, options)
    made = []
    for kernels in KERNELS:
        options = dataclasses.replace(options, kernels=kernels)
        chunk_bytes = 100 + random_.choice([len(log.text) // 50, len(log.text) // 7, 1 << 20])
        try:
            schema = prepare(paths, folder / kernels, options, chunk_bytes=chunk_bytes)
        except ValueError as error:
            is_right = not any(trains(row[4]) for row in expected.rows["train"])
            assert "is a training row" in str(error) and is_right, f"log {seed}: {error}"
            return 0, expected.num_lines
        check_folder(folder / kernels, schema, expected)
        made.append(contents(folder / kernels))
    assert all(one == made[0] for one in made)
    check_scoring(folder / KERNELS[0], log, files, expected)
    num_kept = sum(map(len, expected.rows.values()))
    num_rejected = expected.rejects.count(b"\n")
    assert num_kept + num_rejected == expected.num_lines
    return num_kept, num_rejected


@settings(max_examples=15)
@given(st.integers(0, 2**32))
def test_all_readers_agree(tmp_path_factory, seed):
    compare(seed, 150, tmp_path_factory.mktemp("third"))


@pytest.mark.parametrize("kernels", KERNELS)
def test_numbers_alone_get_a_category(tmp_path, kernels):
    random_ = random.Random(3)
    lines = [f"{random_.randint(0, 1)},{random_.choice(['', '3', '-7'])},{random_.random()}" for _ in range(300)]
    content = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / "log.csv").write_bytes(content)
    data = LogFormat({"label": "label", "a": "integer", "b": "float"}, ",")
    options = PrepareOptions(data=data, min_count=2, workers=1, kernels=kernels)
    schema = prepare(tmp_path / "log.csv", tmp_path / "out", options)
    check_folder(tmp_path / "out", schema, read_log({"log.csv": content}, options))


@pytest.mark.parametrize("seed", [5, 17])
def test_workers_and_memory_make_no_difference_to_a_bad_log(tmp_path, seed, monkeypatch):
    log = generate_log(seed, 1_000, bad_share=0.05)
    options = draw_options(random.Random(seed), log)
    (tmp_path / "log.csv").write_bytes(log.text)
    prepare(tmp_path / "log.csv", tmp_path / "one", options)
    prepare(tmp_path / "log.csv", tmp_path / "two", dataclasses.replace(options, workers=2), chunk_bytes=5_000)
    monkeypatch.setattr("data_prep.pipeline.memory_and_disk.counts_bytes", lambda *_: 1000)  # all counts go to disk
    prepare(tmp_path / "log.csv", tmp_path / "little", options, chunk_bytes=5_000)
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "little")


def main() -> None:
    """Compare the readers on as many lines of as many formats as asked for."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--lines", type=int, default=1_000_000, help="of all formats together")
    parser.add_argument("--seed", type=int, default=1)
    words = parser.parse_args()
    kept = rejected = 0
    for seed in range(words.seed, words.seed + words.schemas):
        with tempfile.TemporaryDirectory() as folder:
            of_log = compare(seed, -(-words.lines // words.schemas), Path(folder))
        print(f"{seed}: {of_log[0]:,} kept, {of_log[1]:,} rejected", file=sys.stderr)
        kept, rejected = kept + of_log[0], rejected + of_log[1]
    print(
        f"{words.schemas} formats: {kept:,} lines kept + {rejected:,} rejected = {kept + rejected:,}; "
        f"the plain reader, {' and '.join(KERNELS)} agree"
    )


if __name__ == "__main__":
    main()
