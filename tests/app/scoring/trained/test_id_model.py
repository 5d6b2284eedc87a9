"""ids.onnx and tower.mindir: other programs compute the bundle's scores from ids and numbers, or from rows."""

import shutil

import numpy as np
import onnxruntime
import pytest

from app.evaluation.calibration import Calibration
from app.scoring.bundle_model import OnnxTower, golden_rows
from app.scoring.predictor import Predictor
from app.scoring.trained.write_tower import ACTIVATIONS, write_id_model, write_tower
from data_prep.encoding.rows_to_score import table_to_chunk
from data_prep.prepared.schema import read_schema


@pytest.fixture(params=["tiny_bundle", "text_bundle", "typed_bundle"])
def exported(request, tmp_path):
    """Return a bundle with its model of ids, its encoded golden rows, and a function that runs the model."""
    folder = shutil.copytree(request.getfixturevalue(request.param), tmp_path / "bundle")
    predictor = Predictor.open(folder)
    for _ in range(2):  # A second export must not add to the first one's table.
        write_id_model(predictor)
    size = predictor.schema.vocabulary_size * (predictor.tables[0].spec.width + 1) * 4
    assert (folder / "ids.onnx.data").stat().st_size == size
    session = onnxruntime.InferenceSession(folder / "ids.onnx", providers=["CPUExecutionProvider"])

    def run(rows, ids):
        inputs = {"ids": ids, "numbers": rows.numeric, "vectors": rows.vectors}
        known = {value.name for value in session.get_inputs()}
        return session.run(["logits", "scores"], {name: value for name, value in inputs.items() if name in known})

    rows = predictor.score_chunk(table_to_chunk(golden_rows(predictor), predictor.log_format)).encoded
    return predictor, rows, run


def assert_same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_runtime_without_this_program_gives_the_same_scores(exported):
    predictor, rows, run = exported
    ids, expected = rows.ids.astype(np.int64), predictor.logits_of_encoded(rows)
    for part in (slice(0, 0), slice(3, 4), slice(None)):
        logits, scores = run(rows.take(part), ids[part])
        assert_same(logits, expected[part])
        assert_same(scores, 1 / (1 + np.exp(-expected[part].astype(np.float64))))
    with pytest.raises(Exception, match=r"Actual: \(tensor\(int32\)\) , expected: \(tensor\(int64\)\)"):
        run(rows, ids.astype(np.int32))


def test_missing_and_impossible_ids_are_values_of_their_field(exported):
    """Neither reads another row, and no id makes the whole batch fail."""
    predictor, rows, run = exported
    encoder, ids = predictor.encoder, rows.ids.astype(np.int64)
    columns = encoder.options.categorical_columns
    firsts = np.cumsum([0, *(column.max_length for column in columns)])
    for given in (-1, np.iinfo(np.int64).min, predictor.schema.vocabulary_size, np.iinfo(np.int64).max):
        for column, field, first in zip(columns, predictor.schema.categorical, firsts[:-1], strict=True):
            changed, meant = ids.copy(), rows.ids.copy()
            changed[:, first : first + column.max_length] = meant[:, first : first + column.max_length] = -1
            changed[:, first] = given
            meant[:, first] = field.oov_ids[0] if given > 0 else encoder.missing_id(column.is_text, column.place)
            expected = predictor.logits_of_encoded(
                rows.__class__(meant, rows.numeric, rows.labels, vectors=rows.vectors)
            )
            assert_same(run(rows, changed)[0], expected)


def test_fields_with_one_value_keep_it(tmp_path, make_bundle, make_state, tiny_config):
    from tests.app.scoring.test_served_values import options_of, prepare, write_log

    write_log(tmp_path / "log.csv", "integer")
    schema = prepare(tmp_path / "log.csv", tmp_path / "prepared", options_of("integer", position="2"))
    predictor = Predictor.open(make_bundle(tmp_path / "prepared", tiny_config(), make_state(schema, tiny_config())))
    write_id_model(predictor)
    session = onnxruntime.InferenceSession(predictor.folder / "ids.onnx")
    rows = predictor.score_chunk(table_to_chunk(golden_rows(predictor), predictor.log_format)).encoded
    places = [place for place, field in enumerate(schema.categorical) if field.name == "position_bucket"]
    sources = [place for place, field in enumerate(schema.numeric) if field.source == "position"]
    ids, numbers = rows.ids.astype(np.int64), rows.numeric.copy()
    ids[:, places], numbers[:, sources] = 0, 99
    (logits,) = session.run(["logits"], {"ids": ids, "numbers": numbers})
    assert_same(logits, predictor.logits_of_encoded(rows))


@pytest.mark.parametrize("activation", [*ACTIVATIONS, "silu"])
@pytest.mark.parametrize("dataset", ["tiny_dataset", "typed_dataset"])
def test_mindspore_computes_the_logits_of_the_onnx_tower(
    request, tmp_path, activation, dataset, make_state, tiny_config, cpu
):
    import mindspore as ms
    from mindspore import Tensor, nn

    from app.scoring.trained.write_mindir import write_mindir

    config = tiny_config("model.batch_norm=true")
    schema = read_schema(request.getfixturevalue(dataset))
    dense = make_state(schema, config).dense
    calibration = Calibration(0.9, -0.3, 100) if activation in ("relu", "silu") else None
    write_tower(tmp_path, dense, activation, calibration)
    write_mindir(tmp_path, dense, activation, calibration)
    loaded = nn.GraphCell(ms.load(str(tmp_path / "tower.mindir")))
    generator, num_deep = np.random.default_rng(1), len(dense["tower.matrix_0"])
    for count in (1, 7):
        widths = ((num_deep,), (), (schema.num_numeric,), (schema.vector_inputs,))
        inputs = [generator.standard_normal((count, *width)).astype(np.float32) for width in widths]
        beside = np.concatenate([inputs[0], *inputs[2:]], axis=1)
        found = loaded(Tensor(beside), Tensor(inputs[1])).asnumpy()
        # MindSpore's tanh and GELU on a CPU are approximations.
        np.testing.assert_allclose(found, OnnxTower(tmp_path / "tower.onnx", 1)(*inputs), rtol=3e-4, atol=3e-4)
