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
# By the text of a description that is good: what is added to it, and what the error says.
BAD = {
    "": {
        "separator: ab": "separator must be one ASCII character such as ',' or .*; found 'ab'",
        r'separator: "\""': "separator must be one ASCII",
        "columns: {a: string}": "columns must have one of kind label; found none",
        "columns: {a: label, b: label, c: string}": "columns must have one of kind label; found a, b",
        "columns: {a: label, b: id}": "a field .*; found none",
        "columns: {a: label, b: text}": "'prepare.data.columns.b' must be one of label, .*; found 'text'",
        "columns: {a: label, b: string, b: integer}": "key 'b' occurs twice",
        "clicked: ['1', '0']": "clicked and not_clicked must be cells that differ",
        "{clicked: rest, not_clicked: rest}": "clicked and not_clicked must be cells that differ",
        "{separator: ' ', trim: true}": "blanks separate them here",
        "{separator: ',', decimal: ','}": "a number's comma would end its cell",
        "colums: {}": "did you mean 'prepare.data.columns'",
        "columns: {y: label, w: weight, v: weight, s: string}": "may have one of kind weight; found w, v",
        "columns: {y: label, s: string, user id: id}": "needs a name of letters, digits and _; found 'user id'",
        "clicked: '>= four'": "a rule for numbers such as",
        "{clicked: '>= 4', not_clicked: ['no']}": "so not_clicked must be left out",
        "columns: {y: label, t: timestamp, t_hour: string}": (
            r"'t_hour' is a field that the timestamp 't' gives, too; .* features: {t: \[weekday\]}"
        ),
        "{columns: {y: label, s: string, t: timestamp, t_age_days: float}, features: {t: [age]}}": (
            r"'t_age_days' is a field .* features: {t: \[\]}"
        ),
        "others: ignored": "needs header: true",
    },
    LISTED: {
        "lists: {item: {}}": "lists: 'item' is no column of kind list; write columns: {item: list}",
        "lists: {genres: {separator: ','}}": "values of 'genres' are between ',', and so are the columns",
        "lists: {genres: {separator: '||'}}": r"a list's separator must be one ASCII character .* found '\|\|'",
        "lists: {genres: {max_length: 0}}": "max_length must be between 1 and 1000; found 0",
        "lists: {genres: {pool: max}}": "'prepare.data.lists.genres.pool' must be one of mean, sum; found 'max'",
        "lists: {genres: 3}": "'prepare.data.lists.genres' must be a section with keys; found int 3",
        "shares: {genres: color}": "shares: genres: color: 'color' is no column; only string and list columns share",
        "shares: {genres: click}": "'click' is of kind label; only string and list",
        "shares: {ad: item}": "'ad' is of kind hex32; only string and list columns share; give both the kind string",
        "shares: {item: genres, genres: item}": "'genres' has no vocabulary of its own",
        "booleans: {item: [a]}": "booleans: item: expected a column of kind string or list, and two texts",
        "booleans: {item: [a, a]}": "booleans: item: expected a column of kind string or list, and two texts",
        "booleans: {item: [a, b, c]}": "booleans: item: expected a column of kind string or list, and two texts",
        "booleans: {click: [a, b]}": "found label",
        "point_zero: [click, item, nosuch]": "point_zero: expected columns of kind string or list; found click, nosuch",
    },
    TIMED: {
        "timestamps: {site: seconds}": "'site' is no column of kind timestamp",
        "timestamps: {seen: '%H:%M'}": "which must give year, month and day",
        "timestamps: {seen: '%m/%d/%Y %I:%M'}": "%I .1 to 12. and %p .AM or PM. go together",
        "timestamps: {seen: '%Y%m%d%d'}": "of which each may occur once",
        "timestamps: {seen: '%Y-%j'}": "expected seconds, milliseconds, microseconds, nanoseconds, iso, or a form of",
        "features: {site: [hour]}": "features: 'site' is no column of kind timestamp",
        "features: {seen: [hour, hour]}": "each once",
        "features: {seen: [minute]}": "must be one of hour, weekday, age; found 'minute'",
    },
}


@pytest.mark.parametrize(
    ("text", "message"), [(base + text, message) for base, table in BAD.items() for text, message in table.items()]
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
