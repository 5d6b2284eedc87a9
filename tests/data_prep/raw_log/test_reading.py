import gzip
import tempfile
import uuid
from pathlib import Path

import pytest
import xxhash

from data_prep.execution.pieces import Pieces
from data_prep.execution.tasks import Pools
from data_prep.options.executor import ExecutorChoice
from data_prep.options.log_format import LogFormat
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.reading import LogProgress, LogReading


def reading_of(paths, folder):
    return LogReading(
        find_log(paths), LogFormat(), Pools(ExecutorChoice()), 1, 100, Pieces(Path(tempfile.mkdtemp(dir=folder)))
    )


def collect(reading):
    chunks = []
    reading.run(lambda chunk: chunk, chunks.append, f"read-{uuid.uuid4()}")
    return chunks


@pytest.fixture(name="parts")
def parts_fixture(tmp_path):
    """Text and packed parts, with an empty one; and all their lines."""
    texts = [b"".join(b"%d %d\n" % (part, line) for line in range(50 * part)) for part in range(4)]
    paths = []
    for part, text in enumerate(texts):
        paths.append(tmp_path / f"part-{part}{'.gz' if part % 2 else ''}")
        paths[-1].write_bytes(gzip.compress(text) if part % 2 else text)
    return paths, b"".join(texts)


def test_many_files_are_one_log(tmp_path, parts, caplog):
    paths, text = parts
    reading = reading_of(paths, tmp_path)
    for _ in range(2):  # the second time, workers read what is not packed themselves
        chunks = collect(reading)
        assert b"".join(chunk.lines for chunk in chunks) == text
        next_line = 0
        for chunk in chunks:
            assert chunk.first_line == next_line
            next_line += chunk.num_lines
            assert chunk.file.name == paths[chunk.file.place].name
            assert chunk.lines.startswith(b"%d %d\n" % (chunk.file.place, chunk.first_line - chunk.file.first_line))
    assert [file.lines for file in reading.files_read] == [0, 50, 100, 150]
    assert "part-0 has no lines" in caplog.text
    for file, path in zip(reading.files_read, paths, strict=True):
        assert file.checksum == f"xxh3:{xxhash.xxh3_64(path.read_bytes()).hexdigest()}"
    assert reading.count_lines() == 300


def test_the_fingerprint_of_many_files_is_of_all_of_them(tmp_path, parts):
    paths, _ = parts
    found = []
    for chosen in (paths, paths, paths[1:], paths[::-1]):
        reading = reading_of(chosen, tmp_path)
        reading.count_lines()
        found.append(reading.fingerprint)
    assert found[0] == found[1]
    assert len({fingerprint.checksum for fingerprint in found}) == 3


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("change", ["vanish", "grow"])
@pytest.mark.parametrize("times_read", [0, 1])
def test_a_part_that_vanishes_or_grows_half_way_is_an_error(tmp_path, parts, place, change, times_read):
    paths, _ = parts
    reading = reading_of(paths, tmp_path)
    for _ in range(times_read):
        collect(reading)

    def consume(chunk):
        if chunk.file.place == 1 and paths[place].exists():
            if change == "vanish":
                paths[place].unlink()
            else:
                with paths[place].open("ab") as file:
                    file.write(b"more\n")

    with pytest.raises(ValueError, match=rf"{paths[place].name} changed or vanished while it was read"):
        reading.run(lambda chunk: chunk, consume, "once more")


@pytest.mark.parametrize("change", ["vanish", "grow"])
def test_a_part_that_changes_after_it_was_read_is_an_error(tmp_path, parts, change):
    """Workers may have read it later."""
    paths, _ = parts

    def consume(chunk):
        if chunk.file.place == 3:
            if change == "grow":
                paths[2].write_bytes(paths[2].read_bytes() + b"more\n")
            else:
                paths[2].unlink(missing_ok=True)

    with pytest.raises(ValueError, match=rf"{paths[2].name} changed or vanished while it was read"):
        reading_of(paths, tmp_path).run(lambda chunk: chunk, consume, "read")


def test_bar_moves_as_chunks_are_done(capsys, monkeypatch):
    monkeypatch.setattr("common.console.SECONDS_PER_LINE", 0)
    with LogProgress("rows", 400) as progress:
        progress.chunk_is_given(10, 100)
        progress.chunk_is_given(20, 300)
        progress.chunk_is_given(30, 400)
        progress.chunk_is_done()
        progress.chunk_is_done()
    assert "300/400" in capsys.readouterr().err.splitlines()[-1]
