"""Rules between sections, data and ranks: each is broken once."""

import dataclasses

import pytest

from app.tables.native import library
from app.training.start import plan_launch
from app.training.validate import validate
from data_prep.prepared.schema import Split

RANKS = {"num_ranks": 2}
STOCK = {"backend": "stock"}
PLATEAU = "deep_optimizer.schedule.name=plateau"


@pytest.fixture
def check(tiny_config, make_schema):
    """Validate the settings of `words` on data with these (clicks, rows) a split."""

    def run(*words, num_ranks=1, num_servers=0, backend="native", **splits):
        splits = {"train": (3, 10), "valid": (3, 10), "test": (3, 10), **splits}
        split_records = {
            name: Split(rows, clicks, (), unlabelled=sum(unlabelled))
            for name, (clicks, rows, *unlabelled) in splits.items()
        }
        schema = dataclasses.replace(make_schema(), splits=split_records)
        validate(tiny_config(*words), schema, num_ranks, num_servers, backend)

    return run


@pytest.mark.parametrize(
    ("words", "others"),
    [
        ((), {}),
        (("eval.patience=2", "eval.group_field=C2", PLATEAU), {}),
        (("model.deep_fields=[]", "model.wide_fields=[C2,C1]"), {}),
        ((), {"valid": (0, 0)}),
        ((), {"train": (3, 10, 6)}),
        ((), {"valid": (0, 10)}),
        (("tower_optimizer.schedule.name=cosine",), {"num_servers": 1}),
        (("tables.backend=stock", "model.fold_numeric=false"), STOCK),
    ],
)
def test_what_fits_together_passes(check, words, others):
    check(*words, **others)


@pytest.mark.parametrize(
    ("words", "others", "message"),
    [
        # the data
        (("eval.metric=auc",), {"valid": (0, 10)}, r"none of them is a click: eval\.metric=auc is undefined"),
        (
            (),
            {"train": (4, 10, 6)},
            r"'train' has 4 rows with a label and 6 without, and all of them are clicks: there .*; if those without a ",
        ),
        ((), {"train": (0, 10, 10)}, r"'train' has 0 rows with a label and 10 without, and none of them is a click"),
        ((), {"train": (10, 10)}, r"'train' has 10 rows, and all of them are clicks: there is nothing to learn"),
        ((), {"train": (0, 10), "valid": (0, 10), "test": (0, 5)}, r"'train' has 10 rows, .* the whole log has one"),
        ((), {"train": (0, 0)}, r"no rows in split 'train', so there is nothing to learn; prepare it with prepare\."),
        (("eval.patience=2",), {"valid": (0, 0)}, r"eval\.patience=2 needs rows .* none in split 'valid'"),
        (("eval.every_steps=5",), {"valid": (0, 0)}, r"eval\.every_steps=5 needs rows"),
        ((PLATEAU,), {"valid": (0, 0)}, r"schedule\.name=plateau needs rows"),
        (("eval.group_field=C22",), {}, r"eval\.group_field=C22 is no categorical field .*; did you mean 'C2'"),
        (("model.wide_fields=[C1,C44]",), {}, r"model\.wide_fields: C44 is no categorical field .*; did you mean 'C4'"),
        (("model.deep_fields=[C9]",), {}, r"model\.deep_fields: C9 is no categorical field of the data; did you mean"),
        (("model.deep_fields=[v1]",), {}, r"model\.deep_fields: v1 is a vector, which needs no table rows"),
        (("eval.group_field=v2",), {}, r"eval\.group_field=v2 is a vector; choose a field with one value a row"),
        # the tables
        (("model.deep_fields=[]",), STOCK, r"stock is for one id of every field in both parts of the model"),
        (("tables.backend=stock",), {**RANKS, **STOCK}, r"tables\.backend=stock is for one rank, found 2"),
        (("model.fold_numeric=false",), {"num_servers": 1}, r"tables\.backend=stock is for one rank, found 2"),
        (("tables.backend=native", "model.fold_numeric=false"), {}, r"model\.fold_numeric=false is for tables\.back"),
        (("deep_optimizer.name=adam",), STOCK, r"deep_optimizer\.name=adam is for .*; stock has lazy_adam only"),
        (("wide_optimizer.name=sgd",), STOCK, r"wide_optimizer\.name=sgd is for .*; stock has ftrl only"),
        (("tower_optimizer.name=sgd",), STOCK, r"tower_optimizer\.name=sgd is for .*; stock has adam and adamw only"),
        (("wide_optimizer.schedule.warmup_steps=5",), STOCK, "learning rate of MindSpore's FTRL operator is fixed"),
        (("train.ema_decay=0.9",), STOCK, r"train\.ema_decay=0\.9 is for .*; stock has none"),
        (("tables.dtype=bfloat16",), STOCK, r"tables\.dtype=bfloat16 is for .*; stock has float32 only"),
        (("tables.dtype=bfloat16", "deep_optimizer.name=ftrl"), {}, r"does not go with deep_optimizer\.name=ftrl,"),
        (("wide_optimizer.schedule.warmup_steps=5",), {"num_servers": 1}, "must be constant, without a warm-up, where"),
        (("deep_optimizer.schedule.name=step",), {"num_servers": 1}, "must be constant, without a warm-up, where"),
        # the tower over ranks
        (("model.batch_norm=true",), RANKS, r"model\.batch_norm=true is for one rank"),
    ],
)
def test_a_broken_rule_is_one_line(check, words, others, message):
    with pytest.raises(ValueError, match=message) as caught:
        check(*words, **others)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(("words", "backend"), [((), "stock"), (("deep_optimizer.name=adam",), "reference")])
def test_without_native_tables_auto_takes_a_backend_that_has_the_settings(
    tiny_config, tiny_dataset, tmp_path, monkeypatch, words, backend
):
    def load():
        raise OSError("not built; run `make native`")

    monkeypatch.setattr(library.LIBRARY, "load", load)
    config = tiny_config("tables.backend=auto", *words)
    assert plan_launch(config, tiny_dataset, tmp_path / "run").backend == backend
