"""Check the rules that involve several sections of a run's settings, its data or its number of ranks.

Rules within one section, such as `train`, are checked by the class of the section. `warm_start.source.check_source`
checks the model that a new run starts from, because that requires opening files.
"""

from __future__ import annotations

from pathlib import Path

from app.config.config import Config, EvalOptions
from app.config.optimizer_settings import ConstantSchedule, FtrlOptions, LazyAdamOptions
from app.evaluation.metrics import METRICS
from app.tables.backends import fields_of_model, is_plain, pick_backend
from app.tables.native.storage import AUTO, MEMORY, check_folder
from common.packages import python_command
from common.settings import did_you_mean
from data_prep.prepared.data_files import has_one_class, whole_log
from data_prep.prepared.schema import Schema


def choose_backend(config: Config, schema: Schema, num_ranks: int, num_servers: int) -> str:
    """Return the implementation of the tables that the settings ask for: native, reference or stock.

    Raise ValueError for the first rule that the settings break (`validate`).
    """
    options, plain = config.tables, is_plain(fields_of_model(schema, config.model))
    num_processes, fold_numeric = num_ranks + num_servers, config.model.fold_numeric
    backend = pick_backend(options.backend, fold_numeric, num_processes, stock_obstacle(config, plain) is None)
    validate(config, schema, num_ranks, num_servers, backend)
    return backend


def validate(config: Config, schema: Schema, num_ranks: int, num_servers: int, backend: str) -> None:
    """Raise ValueError for the first rule that the settings break. The message is one line that names these settings.

    `num_ranks` processes train. If `num_servers` is not 0, as many additional processes own all table rows. `backend`
    is the name of the implementation of the tables: native, reference or stock. MindSpore is not imported.
    """
    _validate_data(config, schema)
    if config.tables.dtype == "bfloat16" and config.deep_optimizer.name == "ftrl":
        raise ValueError(
            "tables.dtype=bfloat16 does not go with deep_optimizer.name=ftrl, which makes its rows of sums in float32; "
            "choose another optimizer, or tables.dtype=float32"
        )
    _validate_storage(config.tables.storage, backend)
    _validate_backend(config, num_ranks + num_servers, backend, is_plain(fields_of_model(schema, config.model)))
    tables_schedules = (config.wide_optimizer.schedule, config.deep_optimizer.schedule)
    if num_servers and any(schedule != ConstantSchedule() for schedule in tables_schedules):
        raise ValueError(
            "wide_optimizer.schedule and deep_optimizer.schedule must be constant, without a warm-up, where servers "
            "own the rows: servers receive only gradients; set wide_optimizer.schedule.name=constant and "
            "deep_optimizer.schedule.name=constant (train.auto chooses cosine)"
        )
    if num_ranks > 1 and config.model.batch_norm:
        raise ValueError("model.batch_norm=true is for one rank: each would see the statistics of its own rows alone")


def _validate_data(config: Config, schema: Schema) -> None:
    check_group_field(config.eval, schema)
    if not schema.splits["train"].rows:
        raise ValueError(
            "the data has no rows in split 'train', so there is nothing to learn; prepare it with "
            "prepare.train_fraction above 0, or from more rows"
        )
    _check_both_classes(schema, "train", "there is nothing to learn; ")
    if schema.splits["valid"].rows:
        metric = config.eval.metric
        if METRICS[metric].needs_both_classes:
            _check_both_classes(schema, "valid", f"eval.metric={metric} is undefined; choose eval.metric=log_loss, or ")
        return
    optimizers = (config.wide_optimizer, config.deep_optimizer, config.tower_optimizer)
    needs_rows = {
        "schedule.name=plateau": any(optimizer.schedule.name == "plateau" for optimizer in optimizers),
        f"eval.patience={config.eval.patience}": config.eval.patience,
        f"eval.every_steps={config.eval.every_steps}": config.eval.every_steps,
    }
    for setting, is_set in needs_rows.items():
        if is_set:
            raise ValueError(
                f"{setting} needs rows to evaluate on, and the data has none in split 'valid'; prepare it with "
                "prepare.valid_fraction above 0"
            )


def check_group_field(options: EvalOptions, schema: Schema) -> None:
    """Raise ValueError unless `group_field` is a categorical field of the data (not a list) or a column of kind id."""
    lists = [field.name for field in schema.categorical if field.max_length > 1]
    names = [*(field.name for field in schema.categorical if field.name not in lists), *schema.keys]
    if options.group_field in lists:
        raise ValueError(f"eval.group_field={options.group_field} is a list; choose a field with one value a row")
    if options.group_field in (vector.name for vector in schema.vectors):
        raise ValueError(f"eval.group_field={options.group_field} is a vector; choose a field with one value a row")
    if options.group_field and options.group_field not in names:
        raise ValueError(
            f"eval.group_field={options.group_field} is no categorical field of the data; "
            f"{did_you_mean(options.group_field, names)}"
        )


def _check_both_classes(schema: Schema, name: str, consequence: str) -> None:
    split = schema.splits[name]
    if has_one_class(split):
        which = "none of them is a click" if split.clicks == 0 else "all of them are clicks"
        way = f"{consequence}prepare the data with both classes in every split (prepare.split=stratified)"
        # The whole log has labels of one class, so dividing it into splits in another way would not help.
        if has_one_class(whole_log(schema)):
            way = (
                "the whole log has one class, so there is nothing to learn: "
                f"{python_command('data_prep describe LOG')} names its column and its values, and "
                "--label NAME=VALUE says which value is a click"
            )
        of_rows = f"{split.rows:,} rows"
        if split.unlabelled:
            of_rows = f"{split.num_labelled:,} rows with a label and {split.unlabelled:,} without"
            way += "; if those without a label are the no-clicks, give them one"
        raise ValueError(f"split {name!r} has {of_rows}, and {which}: {way}")


def _validate_storage(storage: str, backend: str) -> None:
    if storage in (MEMORY, AUTO):
        return
    if backend != "native":
        raise ValueError(
            f"tables.storage={storage} is for tables.backend=native, the backend is {backend}, which keeps its rows in "
            "memory; choose tables.storage=memory"
        )
    check_folder(Path(storage))


def _validate_backend(config: Config, num_processes: int, backend: str, plain: bool) -> None:
    asked, folded = config.tables.backend, config.model.fold_numeric
    if num_processes > 1 and (asked == "stock" or (asked == "auto" and not folded)):
        raise ValueError(f"tables.backend=stock is for one rank, found {num_processes}; choose native or auto")
    if not folded and backend != "stock":
        raise ValueError(
            f"model.fold_numeric=false is for tables.backend=stock, the backend is {backend}: host tables leave the "
            "numeric fields to the tower, which is the same function"
        )
    if backend == "stock" and (obstacle := stock_obstacle(config, plain)):
        raise ValueError(obstacle)


def stock_obstacle(config: Config, plain: bool) -> str | None:
    """Return a text that says which setting the backend stock does not support, or None if it supports all of them.

    `plain` is True if both parts of the model see every field and no field is a list (`is_plain`).
    """
    wide, deep = config.wide_optimizer, config.deep_optimizer
    if not plain:
        return (
            "tables.backend=stock is for one id of every field in both parts of the model; crosses, lists, "
            "model.wide_fields and model.deep_fields are for native and reference"
        )
    for section, options, supported in (("wide", wide, FtrlOptions), ("deep", deep, LazyAdamOptions)):
        if not isinstance(options, supported):
            return (
                f"{section}_optimizer.name={options.name} is for tables.backend=native or reference; stock has "
                f"{supported.name} only, as MindSpore's host operators do"
            )
    if (dtype := config.tables.dtype) != "float32":
        return f"tables.dtype={dtype} is for tables.backend=native or reference; stock has float32 only"
    if wide.schedule != ConstantSchedule():
        return (
            f"wide_optimizer.schedule.name={wide.schedule.name} with warmup_steps={wide.schedule.warmup_steps} is for "
            "tables.backend=native or reference: on stock the learning rate of MindSpore's FTRL operator is fixed"
        )
    if decay := config.train.ema_decay:
        return f"train.ema_decay={decay} is for tables.backend=native or reference; stock has none"
    # The steps of these optimizers assign to parameters. In one graph with EmbeddingLookup, which the backend stock
    # has, this crashes MindSpore 2.10's compiler.
    if config.tower_optimizer.name in ("adagrad", "sgd"):
        return (
            f"tower_optimizer.name={config.tower_optimizer.name} is for tables.backend=native or reference; stock "
            "has adam and adamw only"
        )
    return None
