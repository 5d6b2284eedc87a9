"""Python functions for programs and notebooks (describe, prepare, train, sweep, evaluate), and `Run`, a run's folder as
an object.

MindSpore is imported by the first call that prepares, trains, evaluates or exports. MindSpore reads the number of
threads only once in a process, so if later calls set `device.threads`, they must set the same number. When a function
returns, MindSpore's execution mode is what it was before.
"""

from __future__ import annotations

import contextlib
import html
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from app.checkpoint.read import Checkpoint
from app.config import device
from app.config.config import Config
from app.config.device import DeviceOptions
from app.evaluation.calibration import Calibrate
from app.evaluation.measure import Evaluation, data_frame
from app.evaluation.measure import describe as describe_evaluation
from app.run.claim import RunIsFinishedError
from app.run.decision import read_state
from app.run.folder import RunFolder, best_of_run, named_or_best, run_config
from app.run.record import EFFECTS, read_runs
from app.run.report import NOT_WRITTEN, leave_report, report_page
from app.run.stop_signals import Stopped
from app.scoring.bundle_folder import read_manifest
from app.scoring.bundle_tables import RowType
from app.scoring.explain import ORDERS, VALUES, FieldEffect, effects_of_log, effects_of_rows, write_effects
from app.scoring.predictor import Predictor
from app.scoring.trained import trained_model
from app.scoring.trained.export_bundle import export
from app.scoring.trained.trained_model import open_trained
from app.training.auto import sweep_runs
from app.training.auto.by_rows import settle
from app.training.start import plan_launch, report_finished
from common import settings, yaml_settings
from common.console import AboveBars, log_stream
from common.process import run_module
from common.text import show
from data_prep.encoding.rows_to_score import arrow_table
from data_prep.options.options_file import PREPARE_SECTION, RECIPE, read_data
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.schema import Schema

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from app.scoring.predictor import RawRows
    from app.training.context import Callback

Log: TypeAlias = "str | Path | Sequence[str | Path] | pa.Table | pd.DataFrame"
Values: TypeAlias = Mapping[str, Any]
BUNDLE = "bundle"  # Name of the bundle in a run's folder to which `Run.predict` and others export the best checkpoint.
LOGGERS = ("app", "data_prep")
# Pattern of a command's option in an error message -> the argument of this module's functions that means the same.
ARGUMENTS = {
    r"--(overwrite|restart|extend|calibrate)\b": r"\1=True",
    r"--(label|by|dataset) (?=\S)": r"\1=",
    r"--rows (?=\d)": "num_rows=",
    r"--version (?=\d)": "version=",
    r"--rows\b": "num_rows",
    r"--vocabulary (?=\S)": "vocabulary_of=",
    r"--vocabulary\b": "vocabulary_of",
    r"--(label|by|data|dataset|output)\b": r"\1",
}


@contextlib.contextmanager
def _errors_name_arguments() -> Iterator[None]:
    """Change error messages for callers in Python: `--label x`, an option of a command, becomes the argument `label=x`.

    This applies to ValueError and OSError raised in the `with` block.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        if "in Python" not in str(error):
            texts = list(error.args)
            for pattern, argument in ARGUMENTS.items():
                texts = [re.sub(pattern, argument, text) if isinstance(text, str) else text for text in texts]
            error.args = tuple(texts)
        raise


@_errors_name_arguments()
def describe(log: Log, **named: Any) -> Any:
    """Propose a description of a log: which column is the label, the kind of each column, and the format of the lines.

    `log` is a file, folder or glob, several of them, or a table of pandas, polars or pyarrow. `named` are the options
    `num_rows`, `label` and `version` of `data_prep.checks.propose.describe`, which also lists the errors. Return a
    `Proposal`, which `prepare` takes as `data`, and whose `as_yaml()` is the text of a file for `--data`.

    >>> import pyarrow as pa
    >>> from app import describe
    >>> table = pa.table({"site": list("abcd") * 50, "price": [1.5, 2.5] * 100, "click": [0, 0, 1, 0, 1] * 40})
    >>> describe(table).as_format().columns
    {'site': 'string', 'price': 'float', 'click': 'label'}
    """
    from data_prep.checks.propose import describe

    table = arrow_table(log)
    return describe(_paths(log) if table is None else table, **named)


@_errors_name_arguments()
def prepare(
    log: Log,
    output: str | Path,
    config: Config | str | Path | None = None,
    data: Any = None,
    overwrite: bool = False,
    restart: bool = False,
    vocabulary_of: str | Path | None = None,
    extend: bool = False,
    version: int | None = None,
    **options: Any,
) -> Schema:
    """Turn a raw log into the prepared folder `output`, and return the folder's schema.

    An unfinished preparation in `output` is resumed, also after Ctrl-C (in a notebook: interrupt).

    - `log`: a file, folder or glob, several of them, or a table of pandas (its index is ignored), polars or pyarrow.
    - `config`: a YAML file of settings (by default configs/auto.yaml), or a `Config`. Only its section `prepare` is
      used.
    - `data`: the description of a log whose columns are not Criteo's: what `describe` returned, or a file or mapping
      with the same content.
    - `overwrite`: replace a complete prepared folder in `output`. `restart`: start anew instead of resuming an
      unfinished preparation.
    - `vocabulary_of`: a prepared folder whose vocabulary (the ids of values) is used, for example for the next day of
      the same log. With `extend`, values that are not in it get new ids.
    - `version`: the version of a Delta table, or the id of a snapshot of an Iceberg table; by default the one that
      the unfinished preparation has read, or else the newest one.
    - `options`: single settings of the section `prepare`, such as `min_count=2`.

    Raise FileNotFoundError, FileExistsError and ValueError in the same cases as `data_prep.pipeline.prepare.prepare`.

    >>> from app import prepare
    >>> schema = prepare("log.txt", "prepared", min_count=2)  # a log in Criteo's format
    >>> schema.splits["train"].rows > 0, len(schema.categorical)
    (True, 39)
    """
    from data_prep.pipeline.prepare import prepare, prepare_table

    table = arrow_table(log)
    changes: dict[str, Any] = {} if data is None else {"data": _described(data)}
    resolved: PrepareOptions = _config(config, {PREPARE_SECTION: {**changes, **options}}).prepare
    if table is not None and data is None and not set(resolved.data.columns) <= set(table.column_names):
        raise ValueError(
            f"the table has not the columns of Criteo's log, which is expected without data; found "
            f"{', '.join(table.column_names)}. Give data=describe(table), or the name of a file of it"
        )
    how: dict[str, Any] = {"overwrite": overwrite, "restart": restart, "extend": extend, "report": True}
    how["version"] = version
    how["vocabulary_of"] = None if vocabulary_of is None else Path(vocabulary_of)
    with log_shown(*LOGGERS), device.process_restored():
        device.prepare_environment(DeviceOptions())
        logging.getLogger("app").info("settings: %s", _name_of(config))
        try:
            if table is not None:
                return prepare_table(table, Path(output), resolved, **how)
            return prepare(_paths(log), Path(output), resolved, **how)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("stopped; the same call resumes") from None


@_errors_name_arguments()
def train(
    config: Config | str | Path | None,
    dataset: str | Path,
    run: str | Path = "device_0",
    on_step: Callable[[Run, Values], object] | None = None,
    on_evaluation: Callable[[Run, Values], object] | None = None,
    **sections: Mapping[str, Any],
) -> Run:
    """Train a model in the folder `run`, as `python -m app train` does, and return the run.

    A run in that folder with the same settings and data is resumed. Ctrl-C (in a notebook: interrupt) finishes the
    step, saves, and raises KeyboardInterrupt. The same call then resumes the run, and the weights at its end have the
    same bits as without the interruption.

    - `config`: a YAML file of settings (None: configs/auto.yaml). If it is a `Config` object, its settings are used as
      they are, and `train.auto` chooses none.
    - `dataset`: the prepared folder.
    - `on_step`: called with the run and the mean losses, learning rates and speed after each `train.log_every_steps`
      steps.
    - `on_evaluation`: called with the run and the metrics after each evaluation on valid rows. An exception from a
      callback ends the training; its checkpoints stay.
    - `sections`: changed settings by section, such as `train={"epochs": 3}`.

    Raise ValueError and OSError for wrong input, FloatingPointError if a loss or gradient is not finite, and OSError if
    the last state cannot be saved.

    >>> from app import train
    >>> run = train("configs/tiny.yaml", "prepared", "device_0", train={"epochs": 1})
    >>> run.status
    'finished'
    """
    path = Path(run).absolute()
    settled, crosses = settle(lambda base: _config(config, sections, base), Path(dataset), path)
    with log_shown(*LOGGERS), device.process_restored():
        device.check_threads(settled.device)
        launch = plan_launch(settled, Path(dataset), path, choices=[f"settings: {_name_of(config)}", *crosses.lines])
        launch = replace(launch, on_step=_for_run(on_step), on_evaluation=_for_run(on_evaluation))
        try:
            launch.check_folder()
        except RunIsFinishedError as finished:
            report_finished(finished)
        else:
            status = launch.train(launch.select_device())
            # A signal stopped the training. SIGTERM is treated like Ctrl-C, because MindSpore may have turned Ctrl-C
            # into SIGTERM.
            if status > 128:
                raise KeyboardInterrupt("stopped after saving; the same call resumes")
            if status == NOT_WRITTEN:
                raise OSError("the training ended, and not all could be written: see its log")
    return Run(path)


@_errors_name_arguments()
def sweep(
    values: Mapping[str, Sequence[Any]],
    dataset: str | Path,
    output: str | Path = "sweep",
    config: str | Path | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Train one run for each combination of settings, as `python -m app sweep` does, and compare the runs.

    `values` maps the names of settings to the values to try. `options` are the options that a sweep's YAML file can
    have (docs/recipes.md): `runs`, `seed`, `parallel`, `rungs` and `keep`. Each run is a process of its own in a
    folder within `output`. If the sweep is interrupted, the same call resumes it.

    Return a pandas table with one row per run, the best first: the run's folder, its settings, its metrics on valid
    rows at its best epoch, and its epochs, status and seconds. Raise ValueError for wrong settings, and
    KeyboardInterrupt after Ctrl-C, when all runs have been saved.

    >>> from app import sweep
    >>> values = {"deep_optimizer.learning_rate": [1e-3, 1e-2]}
    >>> results = sweep(values, "prepared", config="configs/tiny.yaml", rungs=[1])
    >>> results["status"].tolist()
    ['finished', 'finished']
    """
    lists = {name: list(tried) for name, tried in values.items()}
    set_values = {"config": str(config or ""), "dataset": str(dataset), **options}
    with log_shown(*LOGGERS):
        try:
            sweep_options = settings.merge(sweep_runs.SweepOptions(), set_values, where="arguments")
            _, results = sweep_runs.sweep(lists, sweep_options, Path(output), "arguments")
        except Stopped as stopped:
            raise KeyboardInterrupt(f"{stopped}; the same call resumes") from None
    return data_frame(results)


@_errors_name_arguments()
def evaluate(
    run: Run | str | Path,
    split: str = "test",
    dataset: str | Path | None = None,
    checkpoint: str | Path | None = None,
    by: str | Sequence[str] = (),
    calibrate: Calibrate = False,
) -> Evaluation:
    """Evaluate a checkpoint, as `python -m app evaluate` does, print the result and return it.

    - `run`: a run or its folder, whose best checkpoint is evaluated unless `checkpoint` names another.
    - `split`: the rows to evaluate on: train, valid or test. `dataset`: another prepared folder with the same
      vocabulary.
    - `by`: names of categorical fields, `time` or `unseen`. Metrics are also computed for the rows with each frequent
      value of a field, for consecutive parts of the split in the log's order (`time`), or by a row's number of
      out-of-vocabulary values (`unseen`).
    - `calibrate`: first fit the scores to the labels of the valid rows: by Platt's method (True), or by a temperature
      if that lowers the log loss of the valid rows by more than the standard error of the decrease ("auto").

    Raise FileNotFoundError without such a run, and ValueError for a split without rows or an unknown field.

    >>> from app import evaluate
    >>> evaluation = evaluate("device_0", split="valid")  # doctest: +ELLIPSIS
    valid: ... rows, click rate ...
    >>> 0 < evaluation.metrics.auc < 1
    True
    """
    folder = run.path if isinstance(run, Run) else Path(run)
    by = [by] if isinstance(by, str) else by
    opened = named_or_best(folder, Path(checkpoint) if checkpoint else None)
    with log_shown(*LOGGERS), device.process_restored():
        trained = open_trained(opened, Path(dataset) if dataset else None).with_device(target="auto")
        trained_model.check_evaluation(trained, split, by, calibrate)
        device.check_threads(trained.config.device)
        try:
            evaluation = trained_model.evaluate(trained, split, by, calibrate)
        except Stopped as stopped:
            raise KeyboardInterrupt(str(stopped)) from None
        show(describe_evaluation(evaluation))
        trained_model.save_evaluation(evaluation, folder)
    return evaluation


def load_run(run: str | Path = "device_0") -> Run:
    """Return the run whose folder is `run`. Raise FileNotFoundError if the folder contains no run.

    >>> from app import load_run
    >>> with open("log.txt") as log:
    ...     lines = [next(log) for _ in range(3)]
    >>> load_run("device_0").predict(lines).shape  # raw lines, or a table, or mappings of columns to values
    (3,)
    """
    run_config(Path(run))
    return Run(run)


class Run:
    """A run's folder as an object. It gives the run's settings, its metrics, and scores by its best checkpoint."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._predictor: Predictor | None = None

    def __repr__(self) -> str:
        text = "".join(f", {name} {self.metrics[name]:.6f}" for name in ("auc", "log_loss") if self.metrics.get(name))
        return f"<Run {self.path}: {self.status}{text}>"

    @property
    def config(self) -> Config:
        """The run's settings."""
        return run_config(self.path)

    @property
    def status(self) -> str:
        """State of the training: `running`, `finished`, `stopped` or `failed`."""
        return str(read_state(self.path).get("status", "running"))

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl as dictionaries, in their order: one for each `train.log_every_steps` steps, and
        one for each evaluation. Only lines about an evaluation have the key `split`.
        """
        (record,) = read_runs([self.path])
        return record.lines

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the run's best checkpoint on the valid rows, with the step and the epoch of their evaluation.

        The best checkpoint is the one with the best `eval.metric` among the checkpoints that are still on disk.
        `predict` and `export` use it, too. The mapping is empty before the first evaluation.
        """
        with suppress(FileNotFoundError):
            step = best_of_run(self.path).manifest.step
            evaluated = (line for line in self.history if line.get("split") == "valid" and line["step"] == step > 0)
            return next(evaluated, {})
        return {}

    @property
    def curve(self) -> pd.DataFrame:
        """A pandas table of losses, learning rates and speed, one row per `train.log_every_steps` steps."""
        return data_frame([line for line in self.history if "wide_loss" in line], ["step"]).set_index("step")

    @property
    def evaluations(self) -> pd.DataFrame:
        """A pandas table with one row per evaluation: its metrics, with their 95 % intervals where there are any."""
        (record,) = read_runs([self.path])
        frame = data_frame(record.evaluation_lines(), ["split", "step", "epoch", "calibrated"])
        return frame.drop(columns="seconds", errors="ignore")

    def report(self, height: int = 800) -> Report:
        """Return an HTML report on the run as it is now. A notebook shows it in a frame `height` pixels high."""
        return Report(report_page(read_runs([self.path])), height)

    def predict(self, rows: RawRows) -> Any:
        """Return the click probabilities of n raw rows by the best checkpoint, float32 [n].

        `rows` are lines of the log, mappings of columns to values, or a table of pandas, polars or pyarrow. For a
        pandas table the result is a series with the table's index. The first call exports the checkpoint into the
        run's folder.
        """
        return self.predictor.score(rows)

    @overload
    def explain(self, rows: str | bytes | Mapping[str, Any]) -> list[FieldEffect]: ...
    @overload
    def explain(self, rows: RawRows, orders: int = ORDERS) -> Any: ...
    def explain(self, rows: Any, orders: int = ORDERS) -> Any:
        """Explain the best checkpoint's scores: how much each column contributes to the logit of one raw row, or of
        each of several rows.

        For one row (a line or a mapping) the result is a list of `FieldEffect`, for several rows a table with the
        intercept and one column for each column of the log. See `Predictor.explain`.
        """
        return self.predictor.explain(rows, orders)

    def effects(self, log: Log, values: int = VALUES) -> pd.DataFrame:
        """Return a pandas table of the columns' average effects on the scores of a log.

        The table is also written into the run's folder, and the run's report.html is written anew with it. `log` is a
        table or files. From files, at most `app.scoring.explain.ROWS` lines are drawn at random. `values` is the
        maximum number of values listed for a categorical column. See `Predictor.effects`.
        """
        if arrow_table(log) is None:
            table = effects_of_log(self.predictor, _paths(log), values=values)
        else:
            table = effects_of_rows(self.predictor, self.predictor.parsed(log), values)
        write_effects(table, self.path / EFFECTS)
        leave_report(self.path)
        return table.to_pandas()

    @property
    def predictor(self) -> Predictor:
        """The bundle of the best checkpoint, opened as a `Predictor`. If the run's folder has no bundle of this
        checkpoint, export it first.
        """
        best, folder = best_of_run(self.path), self.path / BUNDLE
        if self._predictor is None or self._predictor.manifest.checkpoint["id"] != best.manifest.id:
            # Id of the checkpoint from which the bundle in the run's folder was exported, or "" if there is no readable
            # bundle.
            exported = ""
            with suppress(OSError, ValueError):
                exported = str(read_manifest(folder).checkpoint["id"])
            if exported != best.manifest.id:
                self._export(best, folder)
            self._predictor = self._open(folder)
        return self._predictor

    @_errors_name_arguments()
    def export(self, bundle: str | Path, rows: RowType = "float32", calibrate: Calibrate = False) -> Predictor:
        """Export the best checkpoint to the folder `bundle`, replacing an existing one. Return the opened bundle.

        `rows` is the type in which the bundle stores embedding rows. `calibrate` fits the scores to the click rates of
        the valid rows, as in `evaluate`.
        """
        self._export(best_of_run(self.path), Path(bundle), rows, calibrate)
        return self._open(Path(bundle))

    def _export(
        self, checkpoint: Checkpoint, bundle: Path, rows: RowType = "float32", calibrate: Calibrate = False
    ) -> None:
        """Export `checkpoint` to the folder `bundle`, replacing an existing one.

        If this process has imported MindSpore with another number of threads than the run's settings ask for, start
        another process that exports.
        """
        with log_shown(*LOGGERS), device.process_restored():
            try:
                device.check_threads(self.config.device)
            except ValueError:
                words = [str(checkpoint.path), str(bundle), f"rows={rows}", "--overwrite"]
                words += [f"--calibrate={'platt' if calibrate is True else calibrate}"] if calibrate else []
                run_module("app", "export", *words)
            else:
                export(open_trained(checkpoint), bundle, rows, calibrate=calibrate, overwrite=True)

    def _open(self, bundle: Path) -> Predictor:
        return Predictor.open(bundle, self.config.device.num_threads)


class Report:
    """An HTML page that a notebook shows in a frame. The page loads no other files or addresses."""

    def __init__(self, page: str, height: int) -> None:
        self.page, self._height = page, height

    def _repr_html_(self) -> str:
        frame = f'width="100%" height="{self._height}" style="border: 0"'
        return f'<iframe srcdoc="{html.escape(self.page)}" {frame}></iframe>'


def _paths(log: Any) -> list[str]:
    listed = [log] if isinstance(log, str | Path) else log
    if not isinstance(listed, Sequence) or not all(isinstance(one, str | Path) for one in listed):
        raise TypeError(
            f"a log is a path, several of them, or a table of pandas, polars or pyarrow; found {type(log).__name__}"
        )
    return [str(one) for one in listed]


def _described(data: Any) -> Mapping[str, Any]:
    """Return the description of a log as a mapping. `data` is what `describe` returned, a YAML text, a mapping, or the
    path of a YAML file.
    """
    text = data.as_yaml() if hasattr(data, "as_yaml") else data
    if isinstance(text, str) and "\n" in text:
        return yaml_settings.parse_yaml(text, where="data")
    return text if isinstance(text, Mapping) else read_data(Path(text))


def _config(config: Config | str | Path | None, sections: Mapping[str, Any], base: Config | None = None) -> Config:
    if not isinstance(config, Config):
        config = yaml_settings.resolve(Config, Path(config or RECIPE), base=base)
    return settings.merge(config, sections, where="arguments")


def _name_of(config: Config | str | Path | None) -> str:
    return "a Config object" if isinstance(config, Config) else str(config or RECIPE)


def _for_run(call: Callable[[Run, Values], object] | None) -> tuple[Callback, ...]:
    """Return the user's callback `call` as a tuple of callbacks for the training: a single one, which turns the
    training's `RunFolder` into the `Run` that `call` takes. Return an empty tuple if `call` is None.
    """
    if call is None:
        return ()

    def called(folder: RunFolder, values: Values) -> None:
        call(Run(folder.path), values)

    return (called,)


@contextlib.contextmanager
def log_shown(*names: str) -> Iterator[None]:
    """Show the log messages of the loggers `names` during the `with` block, unless the program has already configured
    logging. They go to standard error, or in a notebook to standard output.
    """
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    handler = None if logging.getLogger().handlers else AboveBars(log_stream())
    for logger in loggers:
        # Set the level even if no handler is added here, because the run's own log file needs these messages, too.
        logger.setLevel(logging.INFO)
        if handler is not None:
            logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
            if handler is not None:
                logger.removeHandler(handler)
