import bz2
import codecs
import gzip
import io
import lzma
import pickle
import re
import sqlite3
import struct
import tarfile
import tempfile
import tracemalloc
import zipfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pytest
import xxhash
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from data_prep.checks.propose import describe
from data_prep.kernels.parse import parse_chunk
from data_prep.kernels.parsed import MAX_LINE_BYTES
from data_prep.options.log_format import LogFormat
from data_prep.raw_log import storage
from data_prep.raw_log.formats import binary_kind
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.text_lines import header_columns
from data_prep.raw_log.text_lines import open_reader as open_file

TEXT = b"".join(b"line %d\n" % i for i in range(1000))


def zstd(*frames):
    return b"".join(pa.compress(frame, "zstd", asbytes=True) for frame in frames)


def write_tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def open_log(path):
    return open_file(find_log(path)[0], LogFormat())


def read_all(path, chunk_bytes=100):
    with open_log(path) as reader:
        return b"".join(chunk.load().lines for chunk, _ in reader.chunks(chunk_bytes))


def test_text_gzip_zstd_and_tar_give_the_same_lines(tmp_path):
    text, zipped, frames, archive = (
        tmp_path / name for name in ("train.txt", "train.txt.gz", "train.txt.zst", "dac.tar.gz")
    )
    frames.write_bytes(zstd(TEXT[:500], TEXT[500:]))
    text.write_bytes(TEXT)
    zipped.write_bytes(gzip.compress(TEXT[:500]) + gzip.compress(TEXT[500:]))  # as `cat a.gz b.gz` makes them
    write_tar(archive, {"readme.txt": b"hello", "./train.txt": TEXT, "test.txt": b"no labels"})
    assert read_all(text) == read_all(zipped) == read_all(frames) == read_all(archive) == TEXT


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=30), st.integers(1, 500))
def test_chunks_are_whole_lines_and_all_of_them(tmp_path_factory, lines, chunk_bytes):
    text = b"\n".join(lines)
    assume(not binary_kind(text) and not text.startswith(codecs.BOM_UTF8))
    path = tmp_path_factory.mktemp("raw") / "train.txt"
    path.write_bytes(b"\n".join(lines))
    with open_log(path) as reader:
        chunks = [chunk.load() for chunk, _ in reader.chunks(chunk_bytes)]
    expected = lines[:-1] if lines and not lines[-1] else lines  # what follows the last line end is no line
    assert b"".join(chunk.lines for chunk in chunks) == b"".join(line + b"\n" for line in expected)
    next_line = 0
    for chunk in chunks:
        assert chunk.first_line == next_line
        assert chunk.lines.endswith(b"\n")
        assert chunk.num_lines == chunk.lines.count(b"\n")
        assert chunk.num_lines <= max(chunk_bytes // len(LogFormat().columns), 1)  # else they are no good lines
        next_line += chunk.num_lines


@pytest.mark.parametrize("chunk_bytes", [1000, 10**6])
def test_a_file_without_line_ends_does_not_fill_the_memory(tmp_path, chunk_bytes):
    path = tmp_path / "train.txt"
    path.write_bytes(b"a\n" + b"x" * 500_000 + b"\nb")
    with open_log(path) as reader:
        lines = b"".join(chunk.load().lines for chunk, _ in reader.chunks(chunk_bytes)).split(b"\n")
    assert [lines[0], *lines[2:]] == [b"a", b"b", b""]
    assert len(lines[1]) > MAX_LINE_BYTES
    if chunk_bytes == 1000:
        assert len(lines[1]) < 2 * (MAX_LINE_BYTES + chunk_bytes)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\nthird\nlast"])
@pytest.mark.parametrize("extra_bytes", [-1, 0, 1, 2, 2 * MAX_LINE_BYTES])
def test_the_longest_line_is_as_long_for_any_chunk_size(tmp_path, extra_bytes, end):
    path = tmp_path / "train.txt"
    path.write_bytes(b"first\n" + b"x" * (MAX_LINE_BYTES + extra_bytes) + end)
    rejects = []
    for chunk_bytes in (1000, *range(MAX_LINE_BYTES - 1, MAX_LINE_BYTES + 4), MAX_LINE_BYTES + 7, 10**6):
        with open_log(path) as reader:
            parsed = [parse_chunk(chunk.load(), LogFormat()) for chunk, _ in reader.chunks(chunk_bytes)]
        rejects.append(b"".join(part.rejects_tsv for part in parsed))
    assert len(set(rejects)) == 1
    assert (b"too long" in rejects[0]) == (extra_bytes + end.startswith(b"\r") > 0)
    after = b"3\tcolumns\tthird\n4\tcolumns\tlast\n" if end.endswith(b"last") else b""
    assert rejects[0].partition(b"\n2\t")[2].partition(b"\n")[2] == after


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path, make_log, header, packed):
    text = make_log(50).encode()
    names = "\t".join(LogFormat().columns).encode() + b"\n" if header else b""
    log_format = LogFormat(header=header)
    path = tmp_path / ("train.txt.gz" if packed else "train.txt")
    found = []
    for mark in (b"", b"\xef\xbb\xbf"):
        path.write_bytes((gzip.compress if packed else bytes)(mark + names + text))
        with open_file(find_log(path)[0], log_format) as reader:
            found.append(b"".join(task.load().lines for task, _ in reader.chunks(1000)))
    assert found == [text, text]


@pytest.mark.parametrize("start", [codecs.BOM_UTF8, b"PAR1\x15", b"SQLite format 3\0"])
def test_the_start_of_a_file_is_seen_though_its_server_gives_a_byte_at_a_time(tmp_path, make_log, monkeypatch, start):
    (tmp_path / "train.txt").write_bytes(start + make_log(5).encode())

    class Slow(io.BytesIO):
        def readinto(self, buffer):
            return super().readinto(memoryview(buffer)[:1])

    monkeypatch.setattr(storage, "open_stream", lambda location: Slow(Path(location).read_bytes()))
    with nullcontext() if start == codecs.BOM_UTF8 else pytest.raises(ValueError, match="no text"):
        assert read_all(tmp_path / "train.txt", 1000) == make_log(5).encode()


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("start", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
def test_utf_16_is_named_with_what_converts_it(tmp_path, start, header, packed):
    code = "utf-16-le" if start == codecs.BOM_UTF16_LE else "utf-16-be"
    data = start + "label\tcolour\n1\trot\n".encode(code)
    path = tmp_path / f"log.txt{'.gz' * packed}"
    path.write_bytes(gzip.compress(data) if packed else data)
    log_format = LogFormat(header=header, columns={"label": "label", "colour": "categorical"})
    (file,) = find_log(path)
    message = r"log\.txt.* is UTF-16, .*iconv -f UTF-16 -t UTF-8 OLD > NEW"
    with pytest.raises(ValueError, match=message), open_file(file, log_format):
        pass
    with pytest.raises(ValueError, match="is UTF-16"):
        header_columns(file, log_format)


@pytest.mark.parametrize("text", [b"", b"1", b"1\t", b"\xef\xbb\n", b"\xef\xbb\xbf"])
def test_a_short_log_is_looked_at_for_a_byte_order_mark_and_kept(tmp_path, text):
    (tmp_path / "train.txt").write_bytes(text)
    lines = text.removeprefix(b"\xef\xbb\xbf")
    assert read_all(tmp_path / "train.txt") == (lines + b"\n" if lines and not lines.endswith(b"\n") else lines)


def test_the_fingerprint_is_of_the_file_as_stored(tmp_path):
    path = tmp_path / "dac.tar.gz"
    write_tar(path, {"train.txt": TEXT, "zz.txt": TEXT})
    with open_log(path) as reader:
        for _ in reader.chunks(1000):
            pass
    assert reader.fingerprint.size_bytes == path.stat().st_size
    assert reader.fingerprint.checksum == f"xxh3:{xxhash.xxh3_64(path.read_bytes()).hexdigest()}"


@pytest.mark.parametrize("name", ["train.txt.gz", "train.txt.zst", "dac.tar.gz"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "garbage"])
def test_damaged_archives_are_errors(tmp_path, name, damage):
    path = tmp_path / name
    if name.endswith(".tar.gz"):
        write_tar(path, {"train.txt": TEXT})
    else:
        path.write_bytes(gzip.compress(TEXT) if name.endswith(".gz") else zstd(TEXT))
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        del content[-20:]
    elif damage == "flipped":
        content[-6] ^= 1  # of the check sum
    else:
        content += b"garbage"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged or was not downloaded to its end"):
        read_all(path)


def test_a_wrong_check_sum_far_behind_the_log_is_an_error(tmp_path):
    """Archives may end in zeros, which tarfile does not read."""
    write_tar(tmp_path / "whole.tar.gz", {"train.txt": TEXT})
    content = bytearray(gzip.compress(gzip.decompress((tmp_path / "whole.tar.gz").read_bytes()) + bytes(5 << 20)))
    (tmp_path / "padded.tar.gz").write_bytes(content)
    assert read_all(tmp_path / "padded.tar.gz") == TEXT
    content[-6] ^= 1
    (tmp_path / "padded.tar.gz").write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        read_all(tmp_path / "padded.tar.gz")


LEAVING = dict.fromkeys(("../train.txt", "/train.txt", "dac/../../train.txt"), "a path that leaves the folder")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        *(([name], message) for name, message in LEAVING.items()),
        *((["train.txt", name], message) for name, message in LEAVING.items()),
        (["a/train.txt", "b/train.txt"], r"holds train twice, as a/train.txt and b/train.txt; unpack it"),
        (["readme.txt"], r"holds no file named train, .*; it holds: readme.txt\. Unpack it"),
        ([f"{number}.txt" for number in range(100)], r"it holds: 0.txt, .*, 19.txt, …\. Unpack"),
    ],
)
def test_a_tar_with_other_members_than_one_log_is_an_error(tmp_path, names, message):
    write_tar(tmp_path / "dac.tar.gz", dict.fromkeys(names, TEXT))
    with pytest.raises(ValueError, match=message):
        read_all(tmp_path / "dac.tar.gz")


def header(name, kind, size=0, form=tarfile.GNU_FORMAT):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(form)


def padded(content):
    return content + bytes(-len(content) % 512)


def pax(**records):
    content = b""
    for name, value in records.items():
        record = f" {name.replace('__', '.')}={value}\n".encode()
        length = len(record) + 1
        while len(str(length)) + len(record) != length:
            length = len(str(length)) + len(record)
        content += str(length).encode() + record
    return header("pax", tarfile.XHDTYPE, len(content)) + padded(content)


LOG = header("train.txt", tarfile.REGTYPE, 5) + padded(b"line\n")
ENDLESS = b"\0" * (20 << 20)
HOSTILE = {
    "pax": (header("pax", tarfile.XHDTYPE, 8 << 30) + ENDLESS, "has a header of 8,589,934,592 bytes, at most"),
    "global pax": (header("pax", tarfile.XGLTYPE, 8 << 30) + ENDLESS, "has a header of 8,589,934,592 bytes"),
    "long name": (header("x", tarfile.GNUTYPE_LONGNAME, 8 << 30) + ENDLESS, "has a header of 8,589,934,592 bytes"),
    "long link": (header("x", tarfile.GNUTYPE_LONGLINK, 1 << 40) + ENDLESS, "has a header of"),
    "chain": (pax(comment="x") * 2_000 + LOG, "has more than 8 headers"),
    "sparse": (header("train.txt", tarfile.GNUTYPE_SPARSE, 1 << 50), "'train.txt' is sparse"),
    "sparse 0.0": (pax(GNU__sparse__size=1 << 50) + LOG, "'train.txt' is sparse"),
    "sparse 0.1": (pax(GNU__sparse__map="0,1") + LOG, "'train.txt' is sparse"),
    "sparse 1.0": (pax(GNU__sparse__major=1, GNU__sparse__minor=0) + LOG, "'train.txt' is sparse"),
    "negative": (header("train.txt", tarfile.REGTYPE, -512), "has a size below 0"),
    "link": (header("train.txt", tarfile.SYMTYPE), "'train.txt' is a link"),
    "hard link": (header("train.txt", tarfile.LNKTYPE), "'train.txt' is a link"),
    "pipe": (header("train.txt", tarfile.FIFOTYPE), "'train.txt' is a device"),
    "absolute by pax": (pax(path="/etc/train.txt") + LOG, "'/etc/train.txt' is a path that leaves the folder"),
    "many": (header("x", tarfile.DIRTYPE) * 102 + LOG, "is one of more than 100"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_hostile_tar_is_refused_in_bounded_memory(tmp_path, name, place, monkeypatch):
    monkeypatch.setattr("data_prep.raw_log.text_lines._MOST_MEMBERS", 100)
    content, message = HOSTILE[name]
    end = bytes(1024)
    content = content + end if place == "before" else LOG + content + end
    (tmp_path / "dac.tar.gz").write_bytes(gzip.compress(content, 1))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=rf"dac.tar.gz is not trusted: its member .*{message}.*; get the archive"):
            read_all(tmp_path / "dac.tar.gz")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_long_names_and_pax_headers_of_usual_size_are_fine(tmp_path):
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(tmp_path / "dac.tar.gz", "w:gz", format=form) as archive:
            info = tarfile.TarInfo("é" * 300 + "/train.txt")
            info.size, info.mtime = len(TEXT), 1.5
            archive.addfile(info, io.BytesIO(TEXT))
        assert read_all(tmp_path / "dac.tar.gz") == TEXT


def written(write):
    """Return the bytes that a library writes to a file."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "file")
        return max(Path(folder).iterdir()).read_bytes()


def zipped(name):
    return written(lambda path: zipfile.ZipFile(path, "w").writestr(name, "text"))


FRAME = pd.DataFrame({"click": [0, 1] * 100, "site": ["a", None] * 100})
TABLE = pa.Table.from_pandas(FRAME)
OTHER_FILES = {
    "rename it to end in .gz": gzip.compress(TEXT),
    "rename it to end in .parquet": written(FRAME.to_parquet),
    "bzcat OLD": bz2.compress(TEXT),
    "xzcat OLD": lzma.compress(TEXT),
    "unzip -p OLD": zipped("log.csv"),
    "pandas.read_excel(OLD)": zipped("[Content_Types].xml"),
    "numpy.load(OLD)": written(lambda path: np.savez(path, click=np.arange(9))),
    "pandas.DataFrame(numpy.load(OLD))": written(lambda path: np.save(path, np.arange(9))),
    "rename it to end in .feather": written(lambda path: pyarrow.feather.write_feather(TABLE, path)),
    "pyarrow.ipc.open_stream(OLD)": written(lambda path: pa.ipc.new_stream(path, TABLE.schema).write_table(TABLE)),
    "pyarrow.orc.read_table(OLD)": written(lambda path: pyarrow.orc.write_table(TABLE, path)),
    "polars.read_avro(OLD)": b"Obj\x01\x04\x14avro.codec\x08null",
    "sqlite3 -header": written(lambda path: sqlite3.connect(path).executescript("CREATE TABLE log (click)").close()),
    "pandas.read_pickle(OLD)": pickle.dumps(FRAME),
    "duckdb OLD -c": bytes(range(8)) + b"DUCK" + bytes(60),
    "tar -xf OLD": tarfile.TarInfo("log.csv").tobuf() + bytes(1024),
    "look at what the page says": b"<!DOCTYPE html><title>Log in</title>" * 20,
    "tf.data.TFRecordDataset(OLD)": struct.pack("<QI", 70, 0x9ABC1234) + b"\n\x44\x0a\x42" + bytes(70),
}


@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz", "log.zst", "log.parquet", "log.jsonl", "in.gz"])
@pytest.mark.parametrize("advice", OTHER_FILES)
def test_other_files_are_named_with_a_conversion(tmp_path, advice, name):
    content = OTHER_FILES[advice]
    is_right = content.startswith({"z": b"\x1f\x8b", "t": b"PAR1"}.get(name[-1], b"-"))
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name == "in.gz" else content)
    if not is_right or name == "in.gz":
        with pytest.raises(ValueError, match=rf"{name}.*{re.escape(advice)}"):
            describe(str(path))


@pytest.mark.parametrize("start", [b"PAR1,7", b"ORC\t1", b"FEA1", b"Obj", b"BZh91", b"SQLite format 3", b"ARROW1,2"])
def test_text_may_begin_with_the_letters_of_other_files(tmp_path, start):
    (tmp_path / "train.txt").write_bytes(start + b"\n" + TEXT)
    assert read_all(tmp_path / "train.txt") == start + b"\n" + TEXT


def test_plain_text_named_as_packed_is_renamed(tmp_path):
    for name in ("train.txt.gz", "train.txt.zst", "dac.tar.gz"):
        (tmp_path / name).write_bytes(TEXT)
        with pytest.raises(ValueError, match="if it is plain text, rename it"):
            read_all(tmp_path / name)


@pytest.mark.parametrize("window", [27, 28])
def test_a_long_window_is_named_with_the_command_that_repacks(tmp_path, window):
    # One raw block of a frame whose header declares the window: a descriptor, 1 << (10 + exponent) bytes.
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([(window - 10) << 3]) + struct.pack("<I", len(TEXT[:99]) << 3 | 1)[:3]
    (tmp_path / "train.txt.zst").write_bytes(frame + TEXT[:99])
    with nullcontext() if window == 27 else pytest.raises(ValueError, match=r"zstd -dc --long=31 OLD.zst"):
        assert read_all(tmp_path / "train.txt.zst").startswith(TEXT[:99])


def test_a_chunk_that_is_not_there_any_more_is_an_error(tmp_path):
    path = tmp_path / "train.txt"
    path.write_bytes(TEXT)
    with open_log(path) as reader:
        chunks = [task for task, _ in reader.chunks(1000)]
    for changed in (TEXT[:-1], b"x" * len(TEXT)):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"train.txt changed or vanished while it was read"):
            chunks[-1].load()


@pytest.mark.parametrize("name", ["train.txt.gz", "train.txt.zst", "dac.tar.gz"])
def test_a_packed_file_of_no_bytes_is_an_error(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=rf"{name} has 0 bytes, which is not even an empty packed file"):
        read_all(tmp_path / name)


def test_the_header_of_a_file_that_vanished_is_an_error_with_advice(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("a,b\n1,2\n")
    (file,) = find_log(path)
    path.unlink()
    with pytest.raises(ValueError, match=r"log.csv changed or vanished while it was read; prepare it again"):
        header_columns(file, LogFormat(separator=",", header=True))
