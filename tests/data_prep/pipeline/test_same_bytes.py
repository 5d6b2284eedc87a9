"""For any log and options: every line is kept or rejected, and the bytes depend on nothing else."""

import dataclasses
import itertools

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.execution.pieces import Pieces
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.data_files import row_numbers_file
from data_prep.prepared.schema import SPLITS
from data_prep.raw_log.formats import binary_kind
from tests.prepared_folders import contents

cells = st.sampled_from([b"", b"0", b"-7", b"12345", b"9999999999"])
values = st.sampled_from([b"", b"0000000a", b"ffffffff", b"12ab34cd"]) | st.integers(0, 40).map(lambda i: b"%08x" % i)


@st.composite
def good_lines(draw):
    """A line drawn from few cells, so that values come often and seldom."""
    numbers, hexes = draw(st.lists(cells, min_size=3, max_size=3)), draw(st.lists(values, min_size=4, max_size=4))
    cycle = [b"01"[draw(st.booleans()) :][:1], *itertools.islice(itertools.cycle(numbers), 13)]
    return b"\t".join([*cycle, *itertools.islice(itertools.cycle(hexes), 26)])


bad_lines = st.sampled_from([b"", b"2\t1", b"\0", b"\xff\xfe", b"1\t" * 39, b"0\t" * 40, b"x" * 70_000]) | st.binary(
    max_size=30
).map(lambda line: line.replace(b"\n", b" "))
logs = st.builds(
    lambda lines, ends, last: (
        b"".join(line + end for line, end in zip(lines, itertools.cycle(ends), strict=False)) + last
    ),
    st.lists(st.one_of(good_lines(), good_lines(), good_lines(), bad_lines), min_size=30, max_size=120),
    st.lists(st.sampled_from([b"\n", b"\r\n"]), min_size=1, max_size=3),
    st.sampled_from([b"", b"a line without end"]),
)
all_options = st.builds(
    PrepareOptions,
    vocabulary=st.sampled_from(["counted", "counted", "hash"]),
    min_count=st.sampled_from([1, 2, 5]),
    oov_buckets=st.sampled_from([1, 3]),
    split=st.sampled_from(["hash", "chronological", "stratified"]),
    numeric_transform=st.sampled_from(["log1p", "max", "standardize", "log1p_standardize", "piecewise"]),
    integer_buckets=st.booleans(),
    shuffle_window_rows=st.sampled_from([7, 50, 1000]),
    max_reject_fraction=st.just(1.0),
    workers=st.just(1),
)


def prepare_or_error(log_path, output, options, **named):
    """The folder's bytes, or why there is none (no training row)."""
    try:
        prepare(log_path, output, options, **named)
    except ValueError as error:
        return str(error)
    return contents(output)


class Ended(BaseException):
    """In place of a kill."""


def prepare_with_ends(log_path, output, options, ends, **named):
    """The same by runs that end before they write as many pieces as `ends` says each, until one is through."""
    write = Pieces.write
    for end in [*ends, 10**9]:
        calls = itertools.count()

        def write_or_end(*words, calls=calls, end=end):
            if next(calls) == end:
                raise Ended
            write(*words)

        Pieces.write = write_or_end
        try:
            return prepare_or_error(log_path, output, options, **named)
        except Ended:
            pass
        finally:
            Pieces.write = write
    raise AssertionError("the last run is not ended")


@settings(max_examples=12)
@given(logs, all_options, st.sampled_from([100, 2_000]), st.lists(st.integers(0, 25), max_size=4))
@example(b"PK\x03\x04" + b"0\t\n" * 30, PrepareOptions(workers=1), 100, [])  # begins as a zip file does
def test_every_line_is_a_row_or_a_reject_however_it_is_cut_and_ended(tmp_path_factory, log, options, chunk_bytes, ends):
    folder = tmp_path_factory.mktemp("same")
    (folder / "train.txt").write_bytes(log)
    files = {"file_rows": 2 * options.block_rows}
    whole = prepare_or_error(folder / "train.txt", folder / "whole", options, **files)
    numpy = dataclasses.replace(options, kernels="numpy")
    cut = prepare_with_ends(folder / "train.txt", folder / "cut", numpy, ends, chunk_bytes=chunk_bytes, **files)
    assert cut == whole
    if isinstance(whole, str):
        assert "is no text" in whole if binary_kind(log) else "is a training row" in whole
        assert not (folder / "whole").exists()
        return
    num_lines = log.count(b"\n") + (not log.endswith(b"\n"))
    schema = prepare(folder / "train.txt", folder / "again", options, **files)
    assert schema.source["lines"] == num_lines
    assert sum(split.rows for split in schema.splits.values()) + schema.rejected_rows == num_lines
    rejects = whole["rejects.tsv"].split(b"\n")[:-1]
    rejected = {int(line.split(b"\t")[0]) - 1 for line in rejects}
    assert len(rejects) == len(rejected) == schema.rejected_rows
    others = [np.load(folder / "whole" / row_numbers_file(split)) for split in SPLITS if split != "train"]
    kept = set(np.concatenate(others).tolist())
    assert not kept & rejected
    assert kept | rejected <= set(range(num_lines))
