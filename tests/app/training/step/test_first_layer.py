"""`model.first_layer=auto` chooses by the data's counts."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from app.config.config import Config
from app.training.step.first_layer import choose, expected_shares, most_distinct, obstacle
from common import yaml_settings
from data_prep.prepared.schema import VOCABULARY_FILE, CategoricalField, Split

ROWS, BATCH_SIZE = 100_000, 2_000


@pytest.fixture
def data(make_schema, tmp_path):
    """Three fields: few values, a power law with a rest out of vocabulary, and hashed ids without counts."""
    counts = [np.array([60_000, 30_000, 10_000]), 40_000 // np.arange(1, 300)]
    fields = (
        CategoricalField("few", (0, 0), ((4, 7),)),
        CategoricalField("many", (0, 1), ((7, 306),)),
        CategoricalField("hashed", (306, 50_306), ()),
    )
    table = pa.table({"id": np.arange(4, 306), "count": np.concatenate(counts)})
    parquet.write_table(table, tmp_path / VOCABULARY_FILE)
    splits = {"train": Split(ROWS, 20_000, ()), "valid": Split(0, 0, ()), "test": Split(0, 0, ())}
    return replace(make_schema(vocabulary_size=50_306), categorical=fields, splits=splits), tmp_path


def resolved(data, *words, asked=None, backend="native", num_processes=1):
    config = yaml_settings.resolve(Config, None, [f"train.batch_size={BATCH_SIZE}", *words])
    return choose(asked or config.model.first_layer, config, *data, backend, num_processes)


def test_the_expected_shares_are_those_of_drawn_batches(data):
    rng, schema = np.random.default_rng(0), data[0]
    shares = expected_shares(*data, BATCH_SIZE)
    counts = 40_000 // np.arange(1, 300)
    p = np.append(counts, max(ROWS - counts.sum(), 0))
    drawn = [len(np.unique(rng.choice(len(p), BATCH_SIZE, p=p / p.sum()))) for _ in range(20)]
    assert shares[0] == 3 / BATCH_SIZE
    assert shares[1] == pytest.approx(np.mean(drawn) / BATCH_SIZE, rel=0.03)
    assert shares[2] > 0.97
    assert len(shares) == len(schema.categorical)


def test_auto_chooses_distinct_rows_if_they_save_work(data):
    chosen, reason = resolved(data, "model.embedding_dim=80")
    assert chosen == "distinct"
    assert "position by position: hashed" in reason


@pytest.mark.parametrize(
    "words",
    [["model.embedding_dim=16"], ["train.batch_size=500"], ["model.first_layer=direct", "model.embedding_dim=80"]],
    ids=str,
)
def test_auto_chooses_direct_elsewhere(data, words):
    assert resolved(data, *words) == ("direct", "")


@pytest.mark.parametrize(
    ("words", "given", "why"),
    [
        (["model.wide_fields=[few]"], {}, "the parts of the model see different fields, or a list"),
        (["model.first_layer=direct"], {"asked": "auto"}, "the run began so"),
        ([], {"backend": "stock"}, "tables.backend=stock looks its rows up inside the graph"),
        ([], {"num_processes": 2}, "several ranks exchange the rows of their positions"),
    ],
    ids=str,
)
def test_the_reason_for_a_direct_layer_is_logged_with_its_cost(data, words, given, why):
    chosen, line = resolved(data, "model.embedding_dim=80", *words, **given)
    assert chosen == "direct"
    assert f"as {why}; distinct rows once should save 46% of its work (" in line


def test_a_list_s_pooled_rows_are_multiplied_one_by_one(data):
    schema, folder = data
    fields = (replace(schema.categorical[0], max_length=5), *schema.categorical[1:])
    with_list = replace(schema, categorical=fields), folder
    assert expected_shares(*with_list, BATCH_SIZE).tolist()[0] == 1
    assert resolved(with_list, "model.embedding_dim=80") == ("direct", "")


def test_a_run_that_began_with_distinct_rows_keeps_them(data):
    assert resolved(data, "model.first_layer=distinct", asked="auto") == ("distinct", "")


def test_rows_that_hardly_repeat_stay_direct(data):
    """Count values by one power law in all fields: 82 % of a field's positions are then distinct."""
    schema, folder = data
    hashed = replace(schema, categorical=(schema.categorical[2],))
    assert resolved((hashed, folder), "model.embedding_dim=80") == ("direct", "")


def test_distinct_is_refused_if_it_is_impossible(data):
    config = yaml_settings.resolve(Config, None, ["model.first_layer=distinct"])
    assert obstacle(config, data[0], "native", 1) is None
    with pytest.raises(ValueError, match=r"model\.first_layer=distinct: several ranks .*; choose auto or direct"):
        choose("distinct", config, *data, "native", 2)


def test_narrow_rows_never_gain():
    assert most_distinct(yaml_settings.resolve(Config, None, ["model.embedding_dim=16"])) <= 0
