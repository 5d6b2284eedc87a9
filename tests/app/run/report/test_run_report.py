"""The pages of one run and of several: charts, tables, and the notes in place of missing ones."""

import json
import re

import pytest

from app.run.record import read_runs
from app.run.report import report_page, write_report


def page_of(*paths):
    return report_page(read_runs(paths))


def charts(page):
    """The drawings by title."""
    found = re.findall(r'aria-label="(.*?)"></div>\n<script type="application/json">(.*?)</script>', page)
    return {title: json.loads(drawing) for title, drawing in found}


ALL_CHARTS = [
    "Loss",
    *(
        f"{name} on valid rows"
        for name in ("AUC", "Log loss", "Normalized entropy", "Calibration", "PR-AUC", "Top-decile lift")
    ),
    *("ROC curve", "Precision and recall", "Calibration by decile", "Scores by label"),
    *("Time per step by part", "Time per step", "Samples per second", "Resident memory of the process"),
    *("Rows touched so far", "Norm of the touched rows"),
]


def test_everything_of_a_whole_run_is_drawn(make_run):
    page = page_of(make_run("device_0"))
    assert list(charts(page)) == ALL_CHARTS
    for words in (
        "Run device_0",
        "40 steps of batch 16,000 of 640,000 training rows",
        "95 % interval 0.7000 … 0.8000",  # AUC on test
        "0.90000",  # the best possible
        "AUC per value of C3: mean 0.75000, weighted by rows, over 70.0% of the rows; the 2 most frequent of 2 values",
        "&lt;68fd1e64&gt;",
        "one class",
        "Constant: ",
        "wide 0.05",
        "deep 0.00035",
        "MatMul",
        "python -m app train",
        "a &lt;machine&gt;",
        "embedding_dim: 80",
    ):
        assert words in page, words
    assert not re.findall(r"\bnan\b|NaN|None", page[: page.index("<script>")])


def test_a_browser_shows_it_without_complaint(make_run, render):
    """No message in the console, and charts near the window."""
    first, second = make_run("device_0"), make_run("device_0.1", "model.embedding_dim=16", tested=False)
    for runs in ([first], [first, second]):
        write_report(runs, first / "report.html")
        assert len(charts(page_of(*runs))) >= len(ALL_CHARTS)
        render(first / "report.html", ["bk-Figure"])


def test_several_runs_are_laid_over_one_another(make_run):
    page = page_of(make_run("device_0"), make_run("device_0.1", "model.embedding_dim=16", "train.seed=2", tested=False))
    assert "2 runs side by side" in page
    assert {"Scores by label: device_0", "Scores by label: device_0.1"} < set(charts(page))
    losses = charts(page)["Training loss"]["lines"]
    assert [(line["name"], line["colour"], len(line["y"])) for line in losses] == [
        ("device_0", 0, 40),
        ("device_0.1", 1, 40),
    ]
    differing = page[page.index("Settings that differ") :]
    cells = re.findall(r"<td>(.*?)</td>", differing[: differing.index("</table>")])
    assert cells == ["model.embedding_dim", "80", "16", "train.seed", "1", "2"]


def test_a_note_stands_for_what_is_missing(make_run):
    page = page_of(make_run("device_0", steps=0, evaluated=False, tested=False, profiled=False, status="running"))
    assert not charts(page)
    for words in (
        "No step was logged yet: loss.log is empty.",
        "No evaluation yet: one follows each epoch",
        "Not logged yet: a line comes every train.log_every_steps steps.",
        "Not profiled: train with train.profile=true.",
        "Nothing was saved yet: each save logs them.",
        "The run is running, or was killed; the page shows how far it came.",
        "evaluate them with: make eval",
    ):
        assert words in page, words


def test_a_run_beside_one_that_was_not_evaluated(make_run):
    page = page_of(make_run("device_0"), make_run("device_0.1", evaluated=False, profiled=False))
    assert "Not evaluated: device_0.1." in page


def test_learning_rates_that_were_logged_are_drawn(make_run):
    lines = [
        {"seconds": 50 + step, "step": step, "epoch": 1, "deep_learning_rate": 1 / step, "tower_learning_rate": 0.1}
        for step in (1, 2, 3)
    ]
    assert "Learning rates" in charts(page_of(make_run("device_0", lines=lines)))
    both = charts(page_of(make_run("a", lines=lines), make_run("b", lines=lines)))
    assert {"Learning rate: deep", "Learning rate: tower"} <= set(both)


def test_what_went_wrong_comes_first(make_run):
    lines = [
        {"seconds": 60, "step": 40, "save_error": "No space left"},
        {"seconds": 61, "step": 40, "stopped_early": "auc on valid has not risen"},
    ]
    page = page_of(make_run("device_0", status="failed", lines=lines))
    first = page[: page.index("<section")]
    for words in (
        "The run failed; the page shows how far it came.",
        "1 checkpoint(s) could not be written: No space left",
        "auc on valid has not risen",
    ):
        assert words in first


def test_a_folder_without_a_run_is_refused_and_nothing_is_written(make_run, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no run in .*nowhere: it has no config\.yaml"):
        write_report([make_run("device_0"), tmp_path / "nowhere"], tmp_path / "both.html")
    assert not (tmp_path / "both.html").exists()
