"""The report of a log with every kind of bad line, and the files that it is drawn from."""

import dataclasses
import json
import re
import shutil
from typing import get_args, get_type_hints

import numpy as np
import pytest

from data_prep.__main__ import main
from data_prep.kernels.numpy_kernels import NUM_BINS, count_bins
from data_prep.options.log_format import ListForm, LogFormat
from data_prep.options.prepare_options import SPLIT_RULES, PrepareOptions
from data_prep.pipeline.first_pass import numeric_fields
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.data_files import all_files
from data_prep.prepared.schema import read_schema
from data_prep.report import TIMING_FILE, number_bins, pair, read_timing, write_report
from data_prep.statistics.statistics import STATISTICS_FILE, NumericProfile, NumericStatistics, read_statistics

BAD_LINES = ("", "2\t<b>bold</b>", "0\t1.5" + "\t" * 38)


@pytest.fixture(scope="module")
def dirty_log(tmp_path_factory, make_log):
    lines = make_log(2_000).splitlines(keepends=True)
    for place, bad in enumerate(BAD_LINES):
        lines.insert(100 * (place + 1), bad + "\n")
    path = tmp_path_factory.mktemp("report") / "dirty.txt"
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def folder(dirty_log):
    """A prepared folder with a report; tests that change it copy it."""
    output = dirty_log.with_name("prepared")
    words = ["prepare.workers=1", "prepare.min_count=3", "prepare.integer_buckets=false"]
    assert main(["prepare", str(dirty_log), str(output), *words]) == 0
    return output


def training_cells(folder, dirty_log):
    """Return the columns of the training rows as text, without the lines of other splits and the bad ones."""
    other = {int(n) for split in ("valid", "test") for n in np.load(folder / f"row_numbers-{split}.npy")}
    lines = [line.split("\t") for line in dirty_log.read_text().splitlines()]
    return list(
        zip(*(line for n, line in enumerate(lines) if n not in other and n not in (100, 200, 300)), strict=True)
    )


def test_statistics_are_those_of_the_log(folder, dirty_log):
    profile, columns = read_statistics(folder), training_cells(folder, dirty_log)
    schema = read_schema(folder)
    assert profile.training_rows == len(columns[0]) == schema.splits["train"].rows
    assert sum(profile.rows) == 2_000
    assert sum(profile.clicks) == sum(split.clicks for split in schema.splits.values())
    for place, field in enumerate(profile.numeric.values()):
        cells = [int(cell) for cell in columns[1 + place] if cell]
        assert field.missing == len(columns[0]) - len(cells)
        for first, end, count in number_bins(field):
            assert sum(first <= cell < end for cell in cells) == count
        assert sum(count for _, _, count in number_bins(field)) == len(cells)
    for place, field in enumerate(profile.categorical.values()):
        cells = columns[14 + place]
        counts = [cells.count(value) for value in set(cells) - {""}]
        assert field.missing == cells.count("")
        assert field.unknown == sum(count for count in counts if count < 3)
        assert (field.values[0], field.rows[0]) == (len(counts), sum(counts))
        assert field.values[2] == sum(count >= profile.min_counts[2] for count in counts)


def test_a_browser_shows_all_parts(folder, render):
    shown = render(folder / "report.html", ["bk-Figure"])
    titles = re.findall(r"<h2>(.*?)</h2>", shown)
    fields = ["Categorical fields", "Coverage of the vocabulary", "Numeric fields"]
    assert titles == ["Splits", "Clicks over time", *fields, "Rejected lines", "Settings", "The run"]
    names = re.findall(r"<figcaption>(.*?)</figcaption>", shown)
    assert {"Distinct values", "Size of the vocabulary", "I1 before", "I13 after", "Rejected lines"} <= set(names)
    assert shown.count('"areas":') == 26 and shown.count(">train</td>") == 1


def test_rejects_are_shown_as_text(folder):
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "201: 2⇥&lt;b&gt;bold&lt;/b&gt;" in report and "<b>bold" not in report
    assert "no line was rejected" not in report.lower()


def test_it_is_drawn_again_to_the_same_bytes(folder, tmp_path, capsys):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "report.html").unlink()
    assert main(["inspect", "--report", str(copy)]) == 0
    assert str(copy / "report.html") in capsys.readouterr().out
    assert (copy / "report.html").read_bytes() == (folder / "report.html").read_bytes()


def test_the_run_is_no_part_of_the_data(folder, dirty_log, tmp_path):
    """schema.json names neither report nor timing; the statistics are the same for any chunks and kernels."""
    named = {file.name for file in all_files(read_schema(folder))}
    assert {path.name for path in folder.iterdir()} - named == {"schema.json", "report.html", TIMING_FILE}
    again = tmp_path / "again"
    options = ["prepare.workers=2", "prepare.min_count=3", "prepare.kernels=numpy", "prepare.memory_limit=1 GiB"]
    assert main(["prepare", str(dirty_log), str(again), *options, "prepare.integer_buckets=false"]) == 0
    for name in named | {"schema.json"}:
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_every_rule_of_splitting_is_explained():
    assert set(SPLIT_RULES) == set(get_args(get_type_hints(PrepareOptions)["split"]))


def test_a_run_is_recorded(folder):
    run = read_timing(folder)
    assert set(run.stages) == {"counts", "rows", "files"} and 0 < sum(run.stages.values()) <= run.seconds
    assert run.peak_bytes > 1 << 20 and run.workers == 1


def test_a_folder_without_a_run_has_a_report_too(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / TIMING_FILE).unlink()
    assert "The run" not in write_report(copy).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "options",
    [
        ["prepare.vocabulary=hash", "prepare.oov_buckets=50"],
        ["prepare.integer_buckets=true", "prepare.numeric_transform=standardize"],
        ["prepare.numeric_transform=max", "prepare.split=chronological"],
        ["--layout", "zoo"],
    ],
)
def test_other_preparations_have_a_report(dirty_log, tmp_path, options):
    assert main(["prepare", str(dirty_log), str(tmp_path / "out"), "prepare.workers=1", *options]) == 0
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


def test_the_report_of_a_given_vocabulary_notes_that_values_were_not_counted(
    dirty_log, folder, tmp_path, small_options
):
    prepare(dirty_log, tmp_path / "first", small_options)
    prepare(dirty_log, tmp_path / "next", small_options, vocabulary_of=tmp_path / "first", report=True)
    report = (tmp_path / "next" / "report.html").read_text(encoding="utf-8")
    assert "Values were not counted" in report and "Coverage" not in report


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (STATISTICS_FILE, '{"rows": 3}', "statistics.json is damaged"),
        (TIMING_FILE, '{"rows": 3}', "timing.json is damaged"),
        (STATISTICS_FILE, "", "statistics.json is missing; prepare the data again"),
    ],
)
def test_files_that_cannot_be_drawn_are_named(folder, tmp_path, name, content, message, capsys):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / name).unlink()
    if content:
        (copy / name).write_text(content)
    assert main(["inspect", "--report", str(copy)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("transform", ["log1p", "max", "standardize", "log1p_standardize", "piecewise"])
@pytest.mark.parametrize(
    "integers", [[2**63 - 1], [-(2**63)], [0, 2**63 - 1], [0, 2**62, 2**63 - 1], [-(2**62), 0, 1], [2**62, -1, 0], [5]]
)
def test_integers_at_the_ends_of_int64_are_drawn(integers, transform):
    counts = np.zeros(NUM_BINS, np.int64)
    for integer in integers:
        counts += count_bins(np.array([integer]), np.ones(1, bool), np.ones(1, bool))
    bins = tuple((int(number), int(counts[number])) for number in np.flatnonzero(counts))
    statistics = NumericStatistics.of(np.array(integers, np.int64))
    options = PrepareOptions(data=LogFormat({"label": "label", "I": "integer", "C": "hex32"}))
    column = numeric_fields(dataclasses.replace(options, numeric_transform=transform), [statistics])[0]
    before, after = pair("I", NumericProfile(0, bins), column)
    for chart in (before, after):
        (area,) = chart.drawing["areas"]
        edges, tops = np.array(area["edges"], float), np.array(area["tops"], float)
        assert np.isfinite(edges).all()
        assert np.isfinite(tops).all()
        assert (np.diff(edges) > 0).all()


def test_no_coverage_is_above_one(tmp_path):
    """Count lists of several values, one value twice, and a column that shares its vocabulary."""
    log = "clicked,tags,tag\n" + "".join(f"{n % 3 // 2},{n % 200};{n % 7};{n % 7},{n % 150}\n" for n in range(900))
    (tmp_path / "log.csv").write_text(log)
    log_format = LogFormat(
        {"clicked": "label", "tags": "list", "tag": "string"}, separator=",", header=True,
        lists={"tags": ListForm(";")}, shares={"tag": "tags"},
    )  # fmt: skip
    prepare(tmp_path / "log.csv", tmp_path / "prepared", PrepareOptions(data=log_format, workers=1))
    page = write_report(tmp_path / "prepared").read_text()
    drawings = re.findall(
        r'aria-label="(Cells with an id|\w+: \d+ values)"></div>\n<script type.*?>(.*?)</script>', page
    )
    shares = [y for _, drawing in drawings for line in json.loads(drawing)["lines"] for y in line["y"]]
    assert len(drawings) >= 2 and max(shares) == 1 and min(shares) >= 0
