"""The settings of a training on a prepared folder, and what they need to know of it."""

import dataclasses
import math
from pathlib import Path

from app.config.config import Config
from app.training.auto import settle as module
from app.training.auto.crosses import CrossesChoice
from app.training.auto.settle import settle
from common import yaml_settings
from data_prep.prepared.schema import CategoricalField, Split


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
