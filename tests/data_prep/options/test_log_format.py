import dataclasses

import pytest

from data_prep.options.log_format import LogFormat
from data_prep.options.options_file import read_options
from data_prep.options.prepare_options import PrepareOptions


def test_criteos_file_holds_the_defaults(pytestconfig):
    data = read_options(data_path=pytestconfig.rootpath / "configs" / "data" / "criteo.yaml").data
    assert data == LogFormat()
    assert list(data.columns) == list(LogFormat().columns)


def test_avazus_file(pytestconfig):
    options = read_options(data_path=pytestconfig.rootpath / "configs" / "data" / "avazu.yaml")
    assert (len(options.data.columns), options.data.numeric_fields) == (24, ())
    assert len(options.categorical_columns) == 22


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("separator: ab", "separator must be one ASCII character such as ',' or .*; found 'ab'"),
        ('separator: "\\""', "separator must be one ASCII"),
        ("columns: {a: string}", "columns must have one of kind label; found none"),
        ("columns: {a: label, b: label, c: string}", "columns must have one of kind label; found a, b"),
        ("columns: {a: label, b: id}", "a field .*; found none"),
        (
            "columns: {a: label, b: text}",
            "'prepare.data.columns.b' must be one of label, integer, float, .*; found 'text'",
        ),
        ("columns: {a: label, b: string, b: integer}", "key 'b' occurs twice"),
        ("clicked: ['1', '0']", "clicked and not_clicked must be cells that differ"),
        ("{clicked: rest, not_clicked: rest}", "clicked and not_clicked must be cells that differ"),
        ("{separator: ' ', trim: true}", "blanks separate them here"),
        ("{separator: ',', decimal: ','}", "a number's comma would end its cell"),
        (
            "{columns: {y: label, c: string, t: timestamp}, timestamps: {t: '%m/%d/%Y %I:%M'}}",
            "%I .1 to 12. and %p .AM or PM. go together",
        ),
        ("colums: {}", "did you mean 'prepare.data.columns'"),
    ],
)
def test_a_bad_file_is_an_error_that_names_it(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"(?s)mine.yaml.*{message}"):
        read_options(data_path=path)


def test_a_file_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "mine.yaml").write_bytes(b"clicked: ['\xff']")
    with pytest.raises(ValueError, match=r"mine.yaml is not UTF-8 text .*save it as UTF-8"):
        read_options(data_path=tmp_path / "mine.yaml")


def test_buckets_are_columns_after_the_others():
    columns = {"b": "integer", "y": "label", "c": "string", "a": "hex32", "d": "integer", "e": "hex32"}
    options = PrepareOptions(data=dataclasses.replace(LogFormat(), columns=columns), integer_buckets=True)
    assert [(column.name, column.kind, column.place) for column in options.categorical_columns] == [
        ("c", "string", 0),
        ("a", "hex32", 0),
        ("e", "hex32", 1),
        ("b_bucket", "bucket", 2),
        ("d_bucket", "bucket", 3),
    ]
