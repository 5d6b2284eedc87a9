"""The report of an online trainer beside its bundles is read whole, or as an error, or not at all."""

import json
import shutil

import pytest

from app.scoring.trained_parts import MOST_BYTES, TRAINED_PARTS, read_trained_parts, write_trained_parts
from tests.app.serving.conftest import Client

GOOD = {"written": 1.0, "parts": [{"part": "part-1", "auc": 0.7}], "held": {"part-2": "cut"}, "waiting": ""}


def test_it_is_read_as_it_was_written_but_for_rows_of_the_log(tmp_path):
    assert read_trained_parts(tmp_path) is None
    held = {"part-2": "3 of its 9 lines are bad; the first: '1\\t7e5c2ff4'"}
    write_trained_parts(tmp_path, GOOD | {"held": held})
    assert read_trained_parts(tmp_path) == GOOD | {"held": {"part-2": "3 of its 9 lines are bad"}}


WRONG = [GOOD | {key: 7} for key in ("parts", "held")] + [GOOD | {"parts": [7]}, GOOD | {"written": None}, [], 7, {}]


@pytest.mark.parametrize("text", [b"", b"{", b"\xed\xa0\x80", *(json.dumps(wrong).encode() for wrong in WRONG)])
def test_a_damaged_file_is_an_error_and_no_exception(tmp_path, text):
    (tmp_path / TRAINED_PARTS).write_bytes(text)
    assert "damaged" in read_trained_parts(tmp_path)["error"]


def test_a_number_that_json_lacks_and_a_file_that_is_too_long_do_no_harm(tmp_path):
    (tmp_path / TRAINED_PARTS).write_text(json.dumps(GOOD | {"parts": [{"part": "a", "auc": float("nan")}]}))
    assert read_trained_parts(tmp_path)["parts"] == [{"part": "a", "auc": None}]
    (tmp_path / TRAINED_PARTS).write_text(json.dumps(GOOD | {"waiting": "x" * MOST_BYTES}))
    assert "damaged" in read_trained_parts(tmp_path)["error"]


def test_of_one_bundle_and_of_what_cannot_be_read_nothing_is_shown(tmp_path):
    file = tmp_path / "manifest.json"
    file.write_text("{}")
    assert read_trained_parts(file) is None  # its path is no folder
    (tmp_path / TRAINED_PARTS).mkdir()
    assert "cannot be read" in read_trained_parts(tmp_path)["error"]


def test_keys_of_a_later_or_an_earlier_trainer_are_passed_on(tmp_path):
    old = {"written": 1, "parts": [{"part": "a"}], "held": {}}
    (tmp_path / TRAINED_PARTS).write_text(json.dumps(old | {"new": 1}))
    assert read_trained_parts(tmp_path) == old | {"new": 1}


def test_a_service_of_a_folder_shows_it_and_serves_whatever_it_is(make_service, tiny_bundle, tmp_path):
    shutil.copytree(tiny_bundle, tmp_path / "step-1")
    client = Client(make_service(tmp_path))
    assert client.get("/v1/status").json()["trained"] is None
    write_trained_parts(tmp_path, GOOD)
    assert client.get("/v1/status").json()["trained"] == GOOD
    (tmp_path / TRAINED_PARTS).write_text("{")
    status = client.get("/v1/status").json()
    assert "damaged" in status["trained"]["error"] and not status["error"]
