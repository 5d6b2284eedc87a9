"""Determine the settings of a training: the given ones and, with `train.auto=true` (configs/auto.yaml), those that
follow from the prepared folder, above all from the number of training rows.

Settings were searched by hand for two sizes, a hundred thousand and four million training rows (docs/recipes.md).
Between these sizes, values are interpolated in the logarithm of the number of rows. Outside, the values of the nearer
size are used, except that one epoch is enough for the whole Criteo log.

These rules carry settings over to other data:

- A data set with fewer rows than the smaller size is trained in smaller batches, so that an epoch has as many steps.
- The L2 penalty on the whole deep table is added to the mean loss of the training rows, so its coefficient falls as
  1 / training rows. The rules give its strength as a number of rows: coefficient = this number / training rows. The
  number grows with the number of fields that the deep part sees, and is at most a tenth of the training rows.
- FTRL sums gradients of batch means, so its l1 and l2 fall as 1 / batch size.
- If the data have vectors, whose many components the tower overfits easily, dropout is used.
- Both parts of the model see crosses (fields that combine other fields). If clicks follow the crosses, as logistic
  regressions with and without crosses show on the split valid, the wide part gets a higher learning rate, less l2 and
  more epochs. The stronger the effects of the crosses on clicks, the lower the l2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.config.config import Config
from app.config.optimizer_settings import FtrlOptions
from app.training.auto.regression import CrossEffects, CrossesChoice, find_cross_effects
from app.training.start import num_steps
from app.training.warm_start.source import OF_TOWER, source_settings
from common import settings
from data_prep.prepared.schema import CategoricalField, Schema, read_schema

_FEW, _MANY = 94_000, 4_000_000  # Numbers of training rows for which the best settings were searched by hand.
# Training rows of Criteo's whole log, on which one epoch gives AUC 0.8074, and three epochs give 0.8073.
_WHOLE = 36_670_760
# Lower bound of the steps per epoch. It is the number of steps with the settings for _FEW rows. On Adult (a public data
# set), 24 steps per epoch give an AUC that is 0.010 lower, and 188 steps change nothing.
_STEPS = 94
# The strength of the deep table's L2 penalty is a number of rows: l2_coef = this number / training rows. It has three
# upper bounds. Fixed: with 1,900, L2 holds all deep rows at 0 for some sizes of Criteo's log. Per field: Criteo's 26
# fields need 1,500, while the 4 and 11 fields of MovieLens and the 9 of a bank's table are best with 500. As a share of
# the training rows: the 600 rows of the Titanic are best with 15 to 50, and with 500 no interactions are left.
_MOST_L2_ROWS, _L2_ROWS_OF_FIELD, _L2_SHARE_OF_ROWS = 1500.0, 1500 / 26, 0.1
# l1 of the wide part for _MANY training rows, in batches of 2,000 rows. Values that were seen only a few times keep
# weight 0.
_L1_FOR_MANY = 1e-3
# Neither part of the model sees the bucket fields (made of integer columns by prepare.integer_buckets) if there are
# fewer training rows than the first number, and fewer rows per value of the other fields than the second number. On
# 94,000 rows of Criteo's log (1.6 per value) the bucket fields cost 0.0015 AUC. On tables with 5 to 850 rows per value
# they gain 0 to 0.005.
_ROWS_FOR_BUCKETS, _ROWS_OF_VALUE_FOR_BUCKETS = 200_000, 3
# Lower bound of the L2 penalty (as a number of rows) if there are crosses (fields that combine other fields), which the
# deep part sees too. With less L2 the deep part memorizes the few rows of each cross value. On data whose clicks depend
# on crosses alone, a lower bound of 1,500, or fewer than 12 epochs, would be better, but these changes cost MovieLens
# 0.006 AUC and Adult 0.001.
_LEAST_L2_ROWS_WITH_CROSSES = 800.0
# Epochs, and learning rate and l2 of the wide part, for _FEW training rows, by the strength of the crosses' effects on
# clicks. A value of a cross has about a dozen rows, and needs a large weight if clicks follow the cross. With the rate
# and l2 of "none", which suppress noise, FTRL reaches only a fraction of this weight, and the deep part memorizes the
# rows instead (AUC 0.006 lower, log loss 0.02 higher). If clicks do not follow the crosses, the settings of "strong"
# cost MovieLens 0.018 AUC. The numbers of rows and values do not tell which case it is. "weak": logistic regression
# needs a strong penalty, and the l2 of "strong" costs 0.001 AUC and 0.008 log loss. "strong": logistic regression needs
# a weak penalty, and three times the l2 below costs 0.004 to 0.016 AUC. "slight": values between those of "none" and
# "weak" are better than both by 0.002 to 0.004 AUC.
_WIDE_OF_FEW: dict[CrossEffects, tuple[int, float, float]] = {
    "none": (12, 6e-2, 3e-2),
    "slight": (16, 0.134, 1.73e-2),
    "weak": (20, 0.3, 1e-2),
    "strong": (20, 0.3, 3e-3),
}
# Width of the tower's first layer for _FEW training rows, if there are numeric columns and no vectors. On five cuts of
# Criteo's log, 256 in place of 64 raises the AUC by 0.0001 to 0.0014, and on 12 of 16 tables of numbers by up to 0.011.
# On tables of ids alone it costs up to 0.012, because the tower memorizes them.
_WIDTH_OF_NUMBERS = 256
# Share of the tower's units that each step drops if the data have vectors. Without dropout, a tower fits noise after
# two epochs. If clicks follow a vector of width 64, its AUC on valid rows then ends 0.004 lower on 320,000 rows, and
# 0.015 to 0.02 lower on 32,000. With 0.4 instead of 0.2, the AUC is up to 0.006 higher if clicks follow the vector
# linearly, and up to 0.012 lower if they do not.
_DROPOUT_OF_VECTORS = 0.2
# In batches with fewer rows that count than this, the learning rates of deep rows and tower are lower in proportion.
# Tables of up to 4,000 training rows have such batches (_STEPS). On nine tables of 200 to 700 training rows the log
# loss is then 0.011 to 0.165 lower. On tables of 3,400 to 8,000 rows, a third of the rates changed little, or cost AUC.
_ROWS_FOR_FULL_RATES = 42
# The learning rates at the end of the last epoch are this share of the learning rates at the start.
_FINAL_FACTOR = 0.05
# In a warm start, learning rates are multiplied by this factor. On the next 100,000 rows, the AUC differs from that of
# the source model by -0.0003 (-0.0011 with full rates) on a log without drift, and by +0.0010 (+0.0022 with full rates)
# on a log that drifts.
_WARM_RATE = 0.3


def settle(
    resolve: Callable[[Config], Config], dataset: Path, path: Path, dry: bool = False
) -> tuple[Config, CrossesChoice]:
    """Return the settings of a training in the run folder `path` on the prepared folder `dataset`. Return also the
    effects of crosses, which are fields that combine other fields.

    `resolve` is a function that takes default settings and returns them with the user's settings applied. The second
    value says how strong the effects of crosses on clicks are. It is measured only with `train.auto`, for data with
    crosses, if the run does not start from a trained model; otherwise it is the default. With `dry`, it is not measured
    either. The second value also has lines for the log about the choice. Raise ValueError for wrong settings, and
    ValueError or FileNotFoundError if the folder or the model to start from cannot be read.
    """
    config, choice = resolve(Config()), CrossesChoice()
    if not config.train.auto:
        return config, choice
    schema, source = read_schema(dataset), source_settings(config, path)

    def by_effects(effects: CrossEffects) -> Config:
        return resolve_by_rows(resolve, schema, source, effects)

    if source is None and any(field.cross for field in schema.categorical):
        choice = find_cross_effects(dataset, path, schema, by_effects, dry)
    config = by_effects(choice.effects)
    return config, replace(choice, given="" if source else describe_given(config, schema, choice.effects))


def resolve_by_rows(
    resolve: Callable[[Config], Config],
    schema: Schema,
    source: Config | None = None,
    cross_effects: CrossEffects = "none",
) -> Config:
    """Return `resolve(defaults)`. With `train.auto`, the defaults are those that follow from the prepared folder.

    `resolve` applies the user's settings, from a file and the command line, to the defaults that it is given, so the
    user's settings take precedence. If the user sets epochs or batch size, the other defaults follow from these.
    `schema` is the schema of the prepared folder, `source` the settings of the model from which the run starts, if any,
    and `cross_effects` the strength of the crosses' effects on clicks. Errors of `resolve` are passed on.
    """
    config = resolve(Config())
    if not config.train.auto:
        return config

    def by_rows(epochs: int = 0, batch_size: int = 0, steps: int = 0, init_optimizer: bool = False) -> Config:
        values = settings_by_rows(schema, epochs, batch_size, steps, cross_effects)
        if source is not None:
            values = _from_model(values, source, schema, config.train.init_take, init_optimizer)
        return resolve(settings.merge(Config(), values, where="train.auto"))

    first = by_rows()
    init_optimizer = source is not None and _have_same_optimizers(source, first)
    return by_rows(first.train.epochs, first.train.batch_size, first.train.steps, init_optimizer)


def describe_given(config: Config, schema: Schema, cross_effects: CrossEffects) -> str:
    """Return a log line that compares the epochs and the batch size in `config` with the values that `train.auto` would
    choose.

    Return "" if the values are the same.
    """
    chosen = settings_by_rows(schema, steps=config.train.steps, cross_effects=cross_effects)["train"]
    given = {name: value for name, value in chosen.items() if getattr(config.train, name) != value}
    instead = [f"train.{name}={getattr(config.train, name)} in place of {value}" for name, value in given.items()]
    return f"given instead of what train.auto would choose: {', '.join(instead)}" if instead else ""


def settings_by_rows(
    schema: Schema, epochs: int = 0, batch_size: int = 0, steps: int = 0, cross_effects: CrossEffects = "none"
) -> dict[str, Any]:
    """Return the settings that `train.auto` chooses for a prepared folder, as a dict of sections.

    `epochs` and `batch_size` are those of the user, or 0 to choose them, too. If `steps` is not 0, the training ends
    after at most that many steps. `cross_effects` is the strength of the crosses' effects on clicks.

    Only rows with a label and a weight above 0 count as training rows, but batches are cut from all rows. If some rows
    do not count, the batch size is therefore larger, so that a batch has as many counting rows as it would have if all
    rows counted.
    """
    train = schema.splits["train"]
    num_rows, counting = train.num_counting, train.counting_share

    share = _part_of_way(num_rows, _FEW, _MANY)

    def between(few: float, many: float) -> float:
        return _rounded(few * (many / few) ** share)

    searched_batch_size = round(between(1000, 2000), -2)
    batch_size = batch_size or round(min(searched_batch_size, max(num_rows // _STEPS, 1)) / counting)
    few_epochs, few_rate, few_l2 = _WIDE_OF_FEW[cross_effects]
    epochs = epochs or round(between(few_epochs, 3) / 3 ** _part_of_way(num_rows, _MANY, _WHOLE))
    fields = _seen_fields(schema, num_rows)
    few_width = _WIDTH_OF_NUMBERS if schema.num_numeric and not schema.vectors else 64
    width = 2 ** round(math.log2(between(few_width, 256)))
    crosses = [field for field in fields if field.cross]
    by_fields = max(_L2_ROWS_OF_FIELD * (len(fields) - len(crosses)), _LEAST_L2_ROWS_WITH_CROSSES if crosses else 0)
    l2_rows = min(_MOST_L2_ROWS, by_fields, _L2_SHARE_OF_ROWS * num_rows)
    schedule = {
        "name": "cosine",
        "decay_steps": max(1, num_steps(train.rows, epochs, batch_size, steps)),
        "final_factor": _FINAL_FACTOR,
    }
    lower = min(batch_size * counting / _ROWS_FOR_FULL_RATES, 1.0)
    deep_rate, tower_rate = (_rounded(lower * between(3e-3, many)) for many in (2.2e-3, 1.1e-3))
    dropout = {"dropout": _DROPOUT_OF_VECTORS} if schema.vectors else {}
    return {
        "model": {"embedding_dim": 8, "hidden_widths": [width, width // 2], **dropout, **_parts(schema, fields)},
        "loss": {"l2_coef": _rounded(l2_rows / max(num_rows, 1))},
        "wide_optimizer": {
            "name": "ftrl",
            "learning_rate": between(few_rate, 2.5e-1),
            "initial_accumulator": between(1e-6, 1e-8),
            "l1": _rounded(_L1_FOR_MANY * share * 2000 / (batch_size * counting)),
            "l2": _rounded(between(few_l2, 1.8e-3) * searched_batch_size / (batch_size * counting)),
            "schedule": schedule,
        },
        "deep_optimizer": {"name": "adam", "learning_rate": deep_rate, "schedule": schedule},
        "tower_optimizer": {"name": "adam", "learning_rate": tower_rate, "schedule": schedule},
        "train": {"epochs": epochs, "batch_size": batch_size},
    }


def _rounded(value: float) -> float:
    """Return `value` with three significant digits, so that settings are easy to read."""
    return float(f"{value:.3g}")


def _part_of_way(num_rows: int, start: int, end: int) -> float:
    """Return where `num_rows` lies between the numbers of rows `start` (0) and `end` (1) on a logarithmic scale. The
    result is limited to 0 … 1.
    """
    return min(max(math.log(max(num_rows, 1) / start) / math.log(end / start), 0.0), 1.0)


def _from_model(
    values: dict[str, Any], source: Config, schema: Schema, take: str, init_optimizer: bool
) -> dict[str, Any]:
    """Return `values`, the settings of `settings_by_rows`, adapted to a run that starts from a model with the settings
    `source`.

    The result has the model's embedding width and fields and, unless `take` (the setting train.init_take) is "tables",
    its tower. If `take` is "all", the run continues the model's training, so it also has the model's L2 and batch size,
    which suit all rows that the model has seen, and trains for one epoch with lower learning rates. These rates are not
    derived from the source's rates, which may themselves have been lowered for a warm start.
    """
    model = {**values["model"], "embedding_dim": source.model.embedding_dim}
    if take != "tables":
        model |= {name: getattr(source.model, name) for name in OF_TOWER}
    names = [field.name for field in schema.categorical]
    for part in ("wide_fields", "deep_fields"):
        seen = getattr(source.model, part)
        model[part] = None if seen is None else [name for name in names if name in seen]
    values = {**values, "model": model}
    if take != "all":
        return values
    for section in (f"{group}_optimizer" for group in source.optimizers):
        rate = _WARM_RATE * values[section]["learning_rate"]
        values[section] = values[section] | {"learning_rate": _rounded(rate)}
    wide, batches = source.wide_optimizer, source.train.batch_size / values["train"]["batch_size"]
    if isinstance(wide, FtrlOptions):
        penalties = {"l1": _rounded(wide.l1 * batches), "l2": _rounded(wide.l2 * batches)}
        values["wide_optimizer"] |= {"initial_accumulator": wide.initial_accumulator, **penalties}
    values["loss"] = {"l2_coef": source.loss.l2_coef}
    values["train"] = {"epochs": 1, "batch_size": source.train.batch_size, "init_optimizer": init_optimizer}
    return values


def _have_same_optimizers(source: Config, config: Config) -> bool:
    """Return True if a run with the settings `config` can take over the optimizer states of the model that it starts
    from, which was trained with the settings `source`.

    The optimizer states belong to the model's newest weights, so a model whose running means are taken over instead
    does not qualify. The model and the run must have the same optimizers.
    """
    theirs, ours = ([optimizer.name for optimizer in each.optimizers.values()] for each in (source, config))
    return source.train.ema_decay == 0 and theirs == ours


def _seen_fields(schema: Schema, num_rows: int) -> list[CategoricalField]:
    """Return the categorical fields that the model should see: all fields or, if there are too few rows for the bucket
    fields (made of integer columns by prepare.integer_buckets), all except these.
    """
    buckets = {column.name for column in schema.encoding.categorical_columns if column.kind == "bucket"}
    without_buckets = [field for field in schema.categorical if field.name not in buckets]
    num_values = sum(field.num_values for field in without_buckets if not field.cross)
    enough = min(_ROWS_FOR_BUCKETS, _ROWS_OF_VALUE_FOR_BUCKETS * num_values)
    return list(schema.categorical) if num_rows >= enough else without_buckets


def _parts(schema: Schema, fields: list[CategoricalField]) -> dict[str, Any]:
    """Return the settings of the section `model` with which the wide and the deep part of the model see `fields`."""
    if len(fields) == len(schema.categorical) and not any(field.cross for field in fields):
        return {}
    return {part: [field.name for field in fields] for part in ("wide_fields", "deep_fields")}
