import dataclasses
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.__main__ import main
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.reading import column_names, open_reader
from tests.prepared_folders import contents, vocabulary_of

FORMAT = LogFormat(
    columns={
        "click": "label",
        "count": "integer",
        "price": "float",
        "hash": "hex32",
        "site": "string",
        "flag": "boolean",
        "tags": "list",
        "when": "timestamp",
        "note": "ignored",
    },
    timestamps={"when": "%Y-%m-%dT%H:%M:%SZ"},
    separator=",",
)
BARE = dataclasses.replace(FORMAT, quotes=True)
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
# Columns as Parquet has them: each of one type.
COLUMNS = {
    "click": (pa.int64(), st.integers(0, 2)),
    "count": (pa.int64(), INT64),
    "price": (pa.float64(), FLOATS),
    "hash": (pa.int64(), st.integers(-(2**31) - 1, 2**32)),
    "flag": (pa.bool_(), st.booleans()),
    "when": (pa.string(), st.sampled_from(["2024-02-29T23:59:59Z", "2024-02-30T00:00:00Z", "1969-12-31T00:00:01Z"])),
    "note": (pa.string(), TEXTS),
}
SITES = [(pa.string(), TEXTS), (pa.int64(), INT64), (pa.float64(), FLOATS), (pa.bool_(), st.booleans())]
WITH_BOOLEANS = {"booleans": {"site": ("yes", "no"), "tags": ("yes", "no")}}


@st.composite
def tables(draw):
    """A table, and the same as JSON lines."""
    site, tag = draw(st.sampled_from(SITES)), draw(st.sampled_from(SITES))
    types = COLUMNS | {"site": site, "tags": (pa.list_(tag[0]), st.lists(st.none() | tag[1], max_size=3))}
    num_rows = draw(st.integers(1, 8))
    columns = {
        name: pa.array([draw(st.none() | values) for _ in range(num_rows)], of_type)
        for name, (of_type, values) in types.items()
    }
    table = pa.table(columns)
    lines = []
    for row in table.to_pylist():
        names = draw(st.permutations(list(row)))
        there = {name: row[name] for name in names if row[name] is not None or not lines or draw(st.booleans())}
        lines.append(json.dumps(there, ensure_ascii=draw(st.booleans())))
    return table, draw(st.sampled_from(["\n", "\r\n"])).join(lines)


def loaded(path, log_format=FORMAT, chunk_bytes=1 << 20):
    (file,) = find_log(path)
    with open_reader(file, log_format) as reader:
        return [task.load() for task, _ in reader.chunks(chunk_bytes)]


def text_of(chunks):
    return b"".join(chunk.lines for chunk in chunks)


def write(path, *lines, end="\n"):
    path.write_text("".join(f"{line}{end}" for line in lines), encoding="utf-8", newline="")
    return path


def texts_of(tmp_path, *lines, **columns):
    """Return the cells of lines of a format that has these columns besides the label."""
    log_format = LogFormat(columns={"click": "label", **columns}, separator=",")
    return text_of(loaded(write(tmp_path / "log.jsonl", *lines), log_format)).decode().splitlines()


@settings(max_examples=300, deadline=None)
@given(pair=tables(), chunk_bytes=st.sampled_from([1, 50, 1 << 20]))
def test_a_log_is_read_as_the_same_table_in_parquet(tmp_path_factory, pair, chunk_bytes):
    table, lines = pair
    folder = tmp_path_factory.getbasetemp() / "pair"
    folder.mkdir(exist_ok=True)
    pq.write_table(table, folder / "log.parquet")
    (folder / "log.jsonl").write_bytes(lines.encode())
    for log_format in (FORMAT, BARE):
        log_format = dataclasses.replace(log_format, **WITH_BOOLEANS)
        chunks = loaded(folder / "log.jsonl", log_format, chunk_bytes)
        (expected,) = loaded(folder / "log.parquet", log_format)
        assert text_of(chunks) == expected.lines
        assert {chunk.is_bare for chunk in chunks} == {expected.is_bare}
        check_numbers(chunks)


def check_numbers(chunks):
    """A chunk's first line is the one after those of the chunks before."""
    next_line = 0
    for chunk in chunks:
        assert (chunk.first_line, chunk.num_lines) == (next_line, chunk.lines.count(b"\n"))
        next_line += chunk.num_lines


ROWS = [
    {
        "click": number % 3 == 0,
        "count": number * number,
        "price": number / 8,
        "hash": number % 7,
        "site": 2**53 + number % 5 if number % 2 else None,
        "flag": number % 2 == 0,
        "tags": [f"é{number % 4}", "t"][: number % 3],
        "when": f"2024-01-{number % 28 + 1:02}T00:00:00Z",
        "note": {"is": "not read"},
    }
    for number in range(400)
]
OPTIONS = PrepareOptions(min_count=2, workers=1, data=FORMAT)


@pytest.mark.parametrize(("ending", "workers"), [(".jsonl", 1), (".ndjson.gz", 2), (".json.zst", 2)])
def test_it_is_prepared_to_the_bytes_of_the_same_table(tmp_path, ending, workers):
    options = dataclasses.replace(OPTIONS, workers=workers)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "log.parquet")
    with pa.output_stream(tmp_path / f"log{ending}", {"z": "gzip", "t": "zstd"}.get(ending[-1])) as file:
        file.write("\n".join(map(json.dumps, ROWS)).encode())  # no line end at the end
    folders = [tmp_path / "table", tmp_path / "lines"]
    prepare(tmp_path / "log.parquet", folders[0], options)
    prepare(tmp_path / f"log{ending}", folders[1], options)
    table, lines = map(contents, folders)
    assert table.pop("schema.json") != lines.pop("schema.json")  # it names the file
    assert table == lines
    assert ("site", str(2**53 + 1)) in vocabulary_of(folders[1])


# Cells, as JSON, of a column of each kind, and their texts.
CELLS = {
    "string": [
        *zip(map(json.dumps, ["7", 7, 7.0, True, None]), ["7", "7", "7", "1", ""], strict=True),
        *((str(number), str(number)) for number in (2**53 + 1, 2**64, -(2**63) - 1, 10**40, 0.5)),
        *[("1e-5", "0.00001"), ('"2020-01-01T00:00:00Z"', "2020-01-01T00:00:00Z"), ('"2020-01-01"', "2020-01-01")],
        *[('"\\u00e9\\ud83d\\ude00"', "é😀"), ('"a","x":"b"', "b")],  # escapes, and the last of two keys
    ],
    # A value with the separator of a list in it makes a bad line, not another list.
    "list": [('["a",2,null]', "a|2|"), ('"a|b"', "a|b"), ('["a|b"]', ","), ("5", "5")],
}


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("chunk_bytes", [1, 60, 1 << 20])
def test_a_value_has_one_text_whatever_stands_in_other_lines(tmp_path, kind, chunk_bytes):
    cells, texts = zip(*CELLS[kind], strict=True)
    lines = ["\ufeff" * (place == 0) + f'{{"click":1,"x":{cell}}}' for place, cell in enumerate(cells)]
    log_format = LogFormat(columns={"click": "label", "x": kind}, separator=",", booleans={"x": ("1", "0")})
    found = text_of(loaded(write(tmp_path / "a.jsonl", *lines), log_format, chunk_bytes)).decode().splitlines()
    assert found == [f"1,{text}" for text in texts]


BROKEN = ["", "null", "1", "[1]", '"a"', '{"click":1,"s":"a"', '{"click":1}{"click":1}', "a,b"]
BROKEN += ['{"click":1,"s":"\\ud83d"}']


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_that_are_no_object_are_rejected_and_named(tmp_path, end):
    good = ['{"click":1,"s":"a"}', '{"click":0,"s":"b"}'] * 50
    log = write(tmp_path / "log.jsonl", *good, *BROKEN, *good, end=end)
    log.write_bytes(log.read_bytes() + b'{"click":1,"s":"\xff"}\n{"click":1,"s":"' + b"a" * 70_000 + b'"}\n{"cl')
    data = LogFormat(columns={"click": "label", "s": "string"}, separator=",")
    schema = prepare(log, tmp_path / "out", dataclasses.replace(OPTIONS, data=data, max_reject_fraction=0.1))
    assert schema.source["lines"] == 200 + len(BROKEN) + 3
    rejects = (tmp_path / "out" / "rejects.tsv").read_bytes().decode(errors="replace").split("\n")[:-1]
    assert [line.split("\t")[:2] for line in rejects] == [
        *([str(101 + place), "columns"] for place in range(len(BROKEN))),
        [str(201 + len(BROKEN)), "columns"],
        [str(202 + len(BROKEN)), "too long"],
        [str(203 + len(BROKEN)), "columns"],
    ]
    with pytest.raises(ValueError, match=r"The first one is no JSON object: .* remove a line that was cut off"):
        prepare(log, tmp_path / "fewer", dataclasses.replace(OPTIONS, data=data, max_reject_fraction=0.01))


def test_lines_of_text_that_end_in_many_separators_are_not_told_of_json(tmp_path):
    (tmp_path / "log.csv").write_text("1,a\n0,b\n" * 50 + "1,a,,,\n" * 20)
    data = LogFormat(columns={"click": "label", "s": "string"}, separator=",")
    with pytest.raises(ValueError, match="They seem to have cells with a line end"):
        prepare(tmp_path / "log.csv", tmp_path / "out", dataclasses.replace(OPTIONS, data=data))


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("string", '{"b":1}', "log.jsonl, line 3: column 'x' of kind string holds {\"b\": 1}; expected text"),
        ("string", "[1]", "line 3: column 'x' of kind string holds [1]"),
        ("list", '[{"b":1}]', "line 3: column 'x' of kind list holds [{\"b\": 1}]"),
        ("list", "[[1]]", "line 3: column 'x' of kind list holds [[1]]"),
        ("hex32", "true", "line 3: column 'x' of kind hex32 holds true; expected text, a number or null; nothing says"),
    ],
)
def test_a_value_that_no_column_has_is_an_error_with_its_line(tmp_path, kind, value, message):
    lines = ['{"click":1,"x":null}', '{"click":1,"x":"a"}', f'{{"click":1,"x":{value}}}']
    with pytest.raises(ValueError) as error:
        texts_of(tmp_path, *lines, x=kind)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"click":1,"s":"a"}]', "jq -c '.[]'"),
        ('[\n{"click":1,"s":"a"},\n{"click":0,"s":"b"}\n]\n', "jq -c '.[]'"),
        ('{\n"click":1,\n"s":"a"\n}\n', "jq -c . OLD"),
        ("click,s\n1,a\n", "no JSON object a line"),
        ('{"clicked":1,"s":"a"}\n', "not found: click; found clicked, s"),
        ('{"click":1,"t":"a"}\n', "not found: s; found click, t"),
        ("", ""),
    ],
)
@pytest.mark.parametrize("ending", [".jsonl", ".json"])
def test_other_files_are_refused(tmp_path, text, message, ending, capsys):
    (tmp_path / f"log{ending}").write_text(text)
    (tmp_path / "data.yaml").write_text("columns: {click: label, s: string}\n")
    command = ["prepare", str(tmp_path / f"log{ending}"), str(tmp_path / "out"), "--data", str(tmp_path / "data.yaml")]
    assert main(command) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_first_objects_name_the_columns(tmp_path):
    (file,) = find_log(write(tmp_path / "log.jsonl", '{"b":1}', "", '{"a":1,"b":2}'))
    assert column_names(file, FORMAT) == ("b", "a")


def test_columns_of_no_object_are_a_warning(tmp_path, caplog):
    log = write(tmp_path / "log.jsonl", '{"click":1,"s":"a"}')
    log_format = LogFormat(columns={"click": "label", "s": "string", "t": "string", "u": "ignored"}, separator=",")
    for _ in range(2):
        assert text_of(loaded(log, log_format)) == b"1,a,,\n"
    assert caplog.messages == [f"{log}: none of its first objects has t: a missing value where there is none"]


def test_a_folder_has_parts_of_json_lines_but_no_other_json(tmp_path):
    for name in ("part-2.jsonl", "part-10.ndjson.gz", "about.json"):
        (tmp_path / name).touch()
    assert [file.name for file in find_log(tmp_path)] == ["part-2.jsonl", "part-10.ndjson.gz"]


def test_it_is_described_as_the_same_table_and_prepared_so(tmp_path, capsys):
    described = []
    log = write(tmp_path / "log.jsonl", "{", *map(json.dumps, ROWS))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "log.parquet")
    for path in (log, tmp_path / "log.parquet"):
        assert main(["describe", str(path)]) == 0
        described.append(capsys.readouterr().out)
    lines, table = map(yaml.safe_load, described)
    assert lines == table
    assert (lines["columns"]["click"], lines["columns"]["note"]) == ("label", "ignored")
    (tmp_path / "data.yaml").write_text(described[0])
    assert main(["prepare", str(log), str(tmp_path / "out"), "--data", str(tmp_path / "data.yaml")]) == 0
    assert main(["pre-check", str(log), "--data", str(tmp_path / "data.yaml")]) == 0


@pytest.mark.parametrize("texts", [("TRUE", "FALSE"), ("x", "y")])
def test_a_boolean_after_the_first_lines_has_the_text_of_the_vocabulary_or_is_an_error(tmp_path, texts):
    data = LogFormat(columns={"click": "label", "s": "string"}, separator=",")
    options = dataclasses.replace(OPTIONS, data=data)
    write(tmp_path / "a.txt", *[f"{place % 2},{texts[place % 2]}" for place in range(100)])
    prepare(tmp_path / "a.txt", tmp_path / "base", options)
    rows = [{"click": 1, "s": None}, *[{"click": place % 2} for place in range(100_000)]]
    rows += [{"click": place % 2, "s": place % 2 == 0} for place in range(10)]
    log = write(tmp_path / "b.jsonl", *map(json.dumps, rows))
    if texts == ("x", "y"):
        with pytest.raises(ValueError, match="line 100002: column 's' of kind string holds true"):
            prepare(log, tmp_path / "out", options, vocabulary_of=tmp_path / "base")
    else:
        prepare(log, tmp_path / "out", options, vocabulary_of=tmp_path / "base", extend=True)
        assert {value for _, value in vocabulary_of(tmp_path / "out")} == {"", *texts}
