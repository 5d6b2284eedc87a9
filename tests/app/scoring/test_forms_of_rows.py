"""The forms of a row, of generated logs of every kind of column and format, have the same bits of ids and scores.

What cannot be the same is an error that names the column.
"""

import csv
import dataclasses
import gzip
import io
import itertools
import json
import math
import random
import struct
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.scoring.batch_prediction import predict
from app.scoring.predictor import Predictor, ScoringModel
from app.scoring.trained import write_bundle
from app.serving.forms.form import RequestError
from data_prep.encoding.from_values import split_line
from data_prep.kernels import numpy_kernels
from data_prep.kernels.parsed import Chunk
from data_prep.options.log_format import BOOLEANS, VectorForm
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare, prepare_table
from data_prep.prepared.schema import read_schema
from tests.app.scoring.ways_to_score import file_scores, served_scores, tensor_scores
from tests.data_prep.kernels.generated_logs import generate_log
from tests.prepared_folders import contents
from tests.request_bodies import arrow_stream

NUM_ROWS = 60
EPOCH = datetime(1970, 1, 1)


class World:
    """A generated log, the model of it, and its rows as cells by column."""

    def __init__(self, seed: int, folder: Path, make_bundle, make_state, config) -> None:
        self.random = random.Random(seed)
        log = generate_log(seed, NUM_ROWS, bad_share=0)
        self.log_format = log.log_format
        self.has_extremes = self.random.random() < 0.2
        self.roles = {name: self._role(name) for name in log.log_format.columns}
        vocabulary = self.random.choice(["counted"] * 4 + ["hash"])
        if vocabulary == "hash":  # which has no values to decide by
            self.log_format = dataclasses.replace(self.log_format, point_zero=self.written_with_point)
        self.rows = [self._cells(log, line) for line in log.lines]
        self.names = list(log.columns)
        self._rewrite_vectors()
        self.path = folder / "log.csv"
        with self.path.open("w", newline="") as file:
            file.write("".join(f"{line}\n" for line in self.lines(self.names, header=log.log_format.header)))
        self.options = PrepareOptions(
            data=self.log_format,
            min_count=self.random.choice([1, 1, 3]),
            oov_buckets=self.random.choice([1, 3]),
            vocabulary=vocabulary,
            integer_buckets=self.random.random() < 0.5,
            crosses=self._crosses(),
            numeric_transform=self.random.choice(
                ["log1p", "max", "standardize", "log1p_standardize", "quantile", "piecewise"]
            ),
            workers=1,
        )
        prepare(self.path, folder / "prepared", self.options)
        schema = read_schema(folder / "prepared")
        self.bundle = make_bundle(folder / "prepared", config, make_state(schema, config), folder=folder / "bundle")
        self.predictor = Predictor.open(self.bundle)
        lines = self.lines(list(self.log_format.columns))
        chunk = Chunk(0, len(lines), "".join(f"{line}\n" for line in lines).encode())
        self.parsed = numpy_kernels.parse_chunk(chunk, self.log_format).rows

    def _rewrite_vectors(self):
        """Rewrite the vectors, without the largest numbers, in any way that the format allows. Often add a column."""
        log_format = self.log_format
        if self.random.random() < 0.5:
            form = VectorForm(self.random.choice([1, 2, 5]), self.random.choice(["standardize", "norm", "none"]))
            self.log_format = log_format = dataclasses.replace(
                log_format,
                columns={**log_format.columns, "vector": "vector"},
                vectors={**log_format.vectors, "vector": form},
            )
            self.names.append("vector")
            self.roles["vector"] = "text"
        marks = [mark for mark in (", ", " ", "|", "; ") if log_format.quotes or log_format.separator not in mark]
        marks = [mark for mark in marks if log_format.decimal == "." or "," not in mark]
        for name, row in itertools.product(log_format.vector_fields, self.rows):
            numbers = [
                self.random.choice(["0", "-0.0", "7", "1e-3", repr(self.random.gauss(0, 9))])
                for _ in range(log_format.vectors[name].width)
            ]
            brackets = self.random.choice(["{}", "[{}]"])
            missing = self.random.choice(["", "[]", *log_format.missing])
            row[name] = (
                missing if self.random.random() < 0.2 else brackets.format(self.random.choice(marks).join(numbers))
            )

    def _crosses(self):
        """Return a cross of each list with another categorical field, which may be a list too."""
        fields = self.log_format.categorical_fields
        of_lists = [(name, self.random.choice(fields)) for name in self.log_format.columns_of_kind("list")]
        return tuple(sorted({tuple(sorted(parts)) for parts in of_lists if len({*parts}) > 1}))

    def _role(self, name):
        """Return what a column's texts stand for: words for booleans, numbers, or nothing else.

        If the column is of kind boolean, return the type of its values in Python and in tables.
        """
        kind, shares = self.log_format.columns[name], {*self.log_format.shares, *self.log_format.shares.values()}
        if kind == "boolean":
            return self.random.choice([bool, int, float, str])
        if kind == "string" and name not in shares:
            return self.random.choice(["text", "number", "7.0", *BOOLEANS])
        return "text"

    def _cells(self, log, line):
        cells = dict(zip(log.columns, split_line(line, log.log_format), strict=True))
        for name, role in self.roles.items():
            if log.log_format.columns[name] == "integer" and not self.has_extremes and len(cells[name]) > 15:
                cells[name] = cells[name][-15:].lstrip("-")  # which a float holds
            if role == "text" or not isinstance(role, (str, tuple)):
                continue
            if cells[name].strip(" ") not in ("", *log.log_format.missing):
                texts = {"number": str(self.random.randint(-5, 9)), "7.0": f"{self.random.randint(0, 9)}.0"}
                cells[name] = texts[role] if isinstance(role, str) else self.random.choice(role)
        return cells

    def lines(self, names, header=False):
        separator = self.log_format.separator
        rows = [[row.get(name, "") for name in names] for row in self.rows]
        return [separator.join(map(self._quoted, row)) for row in [names] * header + rows]

    def _quoted(self, cell):
        if self.log_format.quotes and ('"' in cell or self.log_format.separator in cell):
            return '"' + cell.replace('"', '""') + '"'
        return cell

    @property
    def written_with_point(self):
        return tuple(name for name, role in self.roles.items() if role == "7.0")

    @property
    def in_doubt(self):
        """The columns of booleans whose texts the vocabulary does not say."""
        log_format = self.predictor.log_format
        is_boolean = (name for name, role in self.roles.items() if isinstance(role, tuple))
        return [name for name in is_boolean if not log_format.texts_of_booleans(name)]

    def typed(self, name, row):
        """The value that a row's cell stands for, as Python has it."""
        kind, role = self.log_format.columns[name], self.roles[name]
        if kind in ("string", "list"):
            texts, present = self.parsed.columns[name]
            if not present[row]:
                return None
            text = texts.take(slice(row, row + 1)).tolist()[0].decode()
            if kind == "list":
                return text.split(self.log_format.list_form(name).separator)
            if role in ("number", "7.0"):
                return int(text) if role == "number" else float(text)
            return text == role[0] if isinstance(role, tuple) else text
        numbers, present = self.parsed.columns[name]
        if not present[row]:
            return None
        value = numbers[row].tolist()
        if kind == "boolean":
            return role(value)
        if kind != "timestamp":  # The value of a vector is a list.
            return value
        # Without a zone it would be by the clock of the column's zone.
        return (EPOCH + timedelta(milliseconds=value)).replace(tzinfo=UTC if name in self.log_format.timezone else None)

    def typed_rows(self):
        fields = [name for name, _ in self.log_format.fields]
        return [{name: self.typed(name, row) for name in fields} for row in range(len(self.rows))]


def text_rows(world):
    return [dict(zip(world.names, row.values(), strict=True)) | {"one more": "?"} for row in world.rows]


def as_json(world):
    """Typed rows as JSON: times as text."""
    rows = [
        {name: world.rows[number][name] if isinstance(value, datetime) else value for name, value in row.items()}
        for number, row in enumerate(world.typed_rows())
    ]
    return json.dumps({"rows": rows}).encode()


def typed_table(world):
    rows = world.typed_rows()
    columns = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        of_type = None
        if name in world.log_format.time_fields:
            of_type = pa.timestamp(
                world.random.choice(["ms", "us"]), "UTC" if name in world.log_format.timezone else None
            )
        if world.log_format.columns[name] == "vector":
            number = world.random.choice([pa.float32(), pa.float64()])
            # pyarrow cannot read a null list of a fixed size back from Parquet, so `fixed_size` makes these in memory.
            of_type = world.random.choice([pa.list_(number), pa.large_list(number)])
        columns[name] = pa.array(values, of_type)
    return pa.table(columns)


def fixed_size(world):
    """Return the typed table with vectors as lists of a fixed size."""
    table = typed_table(world)
    for name, form in world.log_format.vectors.items():
        place = table.column_names.index(name)
        table = table.set_column(
            place, name, table[name].cast(pa.list_(table.schema.field(name).type.value_type, form.width))
        )
    return table


def other_types(world):
    """The same values in other types of Arrow."""
    table = typed_table(world)
    for place, field in enumerate(table.schema):
        column, casts = table.column(place), [lambda column: column]
        if pa.types.is_string(field.type):
            casts += [lambda c: c.cast(pa.large_binary()), lambda c: c.cast(pa.large_string())]
        if pa.types.is_int64(field.type) and (pc.min(pc.fill_null(column, 0)).as_py() or 0) >= 0:
            casts.append(lambda c: c.cast(pa.uint64()))
        if pa.types.is_timestamp(field.type):
            casts += [lambda c: c.cast(pa.timestamp("us", "UTC")), lambda c: c.cast(pa.timestamp("ms", "Asia/Tokyo"))]
        if field.name in world.log_format.vector_fields:
            casts = [lambda c: pa.array([row and "|".join(map(repr, row)) for row in c.to_pylist()])]
        elif pa.types.is_list(field.type):
            casts.append(lambda c: c.cast(pa.large_list(pa.large_string())))
        else:
            casts.append(lambda c: c.dictionary_encode())
        table = table.set_column(place, field.name, world.random.choice(casts)(column))
    return pa.concat_tables([table.slice(0, 7), table.slice(7)])


def by_column(world):
    """Return typed rows as MLflow passes the columns of `inputs`."""
    rows = world.typed_rows()
    return {name: np.array([*(row[name] for row in rows), None], object)[:-1] for name in rows[0]}


def typed_frame(world):
    """Return typed rows as a data frame of pandas. Whole numbers beside missing ones become floats."""
    return typed_table(world).to_pandas()


def as_csv(world):
    """Text rows with a header, in any order of the columns."""
    rows = text_rows(world)
    text, names = io.StringIO(), world.random.sample([*rows[0]], len(rows[0]))
    csv.writer(text).writerows([names, *([row[name] for name in names] for row in rows)])
    return text.getvalue().encode()


def as_tensors(world, is_binary):
    """Text rows by V2, the values in the JSON or behind it: the body, and what its header says of the JSON's length.

    Vectors, and numbers in columns of texts, are texts or numbers.
    """
    rows, inputs, binary = text_rows(world), [], b""
    for name, kind in world.log_format.fields:
        tensor = {"name": name, "shape": [len(rows)], "datatype": "BYTES"}
        has_numbers = kind == "vector" or world.roles[name] in ("number", "7.0")
        if has_numbers and world.random.random() < 0.7:
            width = world.log_format.vectors[name].width if kind == "vector" else 1
            datatype = world.random.choice(["FP32", "FP64"])
            tensor |= {"shape": [len(rows), width], "datatype": datatype}
            values = [world.typed(name, row) for row in range(len(rows))]
            if is_binary:
                full = [np.full(width, math.nan) if value is None else np.reshape(value, width) for value in values]
                data = np.array(full, {"FP32": "<f4", "FP64": "<f8"}[datatype])
                tensor["parameters"], binary = {"binary_data_size": data.nbytes}, binary + data.tobytes()
            else:
                tensor["data"] = values
        elif is_binary:
            cells = [row[name].encode() for row in rows]
            data = b"".join(struct.pack("<I", len(cell)) + cell for cell in cells)
            tensor["parameters"], binary = {"binary_data_size": len(data)}, binary + data
        else:
            tensor["data"] = [row[name] for row in rows]
        inputs.append(tensor)
    head = json.dumps({"inputs": inputs}).encode()
    return str(len(head)) if is_binary else None, head + binary


def of_file(world, folder, write):
    """Scores of a log's file, by `predict`."""
    return file_scores(world.bundle, folder / write(folder))


def write_table(table, name):
    def write(folder):
        pq.write_table(table, folder / name)
        return name

    return write


def write_lines(world):
    """All columns in another order and one more, or as they are; without the label where that may be."""

    def write(folder):
        names = [name for name in world.names if world.log_format.columns.get(name) not in ("label", "weight", "id")]
        if not world.log_format.header:
            names = [name for name in world.log_format.columns if name != world.log_format.label_column]
        else:
            names = world.random.sample([*names, "one_more"], len(names) + 1)
        lines = world.lines(names, header=world.log_format.header)
        (folder / "test.csv").write_text("".join(f"{line}\n" for line in lines), newline="")
        return "test.csv"

    return write


def forms(world, folder):
    """Return a function that scores each form, by its name."""
    predictor = world.predictor
    columns, label = list(world.log_format.columns), world.log_format.label_column

    def score(rows):
        return lambda: predictor.score(rows())

    def served(content_type, body):
        return lambda: served_scores(predictor, content_type, body())

    def by_tensors(is_binary):
        length, body = as_tensors(world, is_binary)
        return tensor_scores(predictor, body, length)

    found = {
        "lines without a label": score(lambda: world.lines([name for name in columns if name != label])),
        "bytes": score(lambda: [line.encode() + b"\r\n" for line in world.lines(columns)]),
        "text dicts": score(lambda: text_rows(world)),
        "typed dicts": score(world.typed_rows),
        "dicts of NumPy": score(lambda: typed_frame(world).to_dict("records")),
        "JSON": served("application/json", lambda: as_json(world)),
        "CSV": served("text/csv", lambda: as_csv(world)),
        "text frame": score(lambda: pd.DataFrame(text_rows(world))),
        "text frame of objects": score(lambda: pd.DataFrame(text_rows(world)).astype(object)),
        "typed frame": score(lambda: typed_frame(world)),
        "frame of nullable types": score(lambda: typed_frame(world).convert_dtypes()),
        "text table": score(lambda: pa.Table.from_pylist(text_rows(world))),
        "typed table": score(lambda: typed_table(world)),
        "lists of a fixed size": score(lambda: fixed_size(world)),
        "MLflow": lambda: ScoringModel(predictor).predict(by_column(world)),
        "table of other types": score(lambda: other_types(world)),
        "Arrow stream": served("application/vnd.apache.arrow.stream", lambda: arrow_stream(typed_table(world))),
        "V2": lambda: by_tensors(is_binary=False),
        "V2 with binary data": lambda: by_tensors(is_binary=True),
        "file of lines": lambda: of_file(world, folder, write_lines(world)),
        "Parquet of text": lambda: of_file(
            world, folder, write_table(pa.Table.from_pylist(text_rows(world)), "text.parquet")
        ),
        "typed Parquet": lambda: of_file(world, folder, write_table(typed_table(world), "typed.parquet")),
    }
    with suppress(ImportError):
        import polars

        found["polars"] = score(lambda: polars.from_arrow(typed_table(world)))
        found["polars with arrays"] = score(lambda: polars.from_arrow(fixed_size(world)))
    return found


def check(world, folder):
    """Score every form; an error names a column, and none comes where nothing is in doubt."""
    expected = world.predictor.score(world.lines(list(world.log_format.columns)))
    names = [name for name, _ in world.log_format.fields]
    for form, score in forms(world, folder).items():
        try:
            found = score()
        except (ValueError, TypeError, RequestError) as error:
            assert any(f"column {name!r}" in str(error) for name in names), (form, str(error))
            assert world.has_extremes or any(f"column {name!r}" in str(error) for name in world.in_doubt), (
                form,
                str(error),
            )
        else:
            assert np.array_equal(found, expected), (form, np.flatnonzero(found != expected), world.log_format)
    if world.options.vocabulary == "counted" and world.options.min_count == 1:
        assert not world.in_doubt


def labelled_table(world, table=None):
    """Typed rows as a log: with the label, which may be a boolean, weights and keys."""
    label = world.log_format.label_column
    columns = {
        name: [row[name] for row in world.rows] for name in world.log_format.columns_of_kind("label", "weight", "id")
    }
    booleans = world.log_format.texts_of_booleans(label)
    if {*columns[label]} <= {*booleans}:
        columns[label] = [cell == booleans[0] for cell in columns[label]]
    table = typed_table(world) if table is None else table
    for name, cells in columns.items():
        table = table.append_column(name, pa.array(cells))
    return table


def check_labels(world, folder):
    """A file of typed labels and weights gives the metrics of the log itself."""
    pq.write_table(labelled_table(world), folder / "labels.parquet")
    found, expected = (
        predict(world.bundle, [str(path)], str(folder / f"{path.stem}.scores.csv"))
        for path in (folder / "labels.parquet", world.path)
    )
    assert expected.pop("trained_on") and "trained_on" not in found
    np.testing.assert_equal(found, expected)


def write_packed(world, folder):
    """The log as a compressed file."""
    path = folder / "log.csv.gz"
    path.write_bytes(gzip.compress(world.path.read_bytes()))
    return path


def write_parts(world, folder):
    """The log as a folder of two files."""
    has_header = world.log_format.header
    header, *lines = world.lines(world.names, header=True)
    (folder / "parts").mkdir()
    for number, part in enumerate([lines[:9], lines[9:]], start=9):  # part-9 is before part-10
        text = "".join(f"{line}\n" for line in [header] * has_header + part)
        (folder / "parts" / f"part-{number}.csv").write_text(text, newline="")
    return folder / "parts"


def check_prepared(world, folder):
    """The forms of a whole log are prepared to the same bytes of rows and vocabulary.

    Booleans of a column of texts are those texts by another folder's vocabulary alone.
    """
    has_booleans = any(isinstance(role, tuple) for role in world.roles.values())
    how = {"vocabulary_of": folder / "prepared"} if has_booleans else {}
    log_format = dataclasses.replace(world.log_format, point_zero=world.written_with_point)
    options = dataclasses.replace(world.options, data=log_format)
    table = labelled_table(world)
    tables = {"Arrow": table, "lists of a fixed size": labelled_table(world, fixed_size(world))}
    if not world.has_extremes:  # pandas has whole numbers beside missing ones as floats
        tables["pandas"] = pa.Table.from_pandas(table.to_pandas(), preserve_index=False)
    for name, each in tables.items():
        prepare_table(each, folder / f"prepared {name}", options, **how)
    files = {"lines": world.path, "packed": write_packed(world, folder), "parts": write_parts(world, folder)}
    for name, path in (files | {"Parquet": folder / "labels.parquet"}).items():
        prepare(path, folder / f"prepared {name}", options, **how)
    expected = data_of(folder / "prepared lines")
    for name in (*tables, "packed", "parts", "Parquet"):
        found = data_of(folder / f"prepared {name}")
        assert found == expected, (name, [file for file in expected if found.get(file) != expected[file]])


def data_of(folder):
    """Return the bytes of a prepared folder's rows and vocabulary, by file."""
    return {name: data for name, data in contents(folder).items() if name.endswith((".mindrecord", ".parquet"))}


@settings(max_examples=12)
@given(seed=st.integers(0, 10**9))
def test_the_forms_of_a_row_score_the_same_bits_or_name_the_column(
    seed, tmp_path_factory, make_bundle, make_state, tiny_config
):
    folder = tmp_path_factory.mktemp("forms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_bundle, "write_code", lambda folder: None)
        world = World(seed, folder, make_bundle, make_state, tiny_config())
    check(world, folder)
    if not world.in_doubt:
        check_labels(world, folder)
        check_prepared(world, folder)
