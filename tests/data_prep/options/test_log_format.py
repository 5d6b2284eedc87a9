import dataclasses

import pytest

from data_prep.options.log_format import ListForm, LogFormat
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


LISTED = "separator: ','\ncolumns: {click: label, item: string, genres: list, ad: hex32}\n"
TIMED = "columns: {click: label, price: float, seen: timestamp, site: string}\n"


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
        ("columns: {y: label, w: weight, v: weight, s: string}", "may have one of kind weight; found w, v"),
        (
            "columns: {y: label, s: string, user id: id}",
            "needs a name of letters, digits and _; found 'user id'",
        ),
        ("clicked: '>= four'", "a rule for numbers such as"),
        ("{clicked: '>= 4', not_clicked: ['no']}", "so not_clicked must be left out"),
        (f"{LISTED}lists: {{item: {{}}}}", "lists: 'item' is no column of kind list; write columns: {item: list}"),
        (
            f"{LISTED}lists: {{genres: {{separator: ','}}}}",
            "values of 'genres' are between ',', and so are the columns",
        ),
        (
            f"{LISTED}lists: {{genres: {{separator: '||'}}}}",
            r"a list's separator must be one ASCII character .* found '\|\|'",
        ),
        (f"{LISTED}lists: {{genres: {{max_length: 0}}}}", "max_length must be between 1 and 1000; found 0"),
        (
            f"{LISTED}lists: {{genres: {{pool: max}}}}",
            "'prepare.data.lists.genres.pool' must be one of mean, sum; found 'max'",
        ),
        (f"{LISTED}lists: {{genres: 3}}", "'prepare.data.lists.genres' must be a section with keys; found int 3"),
        (
            f"{LISTED}shares: {{genres: color}}",
            "shares: genres: color: 'color' is no column; only string and list columns share",
        ),
        (f"{LISTED}shares: {{genres: click}}", "'click' is of kind label; only string and list"),
        (
            f"{LISTED}shares: {{ad: item}}",
            "'ad' is of kind hex32; only string and list columns share; give both the kind string",
        ),
        (f"{LISTED}shares: {{item: genres, genres: item}}", "'genres' has no vocabulary of its own"),
        *(
            (
                f"{LISTED}booleans: {{item: {texts}}}",
                "booleans: item: expected a column of kind string or list, and two texts",
            )
            for texts in ("[a]", "[a, a]", "[a, b, c]")
        ),
        (f"{LISTED}booleans: {{click: [a, b]}}", "found label"),
        (
            f"{LISTED}point_zero: [click, item, nosuch]",
            "point_zero: expected columns of kind string or list; found click, nosuch",
        ),
        (f"{TIMED}timestamps: {{site: seconds}}", "'site' is no column of kind timestamp"),
        (f"{TIMED}timestamps: {{seen: '%H:%M'}}", "which must give year, month and day"),
        (f"{TIMED}timestamps: {{seen: '%Y%m%d%d'}}", "of which each may occur once"),
        (
            f"{TIMED}timestamps: {{seen: '%Y-%j'}}",
            "expected seconds, milliseconds, microseconds, nanoseconds, iso, or a form of",
        ),
        (f"{TIMED}features: {{site: [hour]}}", "features: 'site' is no column of kind timestamp"),
        (f"{TIMED}features: {{seen: [hour, hour]}}", "each once"),
        (f"{TIMED}features: {{seen: [minute]}}", "must be one of hour, weekday, age; found 'minute'"),
        (
            "columns: {y: label, seen: timestamp, seen_hour: string}",
            r"'seen_hour' is a field that the timestamp 'seen' gives, too; .* features: {seen: \[weekday\]}",
        ),
        (
            "{columns: {y: label, s: string, seen: timestamp, seen_age_days: float}, features: {seen: [age]}}",
            r"'seen_age_days' is a field .* features: {seen: \[\]}",
        ),
        ("others: ignored", "needs header: true"),
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


def test_a_description_in_yaml(tmp_path):
    (tmp_path / "my.yaml").write_text(f"{LISTED}lists: {{genres: {{max_length: 3}}}}\nshares: {{genres: item}}")
    data = read_options(data_path=tmp_path / "my.yaml").data
    assert (data.list_form("genres"), data.shares) == (ListForm(max_length=3), {"genres": "item"})


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
