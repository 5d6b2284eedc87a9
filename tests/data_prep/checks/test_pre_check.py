import dataclasses
import gzip
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.__main__ import main
from data_prep.checks.pre_check import pre_check
from data_prep.options.log_format import LogFormat
from data_prep.options.options_file import read_options
from data_prep.prepared.truth import area_under_curve
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.reading import sample_log
from data_prep.sources.synthetic import synthesize
from tests.programs import run_python


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log as Criteo's."""
    path = tmp_path_factory.mktemp("log") / "log.txt"
    synthesize(path, 5_000, seed=1, workers=1)
    return path


@pytest.fixture(scope="module")
def lines(log):
    return log.read_bytes().splitlines(keepends=True)


def changed(lines, change):
    """A log whose columns are changed: `change(number, columns)` gives new columns."""
    rows = (line.rstrip(b"\n").split(b"\t") for line in lines)
    return b"".join(b"\t".join(change(number, row)) + b"\n" for number, row in enumerate(rows))


def wrong(findings):
    return [str(each) for each in findings if each.is_wrong]


def odd(findings):
    return [str(each) for each in findings if not each.is_wrong]


def test_a_good_log_has_no_findings(log, capsys):
    assert main(["pre-check", str(log)]) == 0
    printed = capsys.readouterr().out
    assert "5,000 lines; looked at the first 5,000, of which 5,000 are good" in printed
    assert "nothing is wrong or odd" in printed
    assert "C22" in printed and "click rate 2" in printed


def test_crosses_are_shown_with_their_distinct_values(log, lines, capsys):
    assert main(["pre-check", str(log), "prepare.crosses=[[C6, C9]]"]) == 0
    cells = [line.rstrip(b"\n").split(b"\t") for line in lines]
    pairs = [(row[19], row[22]) for row in cells if row[19] and row[22]]
    (found,) = re.findall(r"^C6\*C9 +([\d.]+)% .* ([\d,]+)$", capsys.readouterr().out, re.MULTILINE)
    assert int(found[1].replace(",", "")) == len(set(pairs))
    assert float(found[0]) == pytest.approx(100 * (1 - len(pairs) / len(cells)), abs=0.01)


def test_a_log_of_another_form(project, make_avazu, tmp_path, capsys):
    path = tmp_path / "train.csv"
    path.write_text(make_avazu(2_000))
    assert main(["pre-check", str(path), "--data", str(project / "configs" / "data" / "avazu.yaml")]) == 0
    printed = capsys.readouterr().out
    assert "looked at the first 2,000, of which 2,000 are good" in printed
    assert "banner_pos" in printed and "Criteo" not in printed
    assert main(["pre-check", str(path)]) == 2
    assert "lines have 24 columns between ',', expected 40" in capsys.readouterr().out


def as_parquet(lines, path, log_format=None, **written):
    """The same log as a table of strings."""
    names = list((log_format or LogFormat()).columns)
    rows = [line.rstrip(b"\n").decode().split((log_format or LogFormat()).separator) for line in lines]
    pq.write_table(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path, **written)


def test_parquet_files_have_the_findings_of_the_same_lines(log, lines, tmp_path, capsys):
    as_parquet(lines, tmp_path / "log.parquet", row_group_size=1_000)
    printed = []
    for path in (log, tmp_path / "log.parquet"):
        assert main(["pre-check", str(path), "--rows", "3000"]) == 0
        printed.append(re.sub("1 file, .*? bytes|1 file, [0-9.]+ .?B", "", capsys.readouterr().out))
    assert "looked at the first 3,000, of which 3,000 are good" in printed[1]
    assert printed[0].splitlines()[1:] == printed[1].splitlines()[1:]


def test_wrong_parquet_files_are_reported(lines, project, make_avazu, tmp_path, capsys):
    upper = changed(lines, lambda _, row: [*row[:14], *(cell.upper() for cell in row[14:])])
    as_parquet(upper.splitlines(), tmp_path / "a.pq")
    assert "upper-case digits" in wrong(pre_check(tmp_path / "a.pq"))[1]
    (tmp_path / "b.parquet").write_bytes(b"PAR1" + bytes(100))
    assert main(["pre-check", str(tmp_path / "b.parquet")]) == 2
    assert "is damaged or not a Parquet file" in capsys.readouterr().err
    as_parquet(
        make_avazu(100).encode().splitlines()[1:], tmp_path / "c.pq", read_options(data_path=avazu(project)).data
    )
    assert main(["pre-check", str(tmp_path / "c.pq")]) == 2
    assert "lacks columns of prepare.data.columns" in capsys.readouterr().err
    assert main(["pre-check", str(tmp_path / "c.pq"), "--data", str(avazu(project))]) == 0
    assert "looked at the first 100, of which 100 are good" in capsys.readouterr().out


def avazu(project):
    return project / "configs" / "data" / "avazu.yaml"


def test_rows_of_a_large_parquet_file_are_counted_not_estimated(lines, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("data_prep.raw_log.reading._ESTIMATE_BYTES", 0)
    monkeypatch.setattr("data_prep.raw_log.reading._CHUNK_BYTES", 50_000)
    as_parquet(lines, tmp_path / "log.parquet")
    pre_check(tmp_path / "log.parquet", 100)
    assert " 5,000 lines; looked at the first 100" in capsys.readouterr().out


def test_only_the_first_rows_are_looked_at(lines, tmp_path, capsys):
    path = tmp_path / "log.txt"
    path.write_bytes(b"".join(lines[:2_000]) + b"bad\n" * 1_000)
    assert wrong(pre_check(path, 2_000)) == []
    assert "3,000 lines; looked at the first 2,000" in capsys.readouterr().out
    assert "1,000 of 3,000 lines" in wrong(pre_check(path, 3_000))[0]


@pytest.mark.parametrize("num_rows", [1, 2, 3, 1_000])
@pytest.mark.parametrize("text", [b"a\nb\n", b"a\nb", b"a\n\nb\n", b"a\n\n"])
def test_a_sample_is_the_first_lines_whatever_ends_them(tmp_path, text, num_rows):
    path = tmp_path / "log.txt"
    path.write_bytes(text)
    (sample,) = sample_log(find_log(path), LogFormat(), num_rows)
    expected = text.removesuffix(b"\n").split(b"\n")
    assert sample.chunk.lines == b"".join(line + b"\n" for line in expected[:num_rows])
    assert (sample.chunk.num_lines, sample.num_lines) == (min(num_rows, len(expected)), len(expected))


def test_a_long_line_is_no_header(lines, tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes(b"a" * 3_000_000 + b"".join(lines[:2_000]))
    findings = pre_check(path)
    assert wrong(findings) == [] and "too long 1" in odd(findings)[0]


@pytest.mark.parametrize("packed", [False, True])
def test_lines_of_a_large_file_are_estimated(lines, tmp_path, packed, monkeypatch, capsys):
    """To a few per cent, whatever a stream of packed bytes has read ahead."""
    monkeypatch.setattr("data_prep.raw_log.reading._ESTIMATE_BYTES", 1 << 21)
    path = tmp_path / ("log.txt.gz" if packed else "log.txt")
    text = b"".join(lines) * 20
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    pre_check(path, 1_000)
    about = int(re.search(r"about ([0-9,]+) lines", capsys.readouterr().out)[1].replace(",", ""))
    assert about == pytest.approx(100_000, rel=0.4 if packed else 0.1)


def test_of_several_files_each_is_looked_at(lines, tmp_path):
    for number in range(3):
        header = b"label\tI1\tI2\n" if number == 1 else b""
        (tmp_path / f"day_{number}.txt").write_bytes(header + b"".join(lines[number::3]))
    findings = pre_check(tmp_path, 3_000)
    assert wrong(findings) == []  # one line of many, which would be rejected
    assert "1 of 3,000 lines" in odd(findings)[0] and "line day_1.txt:1: 'label" in odd(findings)[0]


WRONG = {
    "commas": (lambda lines: b"".join(lines).replace(b"\t", b","), "columns are separated by a comma, expected a tab"),
    "no labels": (lambda lines: changed(lines, lambda _, row: row[1:]), "39 columns, one less than expected: it seems"),
    "too few": (
        lambda lines: changed(lines, lambda _, row: row[:20]),
        r"lines have 20 columns between '\\t', expected 40 columns \(label, I1, … C26\) between tabs",
    ),
    "upper case": (
        lambda lines: changed(lines, lambda _, row: row[:14] + [cell.upper() for cell in row[14:]]),
        "upper-case digits: make them lower-case",
    ),
    "floats": (
        lambda lines: changed(lines, lambda _, row: [row[0], b"1.5", *row[2:]]),
        r"integer columns hold numbers with a point \(1.5\)",
    ),
    "header": (lambda lines: b"\t".join([b"label"] * 40) + b"\n" + b"".join(lines[:50]), "the first line is a header"),
    "UTF-16": (lambda lines: b"".join(lines).decode().encode("utf-16-le"), "there are NUL bytes"),
    "no clicks": (lambda lines: changed(lines, lambda _, row: [b"0", *row[1:]]), "all 5,000 labels are 0"),
    "empty": (lambda _: b"", "there are no lines"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_reported_with_advice(lines, tmp_path, name, capsys):
    change, message = WRONG[name]
    path = tmp_path / "log.txt"
    path.write_bytes(change(lines))
    assert main(["pre-check", str(path)]) == 2
    captured = capsys.readouterr()
    assert "wrong: " in captured.out and captured.err.startswith("error: ")
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(captured.out)


ODD = {
    "sorted by label": (lambda lines: b"".join(sorted(lines)), "sorted by label, or in groups"),
    "sorted by a field": (
        lambda lines: changed(lines, lambda number, row: [*row[:3], str(number).encode(), *row[4:]]),
        "rows are sorted by I3: if that is the time, take prepare.split=chronological, which tests on the last rows",
    ),
    "one bad byte": (
        lambda lines: b"".join([lines[0].replace(b"\t", b"\t\0", 1), *lines[1:]]),
        "1 of 5,000 lines (0.02%) would be rejected",
    ),
    "one float": (
        lambda lines: changed(lines, lambda n, row: [row[0], b"1.5" if n == 1 else row[1], *row[2:]]),
        "1 of 5,000 lines (0.02%) would be rejected: integer 1",
    ),
    "not the label": (
        lambda lines: changed(lines, lambda _, row: [*row[:3], b"10"[int(row[0]) :][:1], *row[4:]]),
        "I3 alone predicts clicks (AUC 1.000): it seems to be made from the label",
    ),
    "there for clicks alone": (
        lambda lines: changed(lines, lambda n, row: [*row[:3], b"%d" % (n % 9) if row[0] == b"1" else b"", *row[4:]]),
        "I3 alone predicts clicks (AUC 1.000)",
    ),
    "no order": (
        lambda lines: changed(lines, lambda n, row: [*row[:3], b"%d" % (2 * (n % 50) + (row[0] == b"1")), *row[4:]]),
        "I3 alone predicts clicks (AUC 1.000)",
    ),
    "a category of the label": (
        lambda lines: changed(lines, lambda n, row: [*row[:-1], b"%08x" % (n % 50 + 99 * int(row[0]) * (n % 40 > 0))]),
        "C26 alone predicts clicks (AUC 0.9",
    ),
    "identifiers": (
        lambda lines: changed(lines, lambda number, row: [*row[:14], b"%08x" % number, *row[15:]]),
        "C1 has a new value in nearly every row",
    ),
    "one value": (lambda lines: changed(lines, lambda _, row: [*row[:-1], b"0123abcd"]), "C26 has one value only"),
    "nothing": (lambda lines: changed(lines, lambda _, row: [*row[:-1], b""]), "C26 is missing in all rows"),
    "other order": (
        lambda lines: changed(lines, lambda _, row: [row[0], *row[1:14], *row[:13:-1]]),
        "missing shares are not those of Criteo's log",
    ),
    "copies": (lambda lines: b"".join(lines[:2_000] + lines[:100]), "100 of 2,100 lines are copies"),
    "range": (lambda lines: changed(lines, lambda _, row: [*row[:10], b"70000", *row[11:]]), "I10 goes from 70,000"),
    "other rate": (lambda lines: changed(lines, lambda n, row: [b"01"[n % 2 :][:1], *row[1:]]), "click rate is 50.0%"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_is_reported_and_passes(lines, tmp_path, name):
    change, message = ODD[name]
    path = tmp_path / "log.txt"
    path.write_bytes(change(lines))
    findings = pre_check(path)
    assert wrong(findings) == []
    assert any(message in text for text in odd(findings)), odd(findings)


def test_a_byte_order_mark_is_no_header(lines, tmp_path):
    (tmp_path / "log.txt").write_bytes(b"\xef\xbb\xbf" + b"".join(lines))
    assert pre_check(tmp_path / "log.txt") == []


@pytest.mark.parametrize("num_rows", [20, 300, 4_000])
def test_columns_that_tell_no_more_than_usual_are_no_leaks(tmp_path, make_avazu, project, num_rows):
    """Nor are identifiers, dates and columns with a few values, in small and large samples."""
    synthesize(tmp_path / "log.txt", num_rows, seed=num_rows, workers=1)
    (tmp_path / "avazu.csv").write_text(make_avazu(num_rows))
    data = read_options(data_path=avazu(project)).data
    with_ids = LogFormat(**{**dataclasses.asdict(data), "columns": {**data.columns, "id": "string"}})
    for path, log_format in (("log.txt", LogFormat()), ("avazu.csv", data), ("avazu.csv", with_ids)):
        assert not [text for text in odd(pre_check(tmp_path / path, num_rows, log_format)) if "alone tells" in text]


@pytest.mark.parametrize("scores", [[0, 1, 1, 2, 5, 5, 5, 9], [1] * 8, [8, 7, 6, 5, 4, 3, 2, 1]])
def test_the_area_under_the_curve_counts_pairs(scores):
    labels = np.array([0, 1, 0, 0, 1, 0, 1, 1], np.bool_)
    clicks = [score for score, label in zip(scores, labels, strict=True) if label]
    others = [score for score, label in zip(scores, labels, strict=True) if not label]
    pairs = [(click > other) + (click == other) / 2 for click in clicks for other in others]
    assert area_under_curve(np.array(scores), labels) == pytest.approx(sum(pairs) / len(pairs))
    assert np.isnan(area_under_curve(np.array(scores), np.zeros_like(labels)))


def test_the_same_oddities_of_many_days_take_few_lines(lines, tmp_path):
    """Like 24 days of Criteo's log: another click rate and other ranges, columns empty or constant at first."""

    def change(number, row):
        integers = [b"", b"5", *(b"%d" % (10**8 + number % 7) for _ in range(11))]
        return [b"1" if number % 30 == 0 else b"0", *integers, *[b""] * 8, *[b"0123abcd"] * 8, *row[30:]]

    days = changed(lines, change).splitlines(keepends=True)
    for day in range(24):
        (tmp_path / f"day_{day}.gz").write_bytes(gzip.compress(b"".join(days[day::24]), 1))
    findings = pre_check(tmp_path, 4_800)
    assert wrong(findings) == []
    assert len(odd(findings)) <= 6 and max(map(len, odd(findings))) < 400
    found = "\n".join(odd(findings))
    assert "I1, C1, C2, C3, C4 and 4 more are missing in all rows" in found
    assert "I2, C9, C10, C11, C12 and 4 more have one value only" in found
    assert re.search(r"I3 goes from 100,000,000 to .*; I4 goes .* and 6 more$", found, re.MULTILINE)


@pytest.mark.parametrize(("words", "message"), [(["--rows", "0"], "at least 1 row"), ([], "no log at")])
def test_wrong_arguments(tmp_path, log, words, message, capsys):
    assert main(["pre-check", str(log) if words else str(tmp_path / "none"), *words]) == 2
    assert message in capsys.readouterr().err


def test_no_mindspore_is_needed(log, project):
    script = (
        "import json, sys; from data_prep.__main__ import main; "
        f"status = main(['pre-check', {str(log)!r}]); "
        "print(json.dumps([status, sorted({'mindspore', 'pandas'} & set(sys.modules))]))"
    )
    assert json.loads(run_python("-c", script, cwd=project).stdout.splitlines()[-1]) == [0, []]


def test_repeats_by_chance_are_no_copies(tmp_path):
    """Of few distinct rows many come again; rows of a part that is there twice come again in their order."""
    random = np.random.default_rng(1)
    log_format = read_options(overrides=["prepare.data.separator=','"]).data
    log_format = dataclasses.replace(log_format, columns={"click": "label", "a": "string", "b": "string"})
    for sizes in ((2, 5), (30, 40), (300, 70)):
        cells = zip(random.integers(0, 2, 4_000), *(random.zipf(1.4, 4_000) % size for size in sizes), strict=True)
        rows = [",".join(map(str, row)) + "\n" for row in cells]
        for lines, is_odd in ((rows, False), (sorted(rows), False), (rows + rows[:400], True), (rows * 2, True)):
            (tmp_path / "log.csv").write_text("".join(lines))
            found = odd(pre_check(tmp_path / "log.csv", 9_000, log_format))
            assert any("are copies of another one" in each for each in found) == is_odd, (sizes, len(lines))


def test_the_click_rate_is_of_labelled_rows(tmp_path, capsys):
    rows = [f"{['', '0', '1', '0'][number % 4]},s{number % 7}\n" for number in range(4_000)]
    (tmp_path / "log.csv").write_text("".join(rows))
    columns = {"click": "label", "site": "string"}
    pre_check(tmp_path / "log.csv", 4_000, LogFormat(columns, separator=",", label="optional"))
    assert "click rate 33.33%" in capsys.readouterr().out
