import re

import pytest

from data_prep.options.options_file import read_options, read_recorded
from data_prep.options.prepare_options import PrepareOptions

# Settings of a log with a list; they follow one another in a text.
LISTED = "prepare.data.columns={click: label, user: string, ad: hex32, genres: list}"
CROSSED = f"{LISTED} prepare.crosses=[[user,genres],[user,ad]]"
SEVERAL_TIMES = "prepare.data.columns={click: label, seen: timestamp, sold: timestamp, site: string}"


def test_defaults_then_yaml_then_arguments(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("prepare:\n  min_count: 101\n  split: chronological\ntrain:\n  batch_size: 16000\n")
    options = read_options(config, ["prepare.split=hash", "prepare.seed=7"])
    assert options == PrepareOptions(min_count=101, seed=7)
    config.write_text("train: {batch_size: 16000}\n")
    assert read_options() == read_options(config) == PrepareOptions()


def test_settings_that_only_fit_together():
    options = read_options(overrides=["prepare.train_fraction=0.5", "prepare.test_fraction=0.4"])
    assert (options.train_fraction, options.valid_fraction, options.test_fraction) == (0.5, 0.1, 0.4)


def test_the_time_to_split_by_is_chosen():
    words = f"{SEVERAL_TIMES} prepare.split=chronological prepare.split_by=sold"
    assert read_options(overrides=re.split(r" (?=prepare\.)", words)).split_time == "sold"


def test_numbers_by_field():
    options = read_options(overrides=["prepare.fields={C3: {min_count: 20}, C4: {min_count: 30}}"])
    assert options.of_fields("min_count") == {"C3": 20, "C4": 30}
    assert options.decisive()["field_min_count"] == {"C3": 20, "C4": 30}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("prepare.mincount=3", r"unknown key 'prepare.mincount'; did you mean 'prepare.min_count'"),
        ("train.batch_size=3", r"unknown key 'train'; known here: prepare"),
        ("prepare.split=random", r"'prepare.split' must be one of hash, chronological, .*, files; found 'random'"),
        ("prepare.min_count=0", r"prepare.min_count must be 1 or more; found 0"),
        ("prepare.workers=0", r"prepare.workers must be 1 or more; found 0"),
        ("prepare.train_fraction=0.9", r"must be >= 0 and sum to 1"),
        ("prepare.train_fraction=0 prepare.seed=2", r"arguments '.*fraction=0', 'prepare.seed=2': .* sum to 1"),
        ("prepare.train_fraction=.nan", r"must be >= 0 and sum to 1"),
        ("prepare.max_reject_fraction=2", r"max_reject_fraction must be between 0 and 1; found 2"),
        ("prepare.block_rows=64", r"it was removed, so leave it out: a MindRecord sample has 1,000 rows"),
        ("prepare.memory_limit=much", r"memory_limit must be a size such as '4 GiB' or '512 MiB'; found 'much'"),
        ("prepare.split=files", r"split: files and valid_files or test_files belong together"),
        ("prepare.test_files=[a]", r"belong together; found split 'hash'"),
        ("prepare.fields={C27: {min_count: 3}}", r"fields: unknown field 'C27'; known here: C1 … C26"),
        ("prepare.fields={C1: {max_size: 0}}", r"prepare.fields.C1.max_size must be 1 or more; found 0"),
        ("prepare.fields=3", r"'prepare.fields' must be a mapping such as {C3: 20}; found int 3"),
        ("prepare.fields={C1: {max_size: x}}", r"'prepare.fields.C1.max_size' must be a whole number; found str 'x'"),
        ("prepare.fields={C1: {hash: 3}}", r"unknown key 'prepare.fields.C1.hash'; did you mean '.*C1.hash_size'"),
        ("prepare.seed=-1", r"seed must be between 0"),
        ("prepare.fields={C1: {hash_size: 9, max_size: 3}}", r"C1 has hash_size, .* not counted, .* leave them out"),
        ("prepare.crosses=[[C1]]", r"crosses: \[C1\] has 1 fields; write two to 4 of them, such as \[\[C1, C2\], "),
        ("prepare.crosses=[C1, C2]", r"crosses: \[C1\] has 1 fields; write two to 4 of them"),
        ("prepare.crosses=[[C1, C2, C3, C4, C5]]", r"has 5 fields; write two to 4"),
        ("prepare.crosses=[[C1, C27]]", r"\[C1, C27\]: 'C27' is no categorical field; did you mean 'C"),
        ("prepare.crosses=[[C1, I3]]", r"'I3' is no categorical field; cross the buckets of its numbers: I3_bucket"),
        ("prepare.crosses=[[C1, label]]", r"'label' is no categorical field; known here: C1, "),
        ("prepare.crosses=[[C1, C1]]", r"\[C1, C1\] names a field twice"),
        ("prepare.crosses=[[C1, C2], [C2, C1]]", r"\[C2, C1\] is listed twice"),
        ("prepare.crosses=[[C1, C2]] prepare.layout=zoo", r"layout zoo .* takes no prepare.crosses"),
        (f"{CROSSED} prepare.crosses=[[genres,genres]]", r"crosses: \[genres, genres\] names a field twice"),
        (
            CROSSED + ' prepare.fields={"user*ad": {max_length: 3}}',
            r"fields: max_length of 'user\*ad', which is no cross with a list; known here: user\*genres. "
            r"The length of a list itself is max_length in prepare.data.lists",
        ),
        (CROSSED + " prepare.fields={genres: {max_length: 3}}", r"max_length of 'genres', which is no cross with a"),
        (
            CROSSED + ' prepare.fields={"user*genres": {max_length: 0}}',
            r"prepare.fields.user\*genres.max_length must be in \[1, 1000\]; found 0",
        ),
        (CROSSED + ' prepare.fields={"user*genres": {max_length: 1001}}', r"must be in \[1, 1000\]; found 1001"),
        (f"{LISTED} prepare.layout=zoo", r"layout zoo has one id a field, of a vocabulary of its own; genres of kind"),
        (
            "prepare.data.columns={click: label, user: id, w: weight, site: string} prepare.layout=zoo",
            "no place for columns of kind weight, id or vector; found user, w",
        ),
        (f"{SEVERAL_TIMES} prepare.split=chronological", "seen, sold"),
        (f"{SEVERAL_TIMES} prepare.split_by=sold", "split_by is for split: chronological"),
    ],
)
def test_bad_settings_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        read_options(overrides=re.split(r" (?=prepare\.)", words))


def test_a_bad_section_in_a_yaml_file_is_named(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("prepare: 3\n")
    with pytest.raises(ValueError, match=r"run.yaml: 'prepare' is a section with keys, found int 3"):
        read_options(config)


def test_how_the_work_is_done_does_not_decide_the_result():
    other = PrepareOptions(workers=3, memory_limit="1 GiB", kernels="numpy")
    assert other.decisive() == PrepareOptions(workers=1).decisive()
    assert PrepareOptions(seed=3).decisive()["seed"] == 3


@pytest.mark.parametrize(
    ("text", "size"), [("4 GiB", 4 << 30), ("512MiB", 512 << 20), ("1.5 KiB", 1536), ("1000", 1000), ("7 B", 7)]
)
def test_sizes(text, size):
    assert PrepareOptions(memory_limit=text).memory_limit_bytes == size


@pytest.mark.parametrize("text", ["", "# nothing\n", "download: {file: a.gz}\n"])
def test_a_data_file_that_says_nothing_is_not_criteos(tmp_path, text):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"mine.yaml does not describe a log.s format; expected columns:"):
        read_options(data_path=tmp_path / "mine.yaml")


def test_recorded_options_that_were_removed_are_read():
    options = PrepareOptions(min_count=3)
    recorded = options.decisive()
    recorded["data"]["archive_member"] = "log.txt"
    recorded |= {"missing_indicator": False, "block_rows": 64}
    assert read_recorded(recorded, "schema.json") == options
