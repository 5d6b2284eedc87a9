"""Bundles of models with random weights: none is trained, and only the preparation needs MindSpore."""

import dataclasses
import itertools
import shutil

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from app.checkpoint.write import ModelState
from app.scoring.predictor import Predictor
from app.scoring.trained.code_and_card import requirements
from app.scoring.trained.write_bundle import ExportedModel, finish, write_model
from app.tables.backends import fields_of_model, num_deep_inputs
from app.tables.interface import TableState
from data_prep.encoding.rows_to_score import arrow_table
from data_prep.options.log_format import LogFormat, VectorForm
from data_prep.options.options_file import read_options
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare, prepare_table
from data_prep.prepared.schema import read_schema

CHECKPOINT = {"id": "xxh3:0", "step": 3, "epoch": 1, "train_rows": 10, "train_clicks": 2}


def random_dense(schema, config, generator):
    """Dense arrays of a checkpoint, as `WideDeep.named_parameters` names and shapes them, all of them at work."""
    width, num_numeric = config.model.embedding_dim, schema.num_numeric
    num_inputs = num_deep_inputs(fields_of_model(schema, config.model))
    widths = [num_inputs * width, *config.model.hidden_widths]

    def draw(*shape, scale=1.0):
        return (scale * generator.standard_normal(shape)).astype(np.float32)

    dense = {"wide.bias": draw(1)}
    if num_numeric:
        dense["wide.numeric_weight"] = draw(num_numeric, 1)
        dense["tower.numeric_rows"] = draw(num_numeric, width)
        dense["tower.numeric_matrix"] = draw(num_numeric, width, widths[1], scale=1 / width)
    if schema.vector_inputs:
        dense["tower.vector_matrix"] = draw(schema.vector_inputs, widths[1], scale=schema.vector_inputs**-0.5)
    for i, (rows, columns) in enumerate(itertools.pairwise(widths)):
        dense[f"tower.matrix_{i}"] = draw(rows, columns, scale=rows**-0.5)
        dense[f"tower.bias_{i}"] = draw(columns)
        if config.model.batch_norm:
            dense |= {f"tower.norm_scale_{i}": 1 + draw(1, columns) / 4, f"tower.norm_shift_{i}": draw(1, columns)}
            dense[f"tower.running_mean_{i}"] = draw(1, columns)
            dense[f"tower.running_variance_{i}"] = np.exp(draw(1, columns))
    dense[f"tower.matrix_{len(widths) - 1}"] = draw(widths[-1], 1)
    return dense


def random_state(schema, config, seed=0, touched=0.8):
    """A state in which not every row was touched, and not the same ones in both tables."""
    generator = np.random.default_rng(seed)

    def table(width):
        ids = np.flatnonzero(generator.random(schema.vocabulary_size) < touched)
        return TableState(ids, {"rows": generator.standard_normal((len(ids), width)).astype(np.float32)})

    dense = random_dense(schema, config, generator)
    return ModelState(dense, {"wide": table(1), "deep": table(config.model.embedding_dim)})


@pytest.fixture(scope="session")
def make_state():
    return random_state


@pytest.fixture(scope="session")
def make_bundle(tmp_path_factory):
    """Writes a bundle of a state for a prepared folder; gives its folder."""

    def make(prepared, config, state, rows="float32", history=None, parent=None, folder=None, beside=None):
        folder = folder or tmp_path_factory.mktemp("bundle") / "bundle"
        folder.mkdir()
        model = ExportedModel(state, config, prepared, CHECKPOINT, history)
        manifest = write_model(folder, model, rows, parent).manifest
        texts = {"README.md": "card\n", "requirements.txt": requirements(manifest.versions)}
        finish(folder, manifest, texts, beside or folder.parent)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_state(tiny_schema, tiny_config):
    return random_state(tiny_schema, tiny_config())


@pytest.fixture(scope="session")
def tiny_bundle(make_bundle, tiny_dataset, tiny_config, tiny_state):
    """A bundle for `tiny_dataset`; not to be changed."""
    return make_bundle(tiny_dataset, tiny_config(), tiny_state)


@pytest.fixture(scope="session")
def predictor(tiny_bundle):
    return Predictor.open(tiny_bundle)


@pytest.fixture
def copied(tiny_bundle, tmp_path):
    """A copy of the bundle, to be damaged."""
    return shutil.copytree(tiny_bundle, tmp_path / "copy")


@pytest.fixture(scope="session")
def text_dataset(tmp_path_factory, make_avazu, project):
    """Text between commas, a header, the label in the second place, quotes, crosses; and buckets of no integers."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "log.csv").write_text(make_avazu(1500))
    words = ["prepare.min_count=2", "prepare.workers=1", "prepare.crosses=[[site_id, C1], [app_id, hour, C14]]"]
    options = read_options(None, words, project / "configs/data/avazu.yaml")
    options = dataclasses.replace(options, data=dataclasses.replace(options.data, quotes=True))
    assert isinstance(options, PrepareOptions)
    prepare(folder / "log.csv", folder / "prepared", options)
    return folder / "prepared"


@pytest.fixture(scope="session")
def text_bundle(make_bundle, text_dataset, tiny_config):
    config = tiny_config()
    return make_bundle(text_dataset, config, random_state(read_schema(text_dataset), config))


@pytest.fixture(scope="module")
def typed_dataset(tmp_path_factory):
    """Floats, times, lists, booleans, vectors, a cross of a bucket and one of a list."""
    generator, count = np.random.default_rng(1), 300
    columns = {
        "count": pd.Series(generator.integers(0, 50, count), dtype="Int64").mask(generator.random(count) < 0.2),
        "price": np.where(generator.random(count) < 0.2, np.nan, generator.gamma(2, 10, count)),
        "seen": pd.Timestamp("2025-03-01") + pd.to_timedelta(generator.integers(0, 10**6, count), unit="s"),
        "tags": [list("xyz"[: generator.integers(4)]) for _ in range(count)],
        "shop": generator.choice(["a", "b", None], count),
        "clicked": generator.random(count) < 0.3,
        "new": pd.Series(generator.random(count) < 0.5, dtype="boolean").mask(generator.random(count) < 0.2),
        "item": [generator.normal(size=3) if generator.random() > 0.2 else None for _ in range(count)],
    }
    kinds = ("integer", "float", "timestamp", "list", "string", "label", "boolean", "vector")
    log_format = LogFormat(
        dict(zip(columns, kinds, strict=True)), timestamps={"seen": "milliseconds"}, vectors={"item": VectorForm(3)}
    )
    crosses = (("shop", "count_bucket"), ("tags", "shop"))
    options = PrepareOptions(data=log_format, min_count=1, workers=1, integer_buckets=True, crosses=crosses)
    folder = tmp_path_factory.mktemp("typed") / "prepared"
    prepare_table(arrow_table(pd.DataFrame(columns)), folder, options)
    return folder


@pytest.fixture(scope="module")
def typed_bundle(make_bundle, typed_dataset, tiny_config):
    config = tiny_config()
    return make_bundle(typed_dataset, config, random_state(read_schema(typed_dataset), config))


@pytest.fixture(scope="module", params=["tiny_bundle", "text_bundle", "typed_bundle"])
def scored(request):
    """A predictor of numbers and hex values, of text with crosses, of other kinds; made-up rows under another index."""
    predictor = Predictor.open(request.getfixturevalue(request.param))
    names = [name for name, _ in predictor.log_format.fields]
    rows = pq.read_table(predictor.folder / "golden.parquet", columns=names).to_pandas()
    rows.index = np.random.default_rng(1).permutation(len(rows)) + 1000
    return predictor, rows
