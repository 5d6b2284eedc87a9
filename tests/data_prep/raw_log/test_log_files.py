import os
import random

import pytest

from data_prep.raw_log.log_files import find_log


def names(inputs):
    return [file.name for file in find_log(inputs)]


def touch(folder, *files):
    for file in files:
        (folder / file).touch()


def test_criteos_log_that_is_missing_says_how_to_get_it(tmp_path):
    for name in ("data/dac.tar.gz", "train.txt"):
        with pytest.raises(FileNotFoundError, match=r"Criteo AI Lab.*make synthesize"):
            find_log(tmp_path / name)


def test_a_missing_log_of_ones_own_says_what_is_there(tmp_path):
    def refused(path):
        with pytest.raises(FileNotFoundError) as error:
            find_log(path)
        assert "Criteo" not in str(error.value)
        return str(error.value)

    assert "holds no log: expected train.txt" in refused(tmp_path) and "or part files" in refused(tmp_path)
    assert refused(tmp_path).endswith("found nothing")
    assert f"there is no folder {tmp_path / 'logs'}" in refused(tmp_path / "logs" / "clicks.csv")
    touch(tmp_path, "clicks.csv", ".hidden", "users.xlsx")
    assert f"did you mean {tmp_path / 'clicks.csv'}?" in refused(tmp_path / "click.csv")
    assert f"the folder {tmp_path} holds clicks.csv, users.xlsx" in refused(tmp_path / "2024-05-01.parquet")


@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz", "dac.tar.gz"])
def test_a_folder_with_one_log_is_that_log(tmp_path, name):
    for file in (name, "test.txt", "readme.txt", f"{name}.truth.parquet"):
        (tmp_path / file).touch()
    assert [file.location for file in find_log(tmp_path)] == [str(tmp_path / name)]


def test_a_folder_with_several_logs_is_an_error(tmp_path):
    for name in ("train.txt", "dac.tar.gz"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"several logs \(dac.tar.gz, train.txt\)"):
        find_log(tmp_path)


def test_part_files_come_in_their_natural_order(tmp_path):
    days = [f"day_{day}.gz" for day in range(24)]
    for day in random.Random(1).sample(days, 24):
        (tmp_path / day).touch()
    touch(tmp_path, "README.md", "readme", "_SUCCESS", ".day_1.gz.crc", "day_0.gz.truth.parquet", "model.bin")
    assert names(tmp_path) == days
    assert names(str(tmp_path / "day_[0-9].gz")) == days[:10]
    assert names([tmp_path / "day_7.gz", tmp_path / "day_3.gz"]) == ["day_7.gz", "day_3.gz"]
    assert names(f"file://{tmp_path}/day_23.gz") == ["day_23.gz"]


@pytest.mark.parametrize("taken", [["train.txt"], ["day_0.gz", "day_1.gz"]])
def test_files_of_a_folder_that_are_skipped_are_named(tmp_path, caplog, taken):
    touch(tmp_path, *taken, "_SUCCESS", ".hidden", *(f"old{number}.bak" for number in range(11)))
    with caplog.at_level("INFO"):
        assert names(tmp_path) == taken
    assert caplog.messages == [
        f"these files of the folder {tmp_path} are not read as parts of the log: old0.bak, old1.bak, old2.bak, "
        "old3.bak, old4.bak and 6 more; to read one, give it as the input"
    ]
    caplog.clear()
    with caplog.at_level("INFO"):
        find_log(tmp_path / taken[0])
    assert caplog.messages == []


def test_a_part_of_a_folder_that_is_packed_in_another_way_is_said_to_be_so(tmp_path, caplog):
    touch(tmp_path, "day_1.csv.gz", "day_2.csv.xz", "notes.doc", "old.bak.zip")
    with caplog.at_level("INFO"):
        assert names(tmp_path) == ["day_1.csv.gz"]
    assert caplog.messages[0].endswith("give it as the input, packed by gzip or zstd instead: day_2.csv.xz")


def test_files_of_the_same_name_are_distinguished_by_their_folder(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        touch(tmp_path / folder, "part-0")
    assert names(str(tmp_path / "*" / "part-0")) == [str(tmp_path / folder / "part-0") for folder in "ab"]


def test_what_would_count_rows_twice_is_an_error(tmp_path):
    touch(tmp_path, "day_0", "day_0.gz", "day_1.gz")
    with pytest.raises(ValueError, match=r"holds day_0 and day_0.gz, which seem to be the same"):
        find_log(tmp_path)
    with pytest.raises(ValueError, match=r"names .*day_1.gz twice"):
        find_log([tmp_path / "day_1.gz", str(tmp_path / "*.gz")])
    (tmp_path / "link").symlink_to("day_0")
    for same in (f"{tmp_path}/./day_0", tmp_path / "link"):
        with pytest.raises(ValueError, match=r"names .*day_0 twice"):
            find_log([tmp_path / "day_0", same])


def test_pattern_without_a_file_is_quoted(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file matches .*day_\*\.gz \(quote the pattern"):
        find_log(str(tmp_path / "day_*.gz"))


def test_what_can_be_read_only_once_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "stream")
    for stream in (tmp_path / "stream", "/dev/null", "-"):
        with pytest.raises(ValueError, match="is a stream or a device, which can be read only once"):
            find_log(stream)


def test_a_link_that_leads_nowhere_is_an_error(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(FileNotFoundError, match="loop is a link that leads nowhere"):
        find_log(tmp_path / "loop")


@pytest.mark.parametrize("name", [b"day\xff", b"day\t1", b"day\n1"])
def test_a_name_that_rejects_tsv_cannot_have_is_an_error(tmp_path, name):
    (tmp_path / os.fsdecode(name)).touch()
    with pytest.raises(ValueError, match=r"the name of .*; rename the file"):
        find_log(tmp_path / os.fsdecode(name))
