"""Raw lines encoded with the vocabulary of a prepared folder, against the rows that the preparation wrote."""

import subprocess
import sys

import numpy as np
import pytest

from data_prep.encoding.encoder import Chunk
from data_prep.encoding.prepared_vocabulary import open_encoder
from data_prep.options.options_file import read_options
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import SPLITS, read_schema


def sorted_rows(blocks):
    """All rows as one array, in an order of their own."""
    blocks = list(blocks)
    columns = [np.concatenate([getattr(b, name) for b in blocks]) for name in ("ids", "numeric", "labels")]
    rows = np.column_stack([column.astype(np.float64) for column in columns])
    return rows[np.lexsort(rows.T)]


def written_rows(folder):
    schema = read_schema(folder)
    return sorted_rows(block for split in SPLITS for block in read_blocks(folder, schema, split))


def check_same_rows(log, folder):
    lines = log.read_bytes()
    parsed, rows = open_encoder(folder).encode(Chunk(0, lines.count(b"\n"), lines))
    assert not parsed.rejects_by_reason
    assert rows.ids.dtype == read_schema(folder).ids_dtype
    assert np.array_equal(sorted_rows([rows]), written_rows(folder))


def test_a_log_gets_the_rows_that_were_prepared_from_it(log_path, prepared):
    check_same_rows(log_path, prepared)


def test_text_values_get_their_ids_too(project, tmp_path, make_avazu):
    log = tmp_path / "train.csv"
    log.write_text(make_avazu(500))
    overrides = ("prepare.workers=1", "prepare.min_count=2", "prepare.oov_buckets=3")
    prepare(log, tmp_path / "prepared", read_options(None, overrides, project / "configs" / "data" / "avazu.yaml"))
    log.write_text(log.read_text().split("\n", 1)[1])  # the header is not a row
    check_same_rows(log, tmp_path / "prepared")


def test_a_bad_line_is_rejected_as_in_a_preparation(make_line, prepared):
    lines = (make_line() + "\n1\t2\n").encode()
    parsed, rows = open_encoder(prepared).encode(Chunk(0, 2, lines))
    assert len(rows) == 1
    assert sum(parsed.rejects_by_reason.values()) == 1


def test_a_folder_that_is_not_prepared_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_encoder(tmp_path)


def test_mindspore_is_not_imported():
    program = "import sys, data_prep.encoding.encoder; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
