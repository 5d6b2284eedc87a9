import dataclasses
import itertools
import math
import re
from pathlib import Path

import pytest

from app.config.config import Config
from app.tables.backends import fields_of_model
from app.training.auto import by_rows as module
from app.training.auto.by_rows import resolve_by_rows, settings_by_rows, settle
from app.training.auto.regression import CrossesChoice
from app.training.start import describe_by_rows, describe_few_steps
from common import settings, yaml_settings
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import CategoricalField, Split, VectorField


@pytest.fixture
def resolved(project, tiny_schema):
    def resolve(num_rows, *words, source=None):
        path = project / "configs" / "auto.yaml"
        return resolve_by_rows(lambda base: yaml_settings.resolve(Config, path, words, base), sized(num_rows), source)

    def sized(num_rows):
        return dataclasses.replace(tiny_schema, numeric=(), splits={"train": Split(num_rows, 0, ())})

    resolve.schema = sized
    return resolve


@pytest.mark.parametrize("num_rows", [0, 1, 50, 94_000, 400_000, 4_000_000, 10**10])
def test_any_number_of_rows_gives_valid_settings(resolved, num_rows):
    config = resolved(num_rows)
    steps = math.ceil(num_rows / config.train.batch_size) * config.train.epochs
    for optimizer in (config.wide_optimizer, config.deep_optimizer, config.tower_optimizer):
        assert (optimizer.schedule.name, optimizer.schedule.decay_steps) == ("cosine", max(1, steps))
    assert f"for {num_rows:,} training rows" in describe_by_rows(config, Split(num_rows, 0, ()))


def test_l2_falls_with_the_rows_and_the_tower_grows(resolved):
    sizes = (20_000, 94_000, 400_000, 4_000_000, 40_000_000)
    configs = [resolved(rows) for rows in sizes]
    for rows, config in zip(sizes, configs, strict=True):
        assert config.loss.l2_coef * rows == pytest.approx(1500, rel=0.01)
    for small, large in itertools.pairwise(configs):
        assert small.model.hidden_widths <= large.model.hidden_widths
        assert small.train.epochs >= large.train.epochs
        assert small.wide_optimizer.l1 <= large.wide_optimizer.l1
    ends = [(c.model.hidden_widths, c.train.epochs, c.train.batch_size) for c in configs]
    penalties = [(c.wide_optimizer.l1, c.wide_optimizer.l2) for c in configs]
    assert (ends[1], penalties[1]) == (((64, 32), 12, 1000), (0, 3e-2))
    assert (ends[3], penalties[3]) == (((256, 128), 3, 2000), (1e-3, 1.8e-3))
    assert (ends[4], penalties[4]) == (((256, 128), 1, 2000), (1e-3, 1.8e-3))  # three epochs are not better


@pytest.mark.parametrize(("numbers", "vectors", "width"), [(1, 0, 256), (0, 0, 64), (1, 1, 64)])
def test_data_with_numbers_get_a_wide_tower(resolved, tiny_schema, numbers, vectors, width):
    numeric = tiny_schema.numeric[:numbers]
    vector = VectorField("v", 2, "none", (0, 0), (1, 1))
    for num_rows in (600, 94_000):
        schema = dataclasses.replace(resolved.schema(num_rows), numeric=numeric, vectors=(vector,) * vectors)
        assert settings_by_rows(schema)["model"]["hidden_widths"] == [width, width // 2]


def test_epochs_fall_to_one_on_the_whole_log(resolved):
    epochs = [resolved(rows).train.epochs for rows in (4_000_000, 5_000_000, 12_000_000, 36_000_000, 10**9)]
    assert epochs == [3, 3, 2, 1, 1]


@pytest.mark.parametrize("num_rows", [9, 50, 700, 5_000, 33_000, 93_000, 94_000, 10**6])
def test_few_rows_take_as_many_steps_as_a_hundred_thousand(resolved, num_rows):
    config = resolved(num_rows)
    steps = config.train.epochs * math.ceil(num_rows / config.train.batch_size)
    assert steps >= min(12 * 94, 12 * num_rows) and config.train.batch_size <= 2000
    assert describe_few_steps(config, num_rows) == ""
    if num_rows <= 94_000:  # FTRL's l2 is the weight of as many rows
        assert config.wide_optimizer.l2 * config.train.batch_size == pytest.approx(30, rel=0.01)
        assert steps <= 12 * 95 + 12 * num_rows / 94


@pytest.mark.parametrize(
    ("num_rows", "num_fields", "l2_rows"),
    [
        (10**6, 26, 1500),
        (10**6, 60, 1500),
        (10**6, 13, 750),
        (10**6, 0, 0),
        (10_000, 26, 1000),
        (600, 26, 60),
        (600, 1, 58),
    ],
)
def test_l2_is_the_weight_of_some_rows_by_fields_and_rows(resolved, num_rows, num_fields, l2_rows):
    schema = resolved.schema(num_rows)
    fields = tuple(CategoricalField(f"F{i}", (0, 1), ((1, 2),)) for i in range(num_fields))
    schema = dataclasses.replace(schema, categorical=fields)
    assert settings_by_rows(schema)["loss"]["l2_coef"] * num_rows == pytest.approx(l2_rows, rel=0.01)


@pytest.mark.parametrize(
    ("num_rows", "num_fields", "l2_rows"),
    [(600, 2, 60), (14_000, 2, 800), (94_000, 2, 800), (94_000, 17, 980), (94_000, 26, 1500), (4_000_000, 3, 800)],
)
def test_crosses_are_seen_by_both_parts_with_more_l2_and_change_nothing_else(resolved, num_rows, num_fields, l2_rows):
    fields = [CategoricalField(f"F{i}", (0, 1), ((1, 2),)) for i in range(num_fields)]
    crossed = CategoricalField("F0*F1", (0, 1), ((1, 9),), cross=("F0", "F1"), max_length=4)
    plain = dataclasses.replace(resolved.schema(num_rows), categorical=tuple(fields))
    with_cross = dataclasses.replace(plain, categorical=(*fields, crossed))
    chosen, without = settings_by_rows(with_cross), settings_by_rows(plain)
    model = settings.merge(Config(), chosen, where="train.auto").model
    assert all(field.wide and field.deep for field in fields_of_model(with_cross, model))
    assert chosen.pop("loss")["l2_coef"] * num_rows == pytest.approx(l2_rows, rel=0.01)
    names = [field.name for field in with_cross.categorical]
    assert chosen.pop("model") == without.pop("model") | {"wide_fields": names, "deep_fields": names}
    del without["loss"]
    assert chosen == without


def test_vectors_add_dropout_and_change_nothing_else(resolved):
    plain = resolved.schema(94_000)
    chosen = settings_by_rows(dataclasses.replace(plain, vectors=(VectorField("v", 2, "none", (0, 0), (1, 1)),)))
    assert chosen["model"].pop("dropout") == 0.2
    assert chosen == settings_by_rows(plain)


@pytest.mark.parametrize(
    ("effects", "of_few", "less_l2"),
    [("slight", (0.134, 16), 3**0.5), ("weak", (0.3, 20), 3), ("strong", (0.3, 20), 10)],
)
@pytest.mark.parametrize("num_rows", [600, 30_000, 94_000, 400_000, 4_000_000])
def test_a_wide_part_whose_clicks_follow_crosses_learns_faster_in_more_epochs(
    resolved, num_rows, effects, of_few, less_l2
):
    schema = resolved.schema(num_rows)
    others, follow = settings_by_rows(schema), settings_by_rows(schema, cross_effects=effects)
    wide, fast = others.pop("wide_optimizer"), follow.pop("wide_optimizer")
    if num_rows == 4_000_000:  # of so many rows each value has enough
        assert (fast, follow) == (wide, others)
        return
    assert fast["learning_rate"] > wide["learning_rate"] and fast["l2"] < wide["l2"]
    assert follow["train"]["epochs"] > others["train"]["epochs"]
    if num_rows <= 94_000:
        assert (fast["learning_rate"], follow["train"]["epochs"]) == of_few
        assert fast["l2"] == pytest.approx(wide["l2"] / less_l2, rel=0.01)
    assert fast["l1"] == wide["l1"]
    steps = {"decay_steps": follow["train"]["epochs"] * math.ceil(num_rows / follow["train"]["batch_size"])}
    for group in ("deep_optimizer", "tower_optimizer"):
        assert follow.pop(group) == others.pop(group) | {"schedule": fast["schedule"]}
    assert fast["schedule"] == wide["schedule"] | steps
    del follow["train"]["epochs"], others["train"]["epochs"]
    assert follow == others


@pytest.mark.parametrize(
    ("num_rows", "words", "rate"),
    [(600, (), 4.29e-4), (4_000, (), 3e-3), (94_000, (), 3e-3), (94_000, ("train.batch_size=21",), 1.5e-3)],
)
def test_small_batches_have_lower_learning_rates(resolved, num_rows, words, rate):
    config = resolved(num_rows, *words)
    assert config.deep_optimizer.learning_rate == config.tower_optimizer.learning_rate == rate
    assert config.wide_optimizer.learning_rate == resolved(94_000).wide_optimizer.learning_rate


def test_what_is_set_counts_and_the_rest_follows_it(resolved):
    config = resolved(94_000, "train.epochs=2", "train.batch_size=4000", "deep_optimizer.learning_rate=0.5")
    assert (config.train.epochs, config.train.batch_size, config.deep_optimizer.learning_rate) == (2, 4000, 0.5)
    assert config.tower_optimizer.schedule.decay_steps == 2 * 24
    for steps, decay in ((30, 30), (48, 48), (1000, 48)):
        limited = resolved(94_000, "train.epochs=2", "train.batch_size=4000", f"train.steps={steps}")
        assert {limited.deep_optimizer.schedule.decay_steps, limited.wide_optimizer.schedule.decay_steps} == {decay}
    assert config.wide_optimizer.l2 == pytest.approx(3e-2 / 4)


def test_another_optimizer_keeps_its_own_defaults(resolved):
    config = resolved(94_000, "deep_optimizer.name=lazy_adam")
    assert (
        config.deep_optimizer == yaml_settings.resolve(Config, None, ["deep_optimizer.name=lazy_adam"]).deep_optimizer
    )
    assert settings_by_rows(resolved.schema(94_000))["deep_optimizer"]["name"] == "adam"


def test_a_resolved_run_resolves_to_itself(resolved):
    config = resolved(300_000)
    again = resolve_by_rows(
        lambda base: settings.merge(base, settings.as_dict(config), where="config.yaml"), resolved.schema(5)
    )
    assert again == config


def test_a_run_from_a_model_has_its_sizes_and_goes_on_at_lower_rates(resolved):
    source = resolved(4_000_000)
    alone, warm = resolved(50_000), resolved(50_000, source=source)
    assert (alone.model.hidden_widths, warm.model) == ((64, 32), source.model)
    assert (warm.loss, warm.train.batch_size, warm.train.epochs) == (source.loss, 2000, 1)
    assert warm.wide_optimizer.initial_accumulator == source.wide_optimizer.initial_accumulator
    for group in ("wide_optimizer", "deep_optimizer", "tower_optimizer"):
        ours, theirs = getattr(warm, group), getattr(alone, group)
        assert ours.learning_rate == pytest.approx(0.3 * theirs.learning_rate, rel=0.01)
        assert ours.schedule.decay_steps == 50_000 // 2000
    few = resolved(300, source=source)  # batches of the source's size
    assert few.tower_optimizer.learning_rate == warm.tower_optimizer.learning_rate
    assert resolved(50_000, source=warm) == warm  # the next day too, and the run that took the source's folder
    smaller = resolved(50_000, "train.batch_size=500", "train.epochs=2", source=source)
    assert (smaller.train.epochs, smaller.wide_optimizer.l2) == (2, pytest.approx(4 * source.wide_optimizer.l2))
    assert smaller.deep_optimizer.schedule.decay_steps == 200


@pytest.mark.parametrize(
    ("of_source", "words", "expected"),
    [
        ((), (), True),
        (("train.ema_decay=0.9",), (), False),  # the state belongs to other weights than the means
        (("deep_optimizer.name=lazy_adam",), (), False),
        (("deep_optimizer.name=lazy_adam",), ("deep_optimizer.name=lazy_adam",), True),
        ((), ("train.init_optimizer=false",), False),
        ((), ("train.init_take=tower",), False),
    ],
)
def test_the_state_of_optimizers_is_taken_where_it_fits(resolved, of_source, words, expected):
    assert resolved(50_000, *words, source=resolved(50_000, *of_source)).train.init_optimizer is expected


def test_a_part_of_a_model_brings_its_sizes_alone(resolved):
    source, alone = resolved(4_000_000), resolved(50_000)
    tables, tower = (resolved(50_000, f"train.init_take={part}", source=source) for part in ("tables", "tower"))
    assert (tables.model.hidden_widths, tower.model.hidden_widths) == ((64, 32), (256, 128))
    for config in (tables, tower):
        assert (config.loss, config.train.epochs) == (alone.loss, alone.train.epochs)
        assert config.tower_optimizer == alone.tower_optimizer


def test_the_fields_of_a_model_stay_where_a_table_of_its_own_would_leave_them_out(resolved):
    warm = resolved(50_000, source=resolved(4_000_000, "model.wide_fields=[C1, gone]"))
    assert (warm.model.wide_fields, warm.model.deep_fields) == (("C1",), None)


def test_buckets_are_seen_where_values_or_the_table_have_rows_enough(resolved):
    def seen(num_rows, num_values):
        fields = [
            CategoricalField(name, (0, 1), ((1, 1 + size),), **of)
            for name, size, of in (("C1", num_values, {}), ("I1_bucket", 9, {}), ("x", 10**6, {"cross": ("C1", "I1")}))
        ]
        options = {"integer_buckets": True}
        schema = dataclasses.replace(resolved.schema(num_rows), categorical=tuple(fields), options=options)
        model = settings_by_rows(schema)["model"]
        return [model.get(part) for part in ("wide_fields", "deep_fields")]

    assert seen(90_000, 60_000) == seen(199_999, 100_000) == [["C1", "x"]] * 2
    assert seen(90_000, 30_000) == seen(600, 100) == seen(300_000, 200_000) == [["C1", "I1_bucket", "x"]] * 2
    assert "wide_fields" not in settings_by_rows(resolved.schema(1))["model"]  # it has no buckets


@pytest.mark.parametrize("integer_buckets", [False, True])
def test_columns_of_the_log_are_no_buckets(tmp_path, integer_buckets):
    """Whatever their names are: only fields that the preparation made of integers are left out."""
    columns = {"click": "label", "age": "integer", "sum": "float", "sum_bucket": "string", "site_bucket": "string"}
    columns |= {"site": "string"} if integer_buckets else {"age_bucket": "string"}
    cells = ["\t".join(["1", "7", "0.5", *"abc"])] * 9 + ["\t".join(["0", "8", "1", *"def"])] * 9
    (tmp_path / "log.txt").write_text("\n".join(cells) + "\n")
    options = PrepareOptions(data=LogFormat(columns), min_count=1, workers=1, integer_buckets=integer_buckets)
    schema = prepare(tmp_path / "log.txt", tmp_path / "prepared", options)
    seen = settings_by_rows(dataclasses.replace(schema, splits={"train": Split(1, 1, ())}))["model"].get("deep_fields")
    of_log = [name for name, kind in columns.items() if kind == "string"]
    names = [field.name for field in schema.categorical]
    assert names == [*of_log, *(["age_bucket"] if integer_buckets else [])]
    assert (seen or names) == of_log


@pytest.mark.parametrize("of_split", [{"unlabelled": 28_948}, {"weightless": 28_948}])
@pytest.mark.parametrize("set_values", [{}, {"batch_size": 400, "epochs": 3}])
def test_only_rows_with_label_and_weight_count(resolved, of_split, set_values):
    """Batches have more rows by as much as some do not count. All else is as for the rows that count alone."""
    alone, among = (
        dataclasses.replace(resolved.schema(0), splits={"train": train})
        for train in (Split(3_217, 300, ()), Split(32_165, 300, (), **of_split))
    )
    expected, found = settings_by_rows(alone, **set_values), settings_by_rows(among)
    if set_values:
        found = settings_by_rows(among, **set_values | {"batch_size": 10 * set_values["batch_size"]})
    assert found["train"].pop("batch_size") == pytest.approx(10 * expected["train"].pop("batch_size"), rel=0.01)
    assert found["wide_optimizer"].pop("l2") == pytest.approx(expected["wide_optimizer"].pop("l2"), rel=0.01)
    assert found == expected


@pytest.mark.parametrize("num_rows", [1, 7, 500, 3_000, 10**6])
@pytest.mark.parametrize("batch_size", [1, 20, 500, 16_000])
@pytest.mark.parametrize("epochs", [1, 9, 200])
def test_a_training_of_few_steps_is_advised_what_to_set(num_rows, batch_size, epochs):
    def of(batch_size, epochs):
        train = dataclasses.replace(Config().train, batch_size=batch_size, epochs=epochs)
        return describe_few_steps(dataclasses.replace(Config(), train=train), num_rows)

    said, steps = of(batch_size, epochs), epochs * math.ceil(num_rows / batch_size)
    assert bool(said) == (steps < 100 or batch_size > num_rows)
    if said:
        assert f"takes {steps:,} step(s) in all" in said
        wanted = int(re.search(r"set train.batch_size=(\d+) or less", said)[1])
        assert not of(wanted, epochs) or (wanted == 1 and num_rows * epochs < 100 and "more train.epochs" in said)


def test_nothing_is_read_without_train_auto():
    assert settle(lambda base: base, Path("nowhere"), Path("nowhere")) == (Config(), CrossesChoice())


def test_crosses_are_asked_for_in_a_new_training(project, tiny_schema, monkeypatch):
    asked = []

    def find(dataset, path, schema, by_effects, dry):
        asked.append([by_effects(effects) for effects in ("none", "strong")])
        return CrossesChoice("strong", f"dry: {dry}")

    def settled(has_cross, *words, source=None):
        cross = CategoricalField("C1*C2", (0, 1), ((1, 9),), cross=("C1", "C2"))
        fields = (*tiny_schema.categorical, cross) if has_cross else tiny_schema.categorical
        schema = dataclasses.replace(tiny_schema, categorical=fields, splits={"train": Split(50_000, 0, ())})
        monkeypatch.setattr(module, "read_schema", lambda _: schema)
        monkeypatch.setattr(module, "source_settings", lambda *_: source)
        path = project / "configs" / "auto.yaml"
        return settle(lambda base: yaml_settings.resolve(Config, path, words, base), Path(), Path(), dry=True)

    monkeypatch.setattr(module, "find_cross_effects", find)
    (plain, line), (warm, _) = settled(False), settled(True, source=settled(False)[0])
    assert plain.train.epochs == warm.train.epochs + 11 == 12 and line == CrossesChoice()
    assert settled(True, "train.auto=false")[0].train == Config().train and not asked
    config, choice = settled(True, "wide_optimizer.l2=0.5")
    assert choice == CrossesChoice("strong", "dry: True")
    assert settled(False)[1].given == settled(True, source=plain)[1].given == ""
    # Of the settings that differ from the choice, only the given one is named.
    said = "given instead of what train.auto would choose: train.epochs=1 in place of "
    assert settled(False, "train.epochs=1")[1].given == f"{said}12"
    assert settled(True, "train.epochs=1")[1].lines == ["dry: True", f"{said}20"]
    assert settled(False, "train.batch_size=7")[1].given.endswith(f"batch_size=7 in place of {plain.train.batch_size}")
    assert settled(False, "train.epochs=12")[1].given == ""
    assert (config.train.epochs, config.wide_optimizer.learning_rate, config.wide_optimizer.l2) == (20, 0.3, 0.5)
    assert config.tower_optimizer.schedule.decay_steps == 20 * math.ceil(50_000 / config.train.batch_size)
    (one, other), *_ = asked
    assert other == config and (one.train.epochs, one.wide_optimizer.l2) == (12, 0.5)
