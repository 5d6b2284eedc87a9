"""Lists and shared vocabularies besides what `kernels/test_third_voice.py` compares: cut values, extension, errors."""

import dataclasses
import json

import pytest

from data_prep.checks.inspect import inspect
from data_prep.encoding.from_values import mappings_to_chunk
from data_prep.options.log_format import ListForm, LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.report import write_report
from tests.prepared_folders import ALL_TRAINED, vocabulary_of

OPTIONS = PrepareOptions(
    data=LogFormat(
        columns={"click": "label", "item": "string", "genres": "list", "history": "list"},
        separator=",",
        lists={"genres": ListForm(max_length=3, pool="sum"), "history": ListForm(separator=" ", max_length=2)},
        shares={"history": "item"},
    ),
    min_count=1,
    workers=1,
    **ALL_TRAINED,
)


@pytest.fixture(name="folder")
def folder_fixture(tmp_path):
    (tmp_path / "log.csv").write_text("1,a,x|y,b a\n0,b,x|x|y|z,\n1,,|,a a a\n0,c,||z|,d\n")
    prepare(tmp_path / "log.csv", tmp_path / "out", OPTIONS)
    return tmp_path / "out"


def test_what_is_cut_is_counted_and_shown(folder, capsys):
    profile = json.loads((folder / "statistics.json").read_text())["categorical"]
    assert [profile[name].get("cut") for name in ("item", "genres", "history")] == [None, 1, 1]
    assert [profile[name]["missing"] for name in ("item", "genres", "history")] == [1, 1, 1]
    inspect(folder)
    expected = "genres: 1 of 4 training rows have more than 3 values; the others were left out"
    assert expected in capsys.readouterr().out
    assert expected in write_report(folder).read_text()


def test_a_value_with_the_separator_in_it_is_an_error():
    message = r"row 0, column 'genres' of kind list: 'x\|y' has the separator '\|' of the list's values in it"
    with pytest.raises(TypeError, match=message):
        mappings_to_chunk([{"item": "a", "genres": ["x|y"], "history": []}], OPTIONS.data)


def test_a_shared_vocabulary_is_extended_once(tmp_path, folder):
    (tmp_path / "next.csv").write_text("1,new,x,a old\n0,old,w,new\n")
    schema = prepare(tmp_path / "next.csv", tmp_path / "next", OPTIONS, vocabulary_of=folder, extend=True)
    old, new = vocabulary_of(folder), vocabulary_of(tmp_path / "next")
    assert old.items() <= new.items()
    added = {key: count for key, (count, _) in new.items() if key not in old}
    assert added == {("item", "new"): 2, ("item", "old"): 2, ("genres", "w"): 1}
    assert schema.categorical[0].id_ranges == schema.categorical[2].id_ranges

    other = dataclasses.replace(OPTIONS.data, lists={**OPTIONS.data.lists, "genres": ListForm(max_length=4)})
    with pytest.raises(ValueError, match=r"other lists: {'genres': \(3, 'sum'\), .* there, {'genres': \(4, 'mean'\)"):
        prepare(tmp_path / "next.csv", tmp_path / "x", dataclasses.replace(OPTIONS, data=other), vocabulary_of=folder)
