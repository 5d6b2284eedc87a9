"""Scores of raw rows: against the model's formula, in every form of rows, alone and beside others."""

import ast
import math
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import packages_distributions
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.scoring import bundle_model, bundle_tables
from app.scoring import predictor as predictor_module
from app.scoring.bundle_tables import lookup
from app.scoring.predictor import Predictor
from app.tables.initial import initial_rows
from data_prep.encoding.encoder import Chunk
from data_prep.encoding.prepared_vocabulary import open_encoder
from data_prep.encoding.rows_to_score import table_to_chunk, table_to_rows
from data_prep.prepared.schema import read_schema
from tests.programs import run_python

FOLLOWING = {"packaging", "google", "flatbuffers", "_yaml"}  # what the required packages bring
OPTIONAL = {"pandas", "dateutil", "cloudpickle", "_distutils_hack"}  # what pyarrow and Python load where it is there

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


def whole_table(saved, schema, config):
    width = 1 if saved.arrays["rows"].shape[1] == 1 else config.model.embedding_dim
    rows = np.zeros((schema.vocabulary_size, 1), np.float32)
    if width > 1:
        rows = initial_rows(config.train.seed, np.arange(schema.vocabulary_size), width, config.model.initial_row_scale)
    rows[saved.row_ids] = saved.arrays["rows"]
    return rows.astype(np.float64)


def formula(state, config, schema, ids, numeric):
    """The model in float64, written down from docs/internals/DESIGN.md: nothing folded."""
    dense = {name: array.astype(np.float64) for name, array in state.dense.items()}
    deep, wide = (whole_table(state.tables[name], schema, config) for name in ("deep", "wide"))
    hidden = deep[ids].reshape(len(ids), -1)
    logits = wide[ids][..., 0].sum(1) + dense["wide.bias"]
    sums = hidden @ dense["tower.matrix_0"] + dense["tower.bias_0"]
    if numeric.shape[1]:
        logits += numeric @ dense["wide.numeric_weight"][:, 0]
        for f in range(numeric.shape[1]):
            row = numeric[:, f, None] * dense["tower.numeric_rows"][f]
            sums += row @ dense["tower.numeric_matrix"][f]
    for i in range(len(config.model.hidden_widths)):
        if i:
            sums = hidden @ dense[f"tower.matrix_{i}"] + dense[f"tower.bias_{i}"]
        if config.model.batch_norm:
            sums = (sums - dense[f"tower.running_mean_{i}"]) / np.sqrt(dense[f"tower.running_variance_{i}"] + 1e-5)
            sums = sums * dense[f"tower.norm_scale_{i}"] + dense[f"tower.norm_shift_{i}"]
        hidden = ACTIVATIONS[config.model.activation](sums)
    return logits + (hidden @ dense[f"tower.matrix_{len(config.model.hidden_widths)}"])[:, 0]


def encoded(prepared, lines):
    return open_encoder(prepared).encode(Chunk(0, len(lines), b"".join(lines)))[1]


@pytest.fixture(scope="module")
def lines(tiny_log):
    return tiny_log.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_scores_are_those_of_the_model_s_formula(
    make_bundle, make_state, tiny_dataset, tiny_schema, tiny_config, lines, activation, batch_norm
):
    config = tiny_config(f"model.activation={activation}", f"model.batch_norm={str(batch_norm).lower()}")
    state = make_state(tiny_schema, config)
    found = Predictor.open(make_bundle(tiny_dataset, config, state)).logits(lines[:200])
    rows = encoded(tiny_dataset, lines[:200])
    expected = formula(state, config, tiny_schema, rows.ids, rows.numeric.astype(np.float64))
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("rows", "most"), [("float16", 5e-3), ("int8", 5e-2)])
def test_short_rows_score_about_the_same(
    make_bundle, tiny_dataset, tiny_config, tiny_state, predictor, lines, rows, most
):
    folder = make_bundle(tiny_dataset, tiny_config(), tiny_state, rows)
    difference = np.abs(Predictor.open(folder).logits(lines[:300]) - predictor.logits(lines[:300])).max()
    assert 0 < difference < most
    small, large = (
        path.stat().st_size for path in (folder / "tables.safetensors", predictor.folder / "tables.safetensors")
    )
    assert small < large


def test_values_out_of_the_vocabulary_have_the_ids_of_training(
    predictor, tiny_dataset, tiny_schema, tiny_config, tiny_state
):
    line = b"\t".join([b"1", *[b"7"] * 13, *[b"deadbeef"] * 25, b""]) + b"\n"
    rows = encoded(tiny_dataset, [line])
    assert [field.oov_ids[0] for field in tiny_schema.categorical[:25]] == rows.ids[0, :25].tolist()
    expected = formula(tiny_state, tiny_config(), tiny_schema, rows.ids, rows.numeric.astype(np.float64))
    np.testing.assert_allclose(predictor.logits([line]), expected, rtol=0, atol=1e-5)


def as_mappings(predictor, lines, sep):
    names = list(predictor.log_format.columns)
    kinds = predictor.log_format.columns
    rows = []
    for line in lines:
        cells = dict(zip(names, line.decode().rstrip("\r\n").split(sep), strict=True))
        rows.append(
            {
                name: None if cell == "" else int(cell) if kinds[name] == "integer" else cell
                for name, cell in cells.items()
                if kinds[name] in ("integer", "hex32", "string")
            }
        )
    return rows


def test_tables_of_other_libraries_score_the_same_bits(predictor, lines):
    """Forms of rows that test_forms_of_rows.py does not have."""
    expected = predictor.score(lines[:100])
    assert len(np.unique(expected)) > 50 and expected.dtype == np.float32
    table = pa.Table.from_pylist(as_mappings(predictor, lines[:100], "\t"))
    assert np.array_equal(predictor.score(SimpleNamespace(to_arrow=lambda: table)), expected)  # as polars has it
    assert np.array_equal(predictor.score(table.to_batches()[0]), expected)
    sampled = pa.Table.from_pandas(table.to_pandas().iloc[order := np.random.default_rng(1).permutation(100)])
    assert "__index_level_0__" in sampled.schema.names
    assert np.array_equal(predictor.score(sampled), expected[order])


def test_rows_of_an_unknown_form_are_refused(predictor):
    with pytest.raises(TypeError, match="lines of text, mappings or a table; found ndarray"):
        predictor.score(np.zeros((3, 40), object))


def test_a_quoted_cell_and_a_plain_one_are_the_same(text_bundle, make_avazu):
    predictor = Predictor.open(text_bundle)
    line = make_avazu(3, seed=2).splitlines()[1]
    quoted = ",".join(f'"{cell}"' for cell in line.split(","))
    assert predictor.score([line]) == predictor.score([quoted])
    cells = quoted.split(",")
    assert predictor.score([",".join(cells[:1] + cells[2:])]) == predictor.score([line])  # without the label


def test_a_score_does_not_depend_on_the_rows_beside_it(predictor, lines):
    expected = predictor.logits(lines[:1500])
    order = np.random.default_rng(1).permutation(1500)
    assert np.array_equal(predictor.logits([lines[i] for i in order]), expected[order])
    for size in (1, 2, 7, 8, 9, 95, 97, 255, 257, 1025):
        assert np.array_equal(predictor.logits(lines[:size]), expected[:size]), size


def test_where_runs_of_few_and_many_rows_differ_one_size_is_used(predictor, lines, monkeypatch):
    expected = predictor.logits(lines[:300])
    monkeypatch.setattr(predictor._tower, "_sizes", (256,))
    sizes = []
    run = predictor._tower._run
    monkeypatch.setattr(predictor._tower, "_run", lambda inputs: sizes.append(len(inputs[1])) or run(inputs))
    assert np.array_equal(predictor.logits(lines[:300]), expected)
    assert set(sizes) == {256}


def test_threads_score_the_same_bits(tiny_bundle, lines):
    predictor = Predictor.open(tiny_bundle, num_threads=2)
    expected = Predictor.open(tiny_bundle).logits(lines)
    parts = [lines[start : start + 300] for start in range(0, len(lines), 300)]
    with ThreadPoolExecutor(4) as threads:
        assert np.array_equal(np.concatenate(list(threads.map(predictor.logits, parts))), expected)


def change(row, **values):
    return {**row, **values}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda row: {k: v for k, v in row.items() if k != "C3"}, "missing C3"),
        (lambda row: change({k: v for k, v in row.items() if k != "C3"}, c3="0"), "missing C3; others there: c3"),
        (lambda row: change(row, I1="many"), "row 1 cannot be scored: integer: .*'I1' of kind integer, found 'many'"),
        (lambda row: change(row, I1=1.5), "row 1 .*column 'I1' of kind integer, found '1.5'"),
        (lambda row: change(row, C1=2**40), "32 bits"),
        (lambda row: change(row, C1=[1]), "expected text"),
        (lambda row: change(row, C1="a\tb"), "separator"),
        (lambda row: change(row, C1="xyz"), "row 1 cannot be scored: categorical: .*'C1' of kind hex32, found 'xyz'"),
        (lambda row: change(row, C1=True), "row 1, column 'C1' of kind hex32: found True; nothing says which texts"),
    ],
)
def test_a_mapping_that_is_no_row_is_refused(predictor, lines, damage, message):
    row = as_mappings(predictor, lines[:1], "\t")[0]
    with pytest.raises((ValueError, TypeError), match=message):
        predictor.score([row, damage(row)])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["1\t2"], "row 0 cannot be scored: columns"),
        (["a\nb"], "line end"),
        ("1\t2", "for one row give"),
        (pa.table({"C1": ["0"]}), "the table has not the columns of the model: missing I1, .*, …; others there: none"),
        (pa.table({"other": [1]}), "missing I1, .*; others there: other"),
        (pd.Series({"C1": "0123abcd"}), "found a Series: for one row give"),
    ],
)
def test_what_is_no_row_is_refused(predictor, rows, message):
    with pytest.raises((ValueError, TypeError), match=message):
        predictor.score(rows)


def test_a_column_of_another_type_is_refused(predictor, lines):
    table = pa.Table.from_pylist(as_mappings(predictor, lines[:2], "\t"))
    bad = table.set_column(0, "I1", pa.array([[1], [2]]))
    with pytest.raises(ValueError, match="'I1' is of type list"):
        predictor.score(bad)


@pytest.mark.parametrize(
    ("name", "cells", "message"),
    [
        ("C2", ["0123abcd", "0123 bcd"], "row 1 cannot be scored: categorical: .*'C2' of kind hex32, found '0123 bcd'"),
        ("I2", ["1", "1.5"], "row 1 .*column 'I2' of kind integer, found '1.5'"),
        ("C2", ["0123abcd", "a\tb"], "row 1, column 'C2' of kind hex32: 'a.*b' has a line end or the separator"),
        ("C2", ["0123abcd", "a\nb"], "row 1, column 'C2'"),
        ("C26", ["0123abcd", "a\r"], "row 1, column 'C26'"),
        ("I2", [1, "1"], "several types: row 1, column 'I2': '1' beside 1"),
        ("C2", [True, False], "column 'C2' of kind hex32 holds booleans"),
    ],
)
def test_a_bad_cell_of_a_frame_is_named(predictor, lines, name, cells, message):
    frame = pd.DataFrame(as_mappings(predictor, lines[:2], "\t"))
    frame[name] = pd.Series(cells, dtype=object)
    with pytest.raises((ValueError, TypeError), match=message):
        predictor.score(frame)


def test_nothing_scores_as_nothing(predictor):
    assert predictor.score([]).shape == (0,)


@pytest.mark.parametrize("name", ["tiny_bundle", "text_bundle"])
def test_an_explanation_has_each_field_s_wide_weight_and_change(request, lines, make_avazu, name):
    predictor = Predictor.open(request.getfixturevalue(name))
    if name == "text_bundle":
        lines = [make_avazu(3, seed=2).splitlines()[1].encode()]
    (row,) = as_mappings(predictor, lines[:1], predictor.log_format.separator)
    effects = predictor.explain(lines[0])
    assert [e.field for e in effects] != list(row)
    assert sorted(e.field for e in effects) == sorted(row)
    (logit,) = predictor.logits([row])
    for effect in effects[:3]:
        (blanked,) = predictor.logits([change(row, **{effect.field: None})])
        assert effect.change == logit - blanked != 0
    state_wide, _ = lookup(predictor.tables, predictor.encoder.encode(predictor.chunk_of(lines[:1]))[1].ids)[::-1]
    fields = zip(predictor.schema.categorical, state_wide[0], strict=True)
    expected = {field.name: wide for field, wide in fields if not field.cross}
    assert {e.field: np.float32(e.wide) for e in effects if e.in_vocabulary is not None} == expected


def test_an_explanation_has_the_wide_weight_of_numbers(predictor, tiny_state, lines):
    encoded = predictor.encoder.encode(predictor.chunk_of(lines[:1]))[1]
    parts = encoded.numeric[0] * tiny_state.dense["wide.numeric_weight"][:, 0]
    effects = {effect.field: effect.wide for effect in predictor.explain(lines[0])}
    for name in predictor.log_format.numeric_fields:
        own = sum(part for field, part in zip(predictor.schema.numeric, parts, strict=True) if field.source == name)
        assert effects[name] == pytest.approx(own, abs=1e-6)
    assert any(effects[name] for name in predictor.log_format.numeric_fields)


@pytest.mark.parametrize("moment", ["read_entries", "check_files", "read_schema"])
def test_a_bundle_that_is_exported_anew_while_it_is_opened_is_one_of_the_two(
    tiny_bundle, tiny_dataset, tiny_config, make_bundle, make_state, lines, copied, monkeypatch, moment
):
    """Same shapes and sizes, other weights: exchanged before a file is checked, or after one was checked or opened."""
    config = tiny_config()
    state = make_state(read_schema(tiny_dataset), config)
    state.dense["wide.bias"] += 1
    state.tables["deep"].arrays["rows"] += 1
    anew = make_bundle(tiny_dataset, config, state)
    owner = {"read_entries": bundle_tables, "check_files": predictor_module, "read_schema": bundle_model}[moment]
    plain, is_late = getattr(owner, moment), moment == "read_entries"

    def exchange(*arguments, **named):
        found = plain(*arguments, **named) if is_late else None
        if anew.exists():
            shutil.rmtree(copied)
            anew.rename(copied)
        return found if is_late else plain(*arguments, **named)

    monkeypatch.setattr(owner, moment, exchange)
    opened = Predictor.open(copied)
    assert opened.manifest.id == Predictor.open(copied).manifest.id != Predictor.open(tiny_bundle).manifest.id
    np.testing.assert_array_equal(opened.score(lines), Predictor.open(copied).score(lines))


def test_rows_that_no_step_touched_follow_a_whole_table_adam(make_bundle, make_state, tiny_dataset, tiny_config, lines):
    """There the loss pulls every row at every step, so each id has a row in the bundle."""
    from app.config.optimizer_settings import AdamOptions
    from app.tables.optimizers import StepHistory

    schema = read_schema(tiny_dataset)
    config = replace(tiny_config(), deep_optimizer=AdamOptions(learning_rate=0.01))
    history = StepHistory.of_steps(config.deep_optimizer, 0.1, lambda _: 0.01, 5)
    state = make_state(schema, config, touched=0.0)
    empty = np.zeros((0, config.model.embedding_dim), np.float32)
    moments = dict.fromkeys(("first_moment", "second_moment"), empty)
    state.tables["deep"].arrays.update(moments, last_step=np.zeros((0, 1), np.int32))
    predictor = Predictor.open(make_bundle(tiny_dataset, config, state, history=history))
    ids = np.arange(schema.num_numeric, schema.num_numeric + 40).reshape(2, 20)
    rows = initial_rows(config.train.seed, ids.reshape(-1), config.model.embedding_dim, config.model.initial_row_scale)
    before = rows.copy()
    history.catch_up((rows, np.zeros_like(rows), np.zeros_like(rows), np.zeros((40, 1), np.int32)))
    assert np.abs(rows - before).max() > 1e-3
    assert np.array_equal(lookup(predictor.tables, ids)[0].reshape(40, -1), rows)


def test_a_bundle_s_own_code_and_packages_are_all_that_scoring_needs(tiny_bundle, predictor, lines, tmp_path):
    """Neither MindSpore nor MPI, nor this project, is found there."""
    (tmp_path / "lines.txt").write_bytes(b"".join(lines[:50]))
    words = [str(tiny_bundle), str(tmp_path / "lines.txt"), str(tmp_path / "scores.parquet"), "--workers", "1"]
    program = (
        "import sys\n"
        "from wide_deep_bundle.app.cli import bundle, predict as command\n"
        f"assert command.main(command.add_arguments, '', {words}) == 0\n"
        f"assert bundle.main(bundle.add_arguments, '', ['verify', {words[0]!r}]) == 0\n"
        "assert not {'app', 'data_prep', 'common'} & sys.modules.keys()\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}), command.__file__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tiny_bundle / "code"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_python("-P", "-c", program, cwd=tmp_path, env=environment)
    loaded, _, place = done.stdout.splitlines()[-1].rpartition(" ")
    assert place == str(tiny_bundle / "code" / "wide_deep_bundle" / "app" / "cli" / "predict.py")
    required = (line.rstrip("0123456789.,<=>") for line in (tiny_bundle / "requirements.txt").read_text().splitlines())
    allowed = set(required)
    known = {name for name, owners in packages_distributions().items() if owners}
    assert set(ast.literal_eval(loaded)) & known - allowed <= FOLLOWING | OPTIONAL
    scores = pq.read_table(tmp_path / "scores.parquet")["score"].to_numpy()
    assert np.array_equal(scores, predictor.score(lines[:50]))


@pytest.mark.parametrize("first", ["import app, common", "import wide_deep_bundle.app.scoring.predictor"])
@pytest.mark.parametrize("place", ["insert(0, code)", "append(code)"])
def test_a_bundle_hides_no_module_of_its_user(tiny_bundle, predictor, lines, tmp_path, first, place):
    """Neither of one that is imported before it nor after, wherever its code is on the path."""
    (tmp_path / "app.py").write_text("OWN = True\n")
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").write_text("OWN = True\n")
    (tmp_path / "line.txt").write_bytes(lines[0])
    (tmp_path / "script.py").write_text(
        f"import sys\ncode = {str(tiny_bundle / 'code')!r}\nsys.path.{place}\n{first}\n"
        "from wide_deep_bundle.app.scoring.predictor import Predictor\n"
        f"score = Predictor.open({str(tiny_bundle)!r}).score(open('line.txt').readlines())\n"
        "import app, common\nprint(app.OWN, common.OWN, float(score[0]).hex())\n"
    )
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONPATH", None)
    done = run_python("script.py", cwd=tmp_path, env=environment, status=None)
    assert done.stdout == f"True True {float(predictor.score(lines[:1])[0]).hex()}\n", done.stderr


@pytest.mark.parametrize(
    "convert",
    [
        lambda rows: pd.DataFrame(rows),  # dataframe_split and dataframe_records
        lambda rows: {name: np.array([row[name] for row in rows]) for name in rows[0]},  # inputs by column
        lambda rows: {name: np.array([np.array(row[name]) for row in rows], object) for name in rows[0]},  # instances
        lambda rows: [{name: np.array(cell) for name, cell in row.items()} for row in rows],  # inputs of rows
    ],
)
def test_mlflow_s_inputs_score_as_its_tables(tiny_bundle, predictor, lines, convert):
    model = predictor_module._load_pyfunc(str(tiny_bundle))
    assert model.predict(convert(as_mappings(predictor, lines[:20], "\t"))) == predictor.score(lines[:20]).tolist()


@pytest.mark.parametrize(
    ("model_input", "message"),
    [
        (np.zeros((2, 39)), "dataframe_records"),
        ("a,b", "dataframe_records"),
        ({"C1": ["68fd1e64"]}, "missing I1"),
        ({"C1": ["68fd1e64"], "C2": []}, "same length"),
        ([5.0], "expected rows as lines"),
    ],
)
def test_mlflow_names_what_it_cannot_score(tiny_bundle, model_input, message, monkeypatch):
    """MLflow answers its own error with 400 and the message, and any other error with a stack trace."""
    error = type("MlflowException", (Exception,), {"invalid_parameter_value": classmethod(lambda cls, text: cls(text))})
    model = predictor_module._load_pyfunc(str(tiny_bundle))
    with pytest.raises((ValueError, TypeError), match=message):
        model.predict(model_input)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", SimpleNamespace(MlflowException=error))
    with pytest.raises(error, match=message):
        model.predict(model_input)


LARGE = {pa.string(): pa.large_string(), pa.int64(): pa.float64()}


def replaced(table, name, cells):
    return table.set_column(table.schema.names.index(name), name, cells)


@pytest.fixture(scope="module")
def made_rows(predictor):
    return pq.read_table(predictor.folder / "golden.parquet").drop_columns(["logit", "score", "tolerance"])


@pytest.mark.parametrize(
    "changed",
    [
        lambda table: table,
        lambda table: table.slice(7, 40),
        lambda table: pa.concat_tables([table.slice(50), table.slice(3, 9)]),
        lambda table: table.select(table.schema.names[::-1]),
        lambda table: table.cast(pa.schema([(f.name, LARGE.get(f.type, f.type)) for f in table.schema])),
        lambda table: replaced(table, "C1", pa.array([b"", b"0" * 8, b"ffffffff", None] * 25, pa.binary())),
        lambda table: replaced(table, "I1", pa.array([-(2**63), 2**63 - 1, 0, None] * 25, pa.int64())),
        lambda table: replaced(table, "I1", pa.array([-0.0, np.nan, 2.0**62, None] * 25, pa.float64())),
        lambda table: replaced(table, "I1", pa.array([-128, 127, 0, None] * 25, pa.int8())),
    ],
)
def test_a_table_becomes_the_rows_that_its_lines_do(predictor, made_rows, changed):
    table = changed(made_rows.slice(0, 100))
    rows, chunk = table_to_rows(table, predictor.log_format), table_to_chunk(table, predictor.log_format)
    _, expected = predictor.encoder.encode(chunk)
    found = predictor.encoder.encode_rows(rows.rows)
    assert rows.num_lines == len(table)
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.numeric.tolist() == expected.numeric.tolist()
    assert predictor.score_chunk(rows).logits.tolist() == predictor.score_chunk(chunk).logits.tolist()


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("I1", pa.array([1.5] * 100)),
        ("I1", pa.array([2.0**63] * 100)),
        ("I1", pa.array([np.inf] * 100)),
        ("I1", pa.array([2**64 - 1] * 100, pa.uint64())),
        ("I1", pa.array(["1"] * 100)),
        ("C1", pa.array(["68FD1E64"] * 100)),
        ("C1", pa.array(["68fd1e6", "468fd1e64"] * 50)),
        ("C1", pa.array(["68fd1e64\n"] * 100)),
        ("C1", pa.array([1] * 100)),
        ("C1", pa.array(["68fd1e64"] * 100).dictionary_encode()),
    ],
)
def test_what_only_the_parser_decides_stays_a_table(predictor, made_rows, name, cells):
    assert table_to_rows(replaced(made_rows.slice(0, 100), name, cells), predictor.log_format) is None
