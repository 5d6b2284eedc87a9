"""The pages of one run and of several: charts, tables, and the notes in place of missing ones."""

import itertools
import json
import os
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.run.record import read_runs
from app.run.report import report_page, short_names, write_report, write_sweep_report


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


@pytest.mark.parametrize("num_runs", [1, 3])
def test_print_has_every_chart_at_full_width_and_no_blank_page(make_run, print_page, num_runs):
    """The first line of a chart, and its sign in the legend, are blue."""
    runs = [make_run(f"device_0.{number}", f"train.seed={number}") for number in range(num_runs)]
    page = runs[0] / "report.html"
    write_report(runs, page)
    sheets = print_page(page)
    assert 6 <= len(sheets) <= 9 + num_runs
    assert min(map(len, sheets)) > 4_000, [len(sheet) for sheet in sheets]  # header and footer alone are 2,700
    blue = sum(sheet.count("0 .4471 .698 rg") for sheet in sheets)
    assert blue >= len(charts(page.read_text())), blue


def test_on_a_phone_no_table_is_wider_than_the_window(make_run, render, tmp_path):
    name = "deep_optimizer.schedule.warmup_steps"
    runs = [make_run(f"device_0.{number}", f"{name}={number}000") for number in range(3)]
    for page in (page_of(runs[0]), page_of(*runs)):
        measure = """addEventListener("load", () => { const beyond = document.documentElement.scrollWidth - innerWidth;
            const tables = [...document.querySelectorAll(".scroll")].map((it) => it.scrollWidth - it.clientWidth);
            parent.postMessage(`beyond ${Math.max(beyond, ...tables)} of ${innerWidth}`, "*"); })"""
        (tmp_path / "inner.html").write_text(page.replace("</body>", f"<script>{measure}</script></body>"))
        (tmp_path / "phone.html").write_text(
            """<body><script>addEventListener("message", (it) => document.body.append(it.data))</script>
            <iframe src="inner.html" style="width:390px;height:800px;border:0"></iframe>"""
        )
        assert "beyond 0 of 390" in render(tmp_path / "phone.html", ["beyond"])


def test_several_runs_are_laid_over_one_another(make_run):
    different = ["model.embedding_dim=16", "model.wide_fields=[C1]"]
    page = page_of(make_run("device_0"), make_run("device_0.1", *different, tested=False, profiled=False))
    assert "<caption>device_0</caption>" in page  # the only run whose operators were timed
    assert "2 runs side by side" in page
    assert {"Scores by label: device_0", "Scores by label: device_0.1"} < set(charts(page))
    losses = charts(page)["Training loss"]["lines"]
    assert [(line["name"], line["colour"], len(line["y"])) for line in losses] == [
        ("device_0", 0, 40),
        ("device_0.1", 1, 40),
    ]
    differing = page[page.index("Settings that differ") :]
    cells = re.findall(r"<td>(.*?)</td>", differing[: differing.index("</table>")])
    assert cells == ["model.embedding_dim", "80", "16", "model.wide_fields", "null", "[&#34;C1&#34;]"]


def test_the_newest_evaluation_of_the_test_rows_is_shown(make_run):
    run = make_run("device_0")
    plain, calibrated = (run / f"evaluations/test-step-00000040{kind}.json" for kind in ("", "-calibrated"))
    content = json.loads(plain.read_text())
    calibrated.write_text(json.dumps(content | {"calibrated": "0.9 · logit", "best_possible": None}))
    os.utime(plain, ns=(0, 0))
    page = page_of(run)
    assert "step 40, calibrated scores" in page and "Calibrated scores: device_0: 0.9 · logit" in page
    assert "best possible" not in page  # no column without a value
    os.utime(plain)
    assert "alibrated scores" not in page_of(run)


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
        "evaluate them with: ",
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
    rates = charts(page_of(make_run("device_0", lines=lines)))["Learning rates"]["y"]
    assert rates["log"] and [tick for tick, _ in rates["ticks"]] == [0.1, 0.2, 0.5, 1]
    both = charts(page_of(make_run("a", lines=lines), make_run("b", lines=lines)))
    assert {"Learning rate: deep", "Learning rate: tower"} <= set(both)


def test_what_went_wrong_comes_first(make_run):
    lines = [
        {"seconds": 60, "step": 40, "save_error": "Too little"},
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


def test_effects_in_the_run_s_folder_are_drawn(make_run):
    def line(column, cells, value, change):
        of = {"column": column, "cells": cells, "value": value, "low": None, "high": None, "rows": 10}
        return of | {"mean_change": change, "mean_absolute_change": abs(change)}

    lines = [line("I1", "all", None, 0.5), line("I1", "missing", None, 0.0), line("I1", "range", "0", -0.3)]
    lines += [line("I1", "range", "12,345 to 678,901", -0.5)]
    lines += [line("at", "all", None, 0.3), *(line("at", "hour", f"{hour}:00", 0.1) for hour in (9, 10))]
    lines += [
        line("at", "weekday", "monday", 0.2),
        line("C1", "all", None, 0.2),
        line("C1", "value", "<b>", 0.2),
        line("C2", "all", None, 0.0),
    ]
    about = {"rows": 90, "lines": 2_000, "drawn": 100, "seed": 7, "step": 40}
    run = make_run("device_0")
    assert "bundle effects BUNDLE LOG --output device_0/effects.parquet" in page_of(run)
    table = pa.Table.from_pylist(lines).replace_schema_metadata({"effects": json.dumps(about)})
    pq.write_table(table, run / "effects.parquet")
    page = page_of(run)
    assert "90 rows, drawn from 2,000 by seed 7, the model of step 40" in page
    drawn = charts(page)
    assert drawn["Mean absolute change by column"]["bars"][0]["tops"] == [0.5, 0.3, 0.2, 0]
    assert drawn["at: by hour"]["labels"] == ["9:00", "10:00"] and drawn["at: by weekday"]["labels"] == ["monday"]
    assert drawn["I1: by range"]["labels"] == ["0", "≤ 678,901"]
    assert drawn["I1: by range"]["hover"]["texts"][1].startswith("12,345 to 678,901\n")
    assert drawn["C1: its strongest values"]["labels"] == ["<b>"]
    both = charts(page_of(run, make_run("device_0.1")))
    assert "Mean absolute change by column" in both and "I1: by range" not in both


@pytest.fixture
def sweep_page(make_run, tmp_path):
    """The page of a sweep of two rates, two towers and ten seeds, whose last run did not start."""
    tried = {"deep_optimizer.learning_rate": [1e-2, 1e-3], "model.hidden_widths": [[64, 32], [16]]}
    tried |= {"train.seed": list(range(10)), "train.batch_size": [500]}
    points = list(itertools.islice(itertools.product(*tried.values()), 11))
    results = [
        {
            "run": str(make_run(f"{place}/device_0", f"train.seed={place}", tested=False)) if place < 10 else "nowhere",
            **dict(zip(tried, point, strict=True)),
            **{"auc": 0.8 - 0.01 * place, "log_loss": 0.5, "epoch": 1, "epochs": 2 if place < 3 else 1},
            **{"status": "finished", "seconds": 9.0},
        }
        for place, point in enumerate(points)
    ]
    results[-1] |= dict.fromkeys(("auc", "log_loss", "epoch", "status", "seconds")) | {"epochs": 0}
    path = tmp_path / "report.html"
    write_sweep_report(results, tried, "auc", path)
    return path


def test_a_sweep_s_page_has_a_column_and_a_chart_for_each_setting(sweep_page):
    page = sweep_page.read_text()
    table = page[page.index("<thead>") : page.index("</table>")]
    headings = re.findall(r"<th.*?>(.*?)</th>", table.replace("<wbr>", ""))
    assert headings[:5] == ["", "deep_optimizer.learning_rate", "model.hidden_widths", "train.seed", "valid AUC"]
    assert table.count("<tr>") == 12 and "did not start" in table and "64-32" in table
    drawn = charts(page)
    against = [title for title in drawn if title.startswith("AUC by ")]
    assert against == [f"AUC by {name}" for name in headings[1:4]]
    rates = drawn["AUC by deep_optimizer.learning_rate"]
    assert rates["x"]["ticks"] == [[0, "0.001"], [1, "0.01"]]
    assert [(line["name"], len(line["x"])) for line in rates["lines"]] == [
        ("best run", 1), ("1 epoch", 7), ("2 epochs", 3)
    ]  # fmt: skip
    names = [line["name"] for line in drawn["Training loss"]["lines"]]
    assert names == [f"0.01 · 64-32 · {seed}" for seed in range(8)]


def test_a_sweep_s_charts_keep_their_height_beside_a_long_legend(sweep_page, render, print_page):
    begin_to_print = "<script>dispatchEvent(new Event('beforeprint'))</script></body>"
    printing = sweep_page.with_name("printing.html")
    printing.write_text(sweep_page.read_text().replace("</body>", begin_to_print))
    shown = render(printing, ['class="paper"'])
    heights = [int(height) for height in re.findall(r'viewBox="0 0 \d+ (\d+)"[^>]* class="paper"', shown)]
    assert max(heights) >= 280 + 26, heights  # the lines of a legend are added, they take nothing away
    assert len(heights) == len(charts(sweep_page.read_text()))
    assert len(print_page(sweep_page)) <= 14


def test_runs_have_short_names_that_differ():
    assert short_names([[1e-3, [64, 32]], [1e-3, []], [0.25, "x"]]) == ["0.001 · 64-32", "0.001 · []", "0.25 · x"]
    assert short_names([[1], ["1"], [True]]) == ["1 #1", "1 #2", "true"]


def test_a_folder_without_a_run_is_refused_and_nothing_is_written(make_run, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no run in .*nowhere: it has no config\.yaml"):
        write_report([make_run("device_0"), tmp_path / "nowhere"], tmp_path / "both.html")
    assert not (tmp_path / "both.html").exists()
