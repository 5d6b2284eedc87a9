"""The last parts as a watcher sees them: after a kill, without what was not measured, and on a full disk."""

import errno
import json
import re

import numpy as np

from app.online import progress
from app.online.progress import Progress, online_page
from app.online.publish import scores_shift
from app.serving.statement import read_trained_parts

STATUS = {"held": {}, "waiting": "", "withheld": ""}
LINE = {"part": "part-1", "rows": 10, "rejected": 0, "auc": 0.7, "log_loss": 0.5, "calibration": 1.0, "new_values": 3}


def folders(tmp_path, *lines):
    for name in ("online", "bundles"):
        (tmp_path / name).mkdir()
    text = "".join(json.dumps({"seconds": 1.0, **line}) + "\n" for line in lines)
    (tmp_path / "online/metrics.jsonl").write_text(text)
    return tmp_path / "online", tmp_path / "bundles"


def charts(page):
    found = re.findall(r'aria-label="(.*?)"></div>\n<script type="application/json">(.*?)</script>', page)
    return {title: json.loads(drawing) for title, drawing in found}


def test_after_a_kill_a_part_is_there_once_and_with_what_came_later(tmp_path):
    first, again = {"step": 3} | LINE, {"step": 6, "part": "part-2"}
    work, serve = folders(tmp_path, first, {"step": 3, "lag_seconds": 2.5}, again | {"auc": 0.1}, {"step": 6} | LINE)
    of_saved, of_both = Progress(work, serve, 3), Progress(work, serve, 6)
    for each, lags in ((of_saved, [2.5]), (of_both, [2.5, None])):
        assert each.show(STATUS, is_idle=True)
        assert [part.get("lag_seconds") for part in read_trained_parts(serve)["parts"]] == lags
    assert not of_saved.awaits_publishing(3) and of_both.awaits_publishing(6)
    assert [part["part"] for part in read_trained_parts(serve)["parts"]] == ["part-1", "part-1"]
    of_both.add({"step": 6, "lag_seconds": 1.0})
    of_both.add({"step": 9, **LINE, "auc": float("nan")})
    of_both.show(STATUS, is_idle=True)
    assert [part["auc"] for part in read_trained_parts(serve)["parts"]] == [0.7, 0.7, None]
    assert "2 parts" not in (page := (work / "online.html").read_text()) and "Its last 3 parts" in page


def test_a_folder_holds_as_many_parts_as_are_shown_and_reads_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "BESIDE_BUNDLES", 2)
    monkeypatch.setattr(progress, "ON_PAGE", 3)
    monkeypatch.setattr(progress, "TAIL_BYTES", 700)
    work, serve = folders(tmp_path, *({"step": step} | LINE | {"part": f"part-{step}"} for step in range(1, 50)))
    there = Progress(work, serve, 49)
    for step in (50, 51):
        there.add({"step": step} | LINE | {"part": f"part-{step}"})
    there.show(STATUS, is_idle=True)
    assert [part["part"] for part in read_trained_parts(serve)["parts"]] == ["part-50", "part-51"]
    assert re.findall(r"part-\d+", (work / "online.html").read_text().split("The last parts</h2>")[1]) == [
        "part-51",
        "part-50",
        "part-49",
    ]


def test_while_parts_wait_the_page_is_written_now_and_then(tmp_path):
    work, serve = folders(tmp_path, {"step": 3} | LINE)
    there = Progress(work, serve, 3)
    assert there.show(STATUS, is_idle=False)
    (work / "online.html").unlink()
    assert not there.show(STATUS, is_idle=False) and not (work / "online.html").exists()
    assert there.show(STATUS, is_idle=True) and (work / "online.html").exists()


def test_a_full_disk_ends_no_training(tmp_path, monkeypatch, caplog):
    work, serve = folders(tmp_path, {"step": 3} | LINE)

    def full(*_):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(progress, "write_trained_parts", full)
    assert Progress(work, serve, 3).show(STATUS, is_idle=True)
    assert "not shown" in caplog.text


def test_the_page_draws_what_there_is_and_no_more():
    page = online_page("online", [LINE, LINE | {"part": "<b>", "auc": None}], STATUS)
    assert list(charts(page)) == ["AUC", "Log loss", "Calibration", "Values", "Rows"]
    assert charts(page)["AUC"]["lines"][0]["y"] == [0.7]
    assert "&lt;b&gt;</td>" in page and "Parts held aside" not in page

    more = {"frozen_auc": 0.6, "best_auc": 0.8, "pending_values": 9, "expired_values": 2, "ids_in_use": 99}
    more |= {"scores_psi": 0.1, "fields_psi": 0.3, "shifted_field": "C7", "lag_seconds": 3.0}
    status = STATUS | {"held": {"part-9": "its labels are equal"}, "withheld": "it is worse", "waiting": "part-10"}
    page = online_page("online", [LINE | more], status)
    assert [line["name"] for line in charts(page)["AUC"]["lines"]] == ["online", "frozen", "best possible"]
    assert [line["name"] for line in charts(page)["Values"]["lines"]] == ["new", "pending", "expired"]
    for text in ("its labels are equal", "it is worse", "part-10", "C7", "From closed to served", "PSI of the scores"):
        assert text in page

    assert "No part was trained on yet" in online_page("online", [], STATUS)


def test_the_shift_of_scores_is_0_for_equal_shares_and_needs_parts_before():
    scores = np.arange(20)
    assert scores_shift(scores, [{}, {"scores": ()}]) == {}
    assert scores_shift(scores, [{"scores": list(scores)}, {"scores": list(3 * scores)}]) == {"scores_psi": 0.0}
    p, q = np.array([0.75, 0.25] + [1e-4] * 18), np.array([0.25, 0.75] + [1e-4] * 18)
    found = scores_shift(np.array([75, 25] + [0] * 18), [{"scores": [25, 75] + [0] * 18}])["scores_psi"]
    assert np.isclose(found, ((p - q) * np.log(p / q)).sum())
