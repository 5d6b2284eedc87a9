"""New runs that begin with a trained model: the same rows under new ids, and models of the model zoo."""

import dataclasses
import itertools
import logging
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.checkpoint.manifest import read_manifest, write_manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.write import write_checkpoint
from app.config.device import GRAPH
from app.distributed.process_group import ProcessGroup
from app.run.claim import open_run
from app.tables.initial import initial_rows
from app.tables.interface import DEEP, WIDE
from app.training.warm_start.source import NONE, _values, check_source, open_source, row_origins
from data_prep.options.options_file import read_options
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import VOCABULARY_FILE, VectorField, read_schema
from tests.app.model.tensors import take_step, variable
from tests.checkpoints import run_manifest
from tests.damage import flip_bit

REFERENCE = "tables.backend=reference"


@pytest.fixture(scope="module")
def other_dataset(tmp_path_factory, tiny_log, project):
    """The same log with fewer values."""
    folder = tmp_path_factory.mktemp("other") / "prepared"
    prepare(
        tiny_log, folder, read_options(project / "configs" / "tiny.yaml", ["prepare.workers=1", "prepare.min_count=8"])
    )
    return folder


@pytest.fixture(scope="module")
def train(tmp_path_factory, make_parts, random_batch, tiny_config, tiny_schema, tiny_dataset):
    """Makes a checkpoint after three steps, and returns it with its state."""

    def train(*words):
        parts, rng = make_parts("reference", tiny_schema, *words), np.random.default_rng(1)
        for _ in range(3):
            take_step(parts, random_batch(tiny_schema, 400, rng))
        manifest = run_manifest(3, tiny_config(REFERENCE, *words), tiny_schema, tiny_dataset)
        return write_checkpoint(tmp_path_factory.mktemp("trained"), parts.state(), manifest), parts.state()

    return train


@pytest.fixture(scope="module")
def trained(train):
    return train()


@pytest.fixture
def start(make_parts, tiny_config):
    def start_warm(schema, dataset, path, *words):
        from app.training.warm_start.take_over import warm_start

        words = (f"train.init_from={path}", *words)
        parts = make_parts("reference", schema, *words)
        warm_start(parts, tiny_config("tables.backend=reference", *words), schema, dataset, ProcessGroup())
        return parts

    return start_warm


def test_with_the_optimizers_memory_the_next_step_is_the_one_that_would_have_come(
    start, make_parts, tiny_config, tiny_schema, tiny_dataset, random_batch, tmp_path
):
    """Moments that are taken are not young: a correction of their bias from step 1 would shrink the first steps to a
    third. It goes on through a second warm start, and through a resume."""
    words = ("loss.l2_coef=1e-3",)
    rng = np.random.default_rng(1)
    parts, batches = make_parts("reference", tiny_schema, *words), [random_batch(tiny_schema, 50, rng) for _ in "1234"]
    config = tiny_config(REFERENCE, *words)

    def save(parts, step, name):
        manifest = run_manifest(step, config, tiny_schema, tiny_dataset, schedules=parts.learning_rates.state())
        return write_checkpoint(tmp_path / name, parts.state(), manifest)

    for batch in batches[:2]:
        take_step(parts, batch)
    warm = start(tiny_schema, tiny_dataset, save(parts, 2, "first"), "train.init_optimizer=true", *words)
    take_step(warm, batches[2])
    again = start(tiny_schema, tiny_dataset, save(warm, 1, "second"), "train.init_optimizer=true", *words)
    resumed = make_parts("reference", tiny_schema, *words)
    resumed.restore(Checkpoint.open(save(again, 0, "third")))
    for each in (again, resumed):
        take_step(each, batches[3])
    for batch in batches[2:]:
        take_step(parts, batch)
    ids = np.concatenate([batch.ids for batch in batches])
    lookups = [each.step.tables.lookup(each.step.tables.unique(ids)) for each in (parts, again, resumed)]
    for table in (WIDE, DEEP):
        warm_rows, resumed_rows, expected = (getattr(each, table) for each in (lookups[1], lookups[2], lookups[0]))
        np.testing.assert_array_equal(warm_rows, resumed_rows)
        np.testing.assert_allclose(warm_rows, expected, rtol=1e-5, atol=1e-7, err_msg=table)
    for name, array in parts.state().dense.items():
        np.testing.assert_allclose(again.state().dense[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("take", ["tables", "tower"])
def test_one_of_the_two(start, trained, make_parts, tiny_schema, tiny_dataset, take):
    path, state = trained
    parts = start(tiny_schema, tiny_dataset, path, f"train.init_take={take}")
    fresh, found = make_parts("reference", tiny_schema).state(), parts.state()
    np.testing.assert_array_equal(
        found.dense["tower.matrix_0"], (state if take == "tower" else fresh).dense["tower.matrix_0"]
    )
    assert found.tables[DEEP].row_ids.size == (state.tables[DEEP].row_ids.size if take == "tables" else 0)
    assert not any(array.any() for name, array in found.dense.items() if "first_moment" in name)


def test_the_statistics_of_batch_normalization_are_taken(
    make_parts, start, tiny_config, tiny_schema, tiny_dataset, random_batch, tmp_path
):
    words = ("model.batch_norm=true",)
    parts = make_parts("reference", tiny_schema, *words)
    take_step(parts, random_batch(tiny_schema, 400, np.random.default_rng(1)))
    manifest = run_manifest(1, tiny_config(REFERENCE, *words), tiny_schema, tiny_dataset)
    path = write_checkpoint(tmp_path, parts.state(), manifest)
    found = start(tiny_schema, tiny_dataset, path, *words)
    for name, parameter in parts.model.named_statistics().items():
        np.testing.assert_array_equal(found.model.named_statistics()[name].asnumpy(), parameter.asnumpy())


def test_another_vocabulary(start, trained, tiny_dataset, tiny_schema, other_dataset, caplog):
    path, state = trained
    other = read_schema(other_dataset)
    with caplog.at_level(logging.INFO):
        found = start(other, other_dataset, path, "train.init_take=tables").state().tables[DEEP]
    origins, saved = row_origins(tiny_dataset, tiny_schema, other_dataset, other), state.tables[DEEP]
    rows = dict(zip(saved.row_ids.tolist(), saved.arrays["rows"], strict=True))
    looked_up = range(other.num_numeric, other.vocabulary_size)
    expected = {row: int(origins[row]) for row in looked_up if origins[row] != NONE}
    assert found.row_ids.tolist() == list(expected)
    for row, values in zip(found.row_ids.tolist(), found.arrays["rows"], strict=True):
        initial = initial_rows(1, np.array([expected[row]]), 8, 0.01)[0]  # of rows that no step had touched
        np.testing.assert_array_equal(values, rows.get(expected[row], initial))
    assert not found.arrays["first_moment"].any()
    gone = len(rows.keys() - expected.values())
    fresh = other.vocabulary_size - len(expected)
    assert 0 < gone < len(rows)
    assert expected.values() - rows.keys()
    assert (
        f"deep table: {len(expected):,} rows taken, {fresh:,} of {other.vocabulary_size:,} "
        f"newly initialized, {gone:,} dropped" in caplog.text
    )


def test_fields_that_one_of_the_two_lacks_are_named(start, trained, tiny_log, project, tmp_path, caplog):
    options = read_options(project / "configs" / "tiny.yaml", ["prepare.workers=1", "prepare.numeric_transform=max"])
    columns = {**options.data.columns, "I1": "ignored", "I13": "string", "C3": "ignored"}
    prepare(
        tiny_log,
        tmp_path / "prepared",
        dataclasses.replace(options, data=dataclasses.replace(options.data, columns=columns)),
    )
    schema = read_schema(tmp_path / "prepared")
    with caplog.at_level(logging.INFO):
        start(schema, tmp_path / "prepared", trained[0], "train.init_take=tower")
    assert "it has nothing for these fields, which begin anew: I13\n" in caplog.text
    assert "what it learned of these fields is left out: I1, I13, I1_missing, I13_missing, C3\n" in caplog.text
    scaled = ", ".join(f"I{number}" for number in range(2, 13))
    assert f"saw fields scaled otherwise than they are here: {scaled}\n" in caplog.text


def with_vectors(schema, **widths):
    vectors = (VectorField(name, width, "none", (0.0,) * width, (1.0,) * width) for name, width in widths.items())
    return dataclasses.replace(schema, vectors=tuple(vectors))


def test_a_vector_of_another_width_is_refused(
    start, make_parts, tiny_config, tiny_schema, tiny_dataset, tmp_path, caplog
):
    """Before anything is made. A vector that is gone is named."""
    old, wider = with_vectors(tiny_schema, a=2), with_vectors(tiny_schema, a=5)
    state, manifest = make_parts("reference", old).state(), run_manifest(1, tiny_config(REFERENCE), old, tiny_dataset)
    path = write_checkpoint(tmp_path, state, manifest)
    words = f"train.init_from={path}"
    with pytest.raises(ValueError, match="has the vector a with width 2, the data have it with width 5; give the col"):
        check_source(tiny_config(words), wider)
    check_source(tiny_config(words, "train.init_take=tables"), wider)
    with caplog.at_level(logging.INFO):
        assert "vector_matrix" not in str(start(tiny_schema, tiny_dataset, path).state().dense.keys())
    assert "what it learned of these fields is left out: a\n" in caplog.text


def test_a_source_with_a_damaged_file_is_refused(trained, tiny_config, tiny_schema, tiny_dataset, tmp_path):
    damaged = shutil.copytree(trained[0], tmp_path / trained[0].name)
    flip_bit(next(damaged.glob("deep-*.safetensors")))
    with pytest.raises(ValueError, match=r"deep-0-of-1\.safetensors is damaged: checksum"):
        open_source(tiny_config(f"train.init_from={damaged}"), tiny_schema, tiny_dataset)


def test_the_memory_of_another_dense_optimizer_is_refused(start, trained, tiny_schema, tiny_dataset):
    words = ("train.init_take=tower", "train.init_optimizer=true", "tower_optimizer.name=adagrad")
    with pytest.raises(ValueError, match=r"of another model: it lacks .*accumulator\.tower\.matrix_0"):
        start(tiny_schema, tiny_dataset, trained[0], *words)


def test_a_field_s_values_are_found_among_row_groups_by_the_field_s_name(tmp_path, tiny_schema):
    """Values that sort before the field's name do not hide their group."""
    table = pa.table({"field": ["b", "b", "c", "c", "d"], "value": ["a", "", "a", "aa", "z"], "id": range(5)})
    pq.write_table(table, tmp_path / VOCABULARY_FILE, row_group_size=2)
    assert _values(tmp_path, tiny_schema, "c").to_pydict() == {"value": ["a", "aa"], "id": [2, 3]}
    assert _values(tmp_path, tiny_schema, "none").num_rows == 0


def test_a_folder_that_moved(start, trained, other_dataset, tiny_dataset, tmp_path, tiny_config, tiny_schema):
    path, _ = trained
    moved, old_path = shutil.copytree(path, tmp_path / path.name), tmp_path / "nowhere"
    write_manifest(moved, dataclasses.replace(read_manifest(moved), dataset=str(old_path)))
    other = read_schema(other_dataset)
    check_source(tiny_config(f"train.init_from={moved}"), tiny_schema)  # the same ids: no need for the folder
    check_source(tiny_config(f"train.init_from={moved}", "train.init_take=tower"), other)  # which has no ids
    with pytest.raises(FileNotFoundError, match=r"if it was moved, link it: ln -s NEW_PLACE .*/nowhere"):
        check_source(tiny_config(f"train.init_from={moved}"), other)
    with pytest.raises(FileNotFoundError, match=r"if it was moved, link it: ln -s NEW_PLACE .*/nowhere"):
        start(other, other_dataset, moved)
    old_path.symlink_to(other_dataset)
    with pytest.raises(ValueError, match=r"has vocabulary .* the checkpoint was trained with"):
        start(other, other_dataset, moved)
    old_path.unlink()
    old_path.symlink_to(tiny_dataset)
    assert start(other, other_dataset, moved).state().tables[DEEP].row_ids.size


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model.embedding_dim=4",), r"has model.embedding_dim=8, expected 4"),
        (("model.hidden_widths=[32]",), r"has model.hidden_widths=\[32, 16\], expected \[32\]; .*init_take=tables"),
        (("model.activation=gelu",), r"has model.activation=relu, expected gelu; .*init_take=tables"),
        (("model.batch_norm=true",), r"has model.batch_norm=False, expected True; .*init_take=tables"),
        (("train.init_from=/nowhere",), r"expected a checkpoint .* or a .ckpt or .safetensors file; there is no such"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(
    trained, tiny_config, tiny_schema, tmp_path, words, message
):
    config = tiny_config(f"train.init_from={trained[0]}", *words)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_run(tmp_path / "device_0", config, tiny_schema, find_source=lambda: check_source(config, tiny_schema))
    assert not (tmp_path / "device_0" / "run.json").exists()
    config = tiny_config(f"train.init_from={trained[0]}", "model.hidden_widths=[32]", "train.init_take=tables")
    check_source(config, tiny_schema)


@pytest.fixture
def as_graph(monkeypatch):
    """Make models run as MindSpore's graph, in which the wide head's optimizer can be called alone."""
    monkeypatch.setenv(GRAPH, "1")


def take_head_step(parts, step, scale):
    """Take one step of the wide head's optimizer alone, on random gradients of this size or (0) on zeros."""
    rng = np.random.default_rng(step)
    parts.step.settings.set_learning_rates(step)
    shapes = [parameter.shape for parameter in parts.optimizers.wide.weights]
    parts.optimizers.wide(variable(scale * rng.standard_normal(shape).astype(np.float32) for shape in shapes))


def dense_weights(parts):
    return {name: parameter.asnumpy().copy() for name, parameter in parts.model.named_parameters().items()}


FTRL_WORDS = "wide_optimizer={{name: ftrl, l1: 0.01, l2: 0.5, learning_rate: {}, schedule: {}}}"
FLAT = FTRL_WORDS.format(0.05, "{name: constant}")
WARMING = FTRL_WORDS.format(0.5, "{name: constant, warmup_steps: 100}")
FALLING = FTRL_WORDS.format(0.5, "{name: cosine, decay_steps: 4, final_factor: 0.1}")


@pytest.fixture(scope="module")
def falling(train):
    """A checkpoint after three steps with a learning rate that falls, and its state."""
    return train(FALLING)


@pytest.mark.parametrize(
    ("here", "init_optimizer"), [(FLAT, "true"), (WARMING, "false")], ids=["flat-true", "warming-false"]
)
def test_the_wide_head_stays_without_a_gradient(
    as_graph, start, falling, make_parts, tiny_schema, tiny_dataset, tiny_config, tmp_path, here, init_optimizer
):
    """Whatever the learning rates of both runs; a run that is stopped before its first step goes on to the same
    bits."""
    words = (here, f"train.init_optimizer={init_optimizer}", "train.init_take=tower")
    path, state = falling
    parts = start(tiny_schema, tiny_dataset, path, *words)
    manifest = run_manifest(0, tiny_config(REFERENCE, *words), tiny_schema, tiny_dataset)
    resumed = make_parts("reference", tiny_schema, *words)
    resumed.restore(Checkpoint.open(write_checkpoint(tmp_path, parts.state(), manifest)))
    head = [name for name in parts.model.named_parameters() if name.startswith("wide.")]
    assert np.abs(state.dense["wide.numeric_weight"]).max() > 1e-4
    for step in (1, 2, 3, 4):
        take_head_step(parts, step, 0.0)
        for name in head:
            found, expected = dense_weights(parts)[name], state.dense[name]
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9, err_msg=f"{name}, step {step}")
        take_head_step(resumed, step, 0.0)
    for each in (parts, resumed):
        take_head_step(each, 5, 1024.0)  # the loss scale
    for name in head:
        assert not np.allclose(dense_weights(parts)[name], state.dense[name])
        np.testing.assert_array_equal(dense_weights(resumed)[name], dense_weights(parts)[name], err_msg=name)


def test_rows_of_stock_stay_without_a_gradient(falling, make_parts, tiny_config, tiny_schema, tiny_dataset):
    """MindSpore's own operators, after a run whose learning rate was another."""
    from mindspore import Tensor

    from app.training.warm_start.take_over import warm_start

    path, state = falling
    words = (f"train.init_from={path}", FLAT, "train.init_optimizer=true", "train.init_take=tables")
    warm = make_parts("stock", tiny_schema, *words)
    warm_start(warm, tiny_config("tables.backend=stock", *words), tiny_schema, tiny_dataset, ProcessGroup())
    tables, saved = warm.step.tables, state.tables[WIDE]
    ids = Tensor(saved.row_ids.astype(np.int32))
    zeros = [Tensor(np.zeros((saved.row_ids.size, width), np.float32)) for width in (8, 1)]
    for _ in range(2):
        tables.parameters.update(ids, *zeros, Tensor(np.float32(1e-3)))
    rows = saved.arrays["rows"]
    assert np.abs(rows).max() > 1e-4
    np.testing.assert_allclose(tables.parameters.wide_rows.asnumpy()[saved.row_ids], rows, rtol=1e-5, atol=1e-10)


def zoo_arrays(schema, dim, widths, rng):
    """The zoo's parameters, by the names under which its training saves them."""
    size = schema.vocabulary_size
    ends = ((schema.num_numeric + schema.num_categorical) * dim, *widths, 1)
    arrays = {
        "Wide_b": rng.standard_normal(1),
        "wide_embeddinglookup.embedding_table": rng.standard_normal((size, 1)),
        "deep_embeddinglookup.embedding_table": rng.standard_normal((size, dim)),
    }
    for number, (rows, columns) in enumerate(itertools.pairwise(ends), start=1):
        arrays[f"dense_layer_{number}.weight"] = rng.standard_normal((rows, columns)) / np.sqrt(rows)
        arrays[f"dense_layer_{number}.bias"] = rng.standard_normal(columns)
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def zoo_logits(arrays, ids, weights):
    """The zoo's forward pass, in float64."""
    exact = {name: array.astype(np.float64) for name, array in arrays.items()}
    wide = (exact["wide_embeddinglookup.embedding_table"][ids, 0] * weights).sum(1) + exact["Wide_b"]
    hidden = (exact["deep_embeddinglookup.embedding_table"][ids] * weights[:, :, None]).reshape(len(ids), -1)
    layers = sum(name.endswith(".weight") for name in arrays)
    for number in range(1, layers + 1):
        hidden = hidden @ exact[f"dense_layer_{number}.weight"] + exact[f"dense_layer_{number}.bias"]
        hidden = np.maximum(hidden, 0) if number < layers else hidden
    return wide + hidden[:, 0]


def write_ckpt(path, arrays, prefix="network."):
    import mindspore as ms

    ms.save_checkpoint([{"name": prefix + name, "data": ms.Tensor(array)} for name, array in arrays.items()], str(path))
    return path


def test_the_zoo_s_model_in_a_deep_part_of_fewer_fields(start, tiny_schema, tiny_dataset, tmp_path):
    arrays = zoo_arrays(tiny_schema, 8, (32, 16), np.random.default_rng(3))
    path, fields = write_ckpt(tmp_path / "zoo.ckpt", arrays), tiny_schema.categorical
    found = start(tiny_schema, tiny_dataset, path, "model.deep_fields=[C5,C2]").state()
    blocks = arrays["dense_layer_1.weight"].reshape(-1, 8, 32)[tiny_schema.num_numeric :]
    expected = np.concatenate([blocks[place] for place, field in enumerate(fields) if field.name in ("C2", "C5")])
    np.testing.assert_array_equal(found.dense["tower.matrix_0"], expected)


@pytest.mark.parametrize(("prefix", "old_names"), [("network.", False), ("", True)])
def test_the_zoo_s_model_gives_the_zoo_s_logits(
    start, random_batch, tiny_schema, tiny_dataset, tmp_path, caplog, prefix, old_names
):
    rng = np.random.default_rng(3)
    arrays = zoo_arrays(tiny_schema, 8, (32, 16), rng)
    saved = dict(arrays)
    if old_names:
        saved["Wide_w"] = saved.pop("wide_embeddinglookup.embedding_table")
        saved["V_l2"] = saved.pop("deep_embeddinglookup.embedding_table")
    parts = start(tiny_schema, tiny_dataset, write_ckpt(tmp_path / "zoo.ckpt", saved, prefix))
    assert "scaled otherwise" not in caplog.text
    batch = random_batch(tiny_schema, 50, rng)
    numeric_ids = np.broadcast_to(np.arange(tiny_schema.num_numeric), (50, tiny_schema.num_numeric))
    ids = np.concatenate([numeric_ids, batch.ids], 1)
    weights = np.concatenate([batch.numeric, np.ones(batch.ids.shape)], 1)
    expected = zoo_logits(arrays, ids, weights)
    found = parts.step.score(batch, parts.step.prepare(batch))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert parts.state().tables[WIDE].row_ids.size == tiny_schema.vocabulary_size - tiny_schema.num_numeric


def test_other_ckpt_files_are_refused(start, tiny_schema, tiny_dataset, tmp_path):
    arrays = zoo_arrays(tiny_schema, 8, (32, 16), np.random.default_rng(3))
    with pytest.raises(ValueError, match="its embedding width is 8, expected 4"):
        start(tiny_schema, tiny_dataset, write_ckpt(tmp_path / "zoo.ckpt", arrays), "model.embedding_dim=4")
    del arrays["Wide_b"]
    with pytest.raises(ValueError, match=r"is not of the model zoo's Wide&Deep: it has no Wide_b; found deep_emb"):
        start(tiny_schema, tiny_dataset, write_ckpt(tmp_path / "other.ckpt", arrays))
