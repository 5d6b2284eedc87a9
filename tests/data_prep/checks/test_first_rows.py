"""describe sees how the lines of a log are laid out, as the preparation reads them, or says what to do about them."""

import re
import subprocess

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.__main__ import main
from data_prep.checks.propose import describe
from data_prep.checks.reject_causes import to_utf8
from data_prep.kernels.native import choose_kernels
from data_prep.raw_log.formats import spread
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.reading import sample_log
from tests.data_prep.checks.generated_tables import laid_out_text

ROWS = 400


ENCODINGS = {"utf-8-sig": "", "utf-16": "UTF-16 ", "utf-16-le": "UTF-16LE ", "utf-32": "UTF-32 ", "latin-1": "CP125"}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(",;\t"), st.sampled_from(["utf-8"] * 3 + [*ENCODINGS]))
def test_header_is_told_from_rows(tmp_path_factory, seed, separator, encoding):
    text, names, num_rows = laid_out_text(seed, separator)
    path = tmp_path_factory.mktemp("log") / "log.csv"
    path.write_text(text, encoding="utf-8")
    if text.startswith("Clicks of March"):
        with pytest.raises(ValueError, match="stand in line 2; remove the lines before them"):
            describe(str(path))
        text = text.partition("\n")[2]
    path.write_text(text, encoding=encoding)
    first = "column_1" if names is None else names[0]
    if not (text.isascii() and encoding == "latin-1") and (words := ENCODINGS.get(encoding)):
        with pytest.raises(ValueError, match=f"(?s)iconv -f {words}") as found:
            raise ValueError(*map(str, describe(str(path), label=first).findings))
        assert encoding != "latin-1" or "rows are not valid UTF-8 and will be rejected" in str(found.value)
        return
    proposal = describe(str(path), label=first)
    log_format = proposal.as_format()
    assert proposal.rows.num_rows == num_rows
    assert names is None or [*log_format.columns] == names
    (sample,) = sample_log(find_log(str(path)), log_format, 2 * num_rows)
    rejects = choose_kernels("auto").parse_chunk(sample.chunk, log_format).rejects_by_reason
    assert (sample.num_lines - rejects.total(), rejects.total()) == (num_rows, sample.num_lines - num_rows)


def lines_of(line, header=(), seed=1):
    """Lines made of a click, a site and a number."""
    random = np.random.default_rng(seed)
    return [*header, *(line(random.integers(0, 2), f"s{random.integers(0, 8)}", number) for number in range(ROWS))]


def write(folder, lines, name="log.csv"):
    (folder / name).write_text("\n".join(lines) + "\n")
    return str(folder / name)


def plain(click, site, number):
    return f"{click},{site},{number % 7}"


PLAIN = "separator: ','\nheader: true\ncolumns: {click: label, site: string, price: float}"
CONVERTED = {
    "libsvm": (lambda c, s, n: f"{c} {n % 5 + 1}:0.5 {n % 3 + 9}:{n}", "libsvm's", 2),
    "libsvm with a query": (lambda c, s, n: f"{c} qid:{n} 1:0.5 {n % 3 + 9}:{n} # {s}", "libsvm's", 2),
    "libffm": (lambda c, s, n: f"{c}\t1:{n % 5}:1\t2:{n % 3 + 9}:0.5", "libffm's", 2),
    "Vowpal Wabbit": (lambda c, s, n: f"{2 * c - 1} |site {s} |price n:{n % 5}", "Vowpal Wabbit's", 3),
    "colons": (lambda c, s, n: f"{c}::{s}::{n % 7}", "separated by two characters", 3),
    "aligned": (lambda c, s, n: f"{c}   {s}{n % 900:6}", "aligned by blanks", 3),
    "Vowpal Wabbit without a namespace": (lambda c, s, n: f"{2 * c - 1} | {s} n{n % 5}", "Vowpal Wabbit's", 2),
    "edges": (lambda c, s, n: f"| {c} | {s} | {n % 7} |", "bars at its edges", 3),
    "names": (lambda c, s, n: f"click={c} site={s} n={n % 7}", "names with values", 3),
    "ats": (lambda c, s, n: f"{c}@@{s}@@{n % 7}", "separated by two characters", 3),
    "titles": (lambda c, s, n: f"{c}::Film {n % 7}: {s}::{s}|{n % 7}", "separated by two characters", 3),
    "bars": (lambda c, s, n: f"{c}||{s}||{n % 7}", "separated by two characters", 3),
}
BEFORE = {
    "comment": ["# made at noon"],
    "Excel": ["sep=,"],
    "title": ["Clicks of March, 2024", ""],
    "title of a spreadsheet": ["Clicks,,"],
    "titles of a spreadsheet": ["Clicks,,", ",,"],
    "title as wide": ["Clicks,March,2024"],
    "title and dates": ["Clicks", "May 1, 2020 - May 31, 2020", ""],
}


@pytest.mark.parametrize("name", [*CONVERTED, *BEFORE, "R"])
def test_the_command_of_the_error_converts_the_log(tmp_path, name):
    path, header = tmp_path / "log.csv", "click,site,price"
    if name in CONVERTED:
        line, words, width = CONVERTED[name]
        lines = lines_of(line)
    elif name == "R":
        words, width, lines = "as R writes it", 4, [header, *(f"{n},{text}" for n, text in enumerate(lines_of(plain)))]
    else:
        words, width, lines = "remove the lines before them", 3, lines_of(plain, [*BEFORE[name], header])
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=words) as error:
        describe(str(path))
    command = re.search("(sed|tail) .*? OLD > NEW", str(error.value))[0]
    new = tmp_path / "new.csv"
    subprocess.run(command.replace("OLD", str(path)).replace("NEW", str(new)), shell=True, check=True)
    proposal = describe(str(new), label=None if name in ("R", *BEFORE) else "column_1")
    assert len(proposal.rows.columns) == width
    assert proposal.rows.num_rows == ROWS and not proposal.rows.findings


REFUSED = {
    "quoted line ends": (lines_of(lambda c, s, n: f'{c},"a\nb",{s}', ["click,text,site"]), "cells with a line end"),
    "long lines": ([",".join([str(n % 2)] * 40_000) for n in range(3)], "longer than 65,536 bytes"),
    "no columns": (lines_of(lambda c, s, n: "a b c d"[: n % 7 + 1]), "no separator divides its lines into columns"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_cause_of_unreadable_lines_is_named(tmp_path, name):
    lines, words = REFUSED[name]
    write(tmp_path, lines)
    with pytest.raises(ValueError, match=words):
        describe(str(tmp_path / "log.csv"))


@pytest.mark.parametrize("line", [lambda c, s, n: f"{c} 12:30:{n % 60:02}", lambda c, s, n: f"{c} | {s} | {n % 5}"])
def test_times_and_bars_are_columns(tmp_path, line):
    assert len(describe(write(tmp_path, lines_of(line)), label="column_1").rows.columns) > 1


def test_every_line_is_counted(tmp_path, capsys):
    lines = lines_of(plain, ["click,site,price"])
    lines[1::7] = ["0,s1,2,x"] * len(lines[1::7])
    assert main(["describe", write(tmp_path, lines)]) == 0
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert "58 of these 400 lines have not 3 columns" in text and "line 2, '0,s1,2,x'" in text
    assert "first 400 rows" in printed.out and "# 342 of these rows are good" in printed.out


def test_prepare_warns_of_names_that_come_again(tmp_path, caplog):
    lines = lines_of(lambda c, s, n: f"{'click' if c else 'none'},{s},{n % 7}", ["event,site,price"])
    log = write(tmp_path, [*lines, lines[0], lines[1]])
    (tmp_path / "my.yaml").write_text(
        "separator: ','\nheader: true\nclicked: rest\nnot_clicked: [none]\n"
        "columns: {event: label, site: string, price: string}"
    )
    words = ["prepare", log, str(tmp_path / "out"), "--data", str(tmp_path / "my.yaml")]
    assert main([*words, "prepare.workers=1"]) == 0
    assert f"line {len(lines) + 1} of the log has the names again" in caplog.text


@pytest.mark.parametrize("others", [["test.csv"], ["sample_submission.csv"], ["gender_submission.csv", "test.csv"]])
def test_files_of_a_contest_are_a_question(tmp_path, others):
    for name in ["train.csv", *others]:
        write(tmp_path, lines_of(plain, ["click,site,price"]), name)
    with pytest.raises(ValueError, match="are no parts of one log"):
        describe(str(tmp_path))
    assert describe(str(tmp_path / "train.csv")).label.name == "click"


def test_prepare_names_the_line_that_has_the_names(tmp_path, capsys):
    log = write(tmp_path, lines_of(plain, ["# noon", "click,site,price"]))
    (tmp_path / "my.yaml").write_text(PLAIN)
    words = [log, "--data", str(tmp_path / "my.yaml")]
    for command in (["prepare", words[0], str(tmp_path / "out"), *words[1:]], ["pre-check", *words]):
        assert main(command) == 2
        assert "they stand in line 2: remove the lines before it: tail -n +2 OLD > NEW" in capsys.readouterr().err


def test_prepare_says_how_many_lines_it_rejects(tmp_path, capsys, caplog):
    lines = lines_of(plain, ["click,site,price"])
    lines[5:7] = ["x,s1,1", "0,s1"]
    log = write(tmp_path, lines)
    assert main(["prepare", log, str(tmp_path / "out")]) == 2
    assert " -m data_prep describe LOG > my.yaml" in capsys.readouterr().err
    (tmp_path / "my.yaml").write_text(PLAIN)
    words = ["prepare", log, str(tmp_path / "out"), "--data", str(tmp_path / "my.yaml")]
    assert main([*words, "prepare.workers=1"]) == 0
    assert f"2 of 400 lines were rejected (columns 1, label 1): {tmp_path}/out/rejects.tsv has them" in caplog.text


WRITTEN = {
    "python": lambda values: f'"{values}"',
    "blanks": lambda values: '"{}"'.format(", ".join(values)),
    "json": lambda values: '"[{}]"'.format(", ".join(f'""{value}""' for value in values)),
    "numpy": lambda values: "[{}]".format(" ".join(map(repr, values))),
    "postgres": lambda values: '"{{{}}}"'.format(",".join(values)),
    "quoted": lambda values: '"{}"'.format(",".join(values)),
    "semicolons": lambda values: "[{}]".format(";".join(values)),
    "bars": "|".join,
}


def test_lists_of_one_value_are_lists(tmp_path):
    lines = lines_of(lambda c, s, n: f"{c},['t{n % 9}'],{s}", ["click,tags,site"])
    assert describe(write(tmp_path, lines)).as_format().columns["tags"] == "list"


@pytest.mark.parametrize("name", WRITTEN)
def test_lists_have_the_same_values_however_they_are_written(tmp_path, name):
    def line(click, site, number):
        tags = [f"t{number % 5}", f"t{number % 9}", f"t{number % 7}"][: 1 + number % 3]
        return f"{click},{WRITTEN[name](tags)},{site}"

    log = write(tmp_path, lines_of(line, ["click,tags,site"]))
    log_format = describe(log).as_format()
    assert (log_format.columns["tags"], log_format.list_form("tags").max_length) == ("list", 3)
    (sample,) = sample_log(find_log(log), log_format, ROWS)
    kernels = choose_kernels("auto")
    rows = kernels.parse_chunk(sample.chunk, log_format).rows.with_lists(log_format, kernels)
    assert {*rows.lists["tags"].values.tolist()} == {f"t{number}".encode() for number in range(9)}


@pytest.mark.parametrize(
    "cell",
    [
        lambda n: f"\"{{'a': {n % 5}, 'b': {n % 3}}}\"",
        lambda n: f'"Miller{n % 40}, Jo{n % 9}"',
        lambda n: f"[{n % 5}",
        lambda n: ["[INFO]", "[WARN]", "[DEBUG]"][n % 3],
        lambda n: f"/shop/{n % 5}/{n % 7}",
    ],
    ids=["mappings", "names", "one bracket", "levels", "paths"],
)
def test_texts_with_commas_or_brackets_are_no_lists(tmp_path, cell):
    lines = lines_of(lambda c, s, n: f"{c},{cell(n)},{s}", ["click,text,site"])
    assert describe(write(tmp_path, lines)).as_format().columns["text"] == "string"


WORDS = {
    "GB18030": ["北京", "上海", "连衣裙", "手机壳"],
    "BIG5": ["臺北", "點擊", "手機"],
    "CP932": ["東京", "クリック", "大阪"],
    "CP949": ["서울", "클릭", "부산"],
    "CP1251": ["Москва", "Тверь", "Нижний"],
    "KOI8-R": ["Москва", "Тверь", "Нижний"],
    "CP1253": ["Αθήνα", "κλικ", "πόλη"],
    "CP1252": ["Köln", "São Paulo", "Málaga – centro", "café"],
    "CP1250": ["Łódź", "Gdańsk", "Škoda"],
}


@pytest.mark.parametrize("encoding", WORDS)
def test_the_first_named_encoding_is_the_text_s(tmp_path, encoding):
    words = WORDS[encoding]
    lines = ["click,city,size", *(f"{row % 2},{words[row // 3 % len(words)]},{row % 7}" for row in range(600))]
    (tmp_path / "log.csv").write_bytes("\n".join(lines).encode(encoding))
    comments = describe(str(tmp_path / "log.csv"), label="click").as_yaml()
    assert (
        re.search(r"600 of these rows are not valid UTF-8.*; convert the log: iconv -f (\S+) ", comments)[1] == encoding
    )


def test_bytes_that_an_encoding_lacks_rule_it_out():
    assert "CP1252" not in to_utf8("Ť na konci".encode("cp1250"))  # byte 0x8d
    assert "iconv -f ENCODING" in to_utf8(b"")


PARTS = 45


def part(number, num_rows=200):
    random = np.random.default_rng(number)
    country = f"c{number % 5}"
    columns = {"click": random.integers(0, 2, num_rows), "country": country, "day": f"d{number}", "size": 1}
    return pd.DataFrame(columns | {"shop": random.choice(["s1", "s2", "s3"], num_rows)})


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_columns_constant_within_a_part_are_categories(tmp_path, ending):
    for number in range(PARTS):
        path, frame = tmp_path / f"part-{number}.{ending}", part(number)
        if ending == "csv":
            frame.to_csv(path, index=False)
        elif ending == "jsonl":
            frame.to_json(path, orient="records", lines=True)
        else:
            frame.astype({"size": "float64" if number else "int64"}).to_parquet(path, row_group_size=50)
    proposal = describe(str(tmp_path), num_rows=2_000)
    assert {each.name: each.kind for each in proposal.guesses}["country"] == "string"
    days = {value for column in proposal.rows.columns if column.name == "day" for value in column.values}
    assert days == {f"d{number}" for number in spread(range(PARTS), 20)} and {"d0", "d44"} <= days
    of_files = (
        f"2,000 rows, the first rows of 20 of 45 files, part-0.{ending} to part-44.{ending} (the others were not "
    )
    assert f"Proposed from {of_files}looked at)" in proposal.as_yaml()


def test_a_parquet_file_is_looked_at_all_over(tmp_path):
    pd.concat([part(number) for number in range(PARTS)]).to_parquet(tmp_path / "log.parquet", row_group_size=200)
    for num_rows, num_days in ((1_000, 20), (6_000, 30), (10**6, 45)):
        rows = describe(str(tmp_path / "log.parquet"), num_rows=num_rows).rows
        days = {value for column in rows.columns if column.name == "day" for value in column.values}
        assert rows.num_rows == min(num_rows, 200 * PARTS) and len(days) == num_days
        assert rows.sampled == f"{rows.num_rows:,} rows from all over {tmp_path}/log.parquet"


def test_a_part_with_other_types_is_left_out(tmp_path):
    part(1).to_parquet(tmp_path / "a.parquet")
    part(2).assign(size="x").to_parquet(tmp_path / "b.parquet")
    proposal = describe(str(tmp_path))
    assert proposal.rows.num_rows == 200
    (finding,) = proposal.findings
    assert finding.what.startswith("not looked at, as the types of their columns differ from a.parquet: b.parquet (")


TAKEN_BY_NAME, SAME_NAMES = "set others: ignored", "give all files the same names"
FAULTS = {  # how the text of a part is made from a frame, and what describe says of it
    "none": (lambda frame: frame.to_csv(index=False), ""),
    "mark": (lambda frame: "\ufeff" + frame.to_csv(index=False), ""),
    "order": (lambda frame: frame[frame.columns[::-1]].to_csv(index=False), TAKEN_BY_NAME),
    "more": (lambda frame: frame.assign(more=1).to_csv(index=False), TAKEN_BY_NAME),
    "other name": (lambda frame: frame.rename(columns={"shop": "store"}).to_csv(index=False), SAME_NAMES),
    "capitals": (lambda frame: frame.rename(columns=str.upper).to_csv(index=False), SAME_NAMES),
    "fewer": (lambda frame: frame.drop(columns="size").to_csv(index=False), SAME_NAMES),
    "separator": (lambda frame: frame.to_csv(index=False, sep=";"), "have not 5 columns"),
    "UTF-16": (lambda frame: frame.to_csv(index=False), "iconv -f UTF-16"),
}


def test_rows_that_share_words_are_no_headers(tmp_path):
    for number in range(3):
        rows = [f"{'yes' if row % 3 else 'no'},shop{row % 4},{'east' if row % 5 else 'west'}" for row in range(90)]
        (tmp_path / f"part-{number}.csv").write_text("\n".join([f"no,shop0,w{number}", *rows[1:]]) + "\n")
    assert describe(str(tmp_path), label="column_1").rows.num_rows == 270


def test_one_object_with_all_rows_is_named(tmp_path):
    part(1).to_json(tmp_path / "log.json")
    with pytest.raises(ValueError, match="write an object for each row"):
        describe(str(tmp_path / "log.json"))


@pytest.mark.parametrize(("of_type", "large"), [("float64", 2**60), ("float32", 2**25)])
def test_ids_that_were_floats_are_named(of_type, large):
    frame = part(1).assign(uid=(large + 1_000 * np.arange(200) % 7_000).astype(of_type))
    assert "# In uid whole numbers so large are not exact as floats" in describe(frame).as_yaml()


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([*FAULTS]), st.integers(2, 5), st.data())
def test_parts_are_read_or_named(tmp_path_factory, name, num_parts, data):
    """One of the parts after the first is written otherwise; all rows are good, or describe says what differs."""
    folder, (write, words) = tmp_path_factory.mktemp("parts"), FAULTS[name]
    odd = data.draw(st.integers(1, num_parts - 1))
    for number in range(num_parts):
        text = write(part(number)) if number == odd else part(number).to_csv(index=False)
        encoding = "utf-16" if name == "UTF-16" and number == odd else "utf-8"
        (folder / f"part-{number}.csv").write_text(text, encoding=encoding)
    try:
        proposal = describe(str(folder))
    except ValueError as error:
        assert words and words in str(error)
        return
    assert words in "".join(map(str, proposal.findings)) and bool(proposal.findings) == bool(words)
    if not words:
        samples = sample_log(find_log(str(folder)), proposal.as_format(), 10_000)
        rows = [choose_kernels("auto").parse_chunk(sample.chunk, proposal.as_format()).rows for sample in samples]
        assert sum(len(each.labels) for each in rows) == 200 * num_parts
