"""The commands as functions, for a notebook or a program: prepare, train, evaluate, and the run that they make.

MindSpore is imported when something is prepared, trained, evaluated or exported, with the threads and the precision
that are asked for first: it reads them once a process.
"""

from __future__ import annotations

import contextlib
import html
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from app.checkpoint.read import Checkpoint
from app.cli import sweep as sweep_command
from app.cli.train import settle
from app.config import device
from app.config.config import Config
from app.config.run_settings import DeviceOptions
from app.evaluation.measure import Evaluation, data_frame
from app.evaluation.metric_text import describe as describe_evaluation
from app.run.claim import RunIsFinishedError
from app.run.decision import read_state
from app.run.folder import RunFolder, best_of_run, named_or_best, run_config
from app.run.record import EFFECTS, read_runs
from app.run.report import NOT_WRITTEN, leave_report, report_page
from app.scoring.bundle_folder import read_manifest
from app.scoring.bundle_tables import RowType
from app.scoring.effects import VALUES, effects_of_log, effects_of_rows, write_effects
from app.scoring.explain import ORDERS, FieldEffect
from app.scoring.predictor import Predictor
from app.trained import evaluate_split
from app.trained.export_bundle import export
from app.trained.trained_model import open_trained
from app.training.start import plan_launch, report_finished
from app.training.stop_signals import Stopped
from common import settings, yaml_settings
from common.console import AboveBars
from common.packages import project_environment
from data_prep.encoding.from_table import arrow_table
from data_prep.options.options_file import PREPARE_SECTION, read_data
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.schema import Schema

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from app.scoring.predictor import RawRows
    from app.training.context import Callback

Log: TypeAlias = "str | Path | Sequence[str | Path] | pa.Table | pd.DataFrame"
Values: TypeAlias = Mapping[str, Any]
BUNDLE = "bundle"  # of a run's best checkpoint, in its folder
LOGGERS = ("app", "data_prep")


def describe(log: Log, **named: Any) -> Any:
    """Return the proposed description of a log or a table, which `prepare` takes as `data`.

    `named` and the errors are those of `data_prep.checks.propose.describe`.
    """
    from data_prep.checks.propose import describe

    table = arrow_table(log)
    return describe(_paths(log) if table is None else table, **named)


def prepare(
    log: Log,
    output: str | Path,
    config: Config | str | Path | None = None,
    data: Any = None,
    overwrite: bool = False,
    restart: bool = False,
    vocabulary_of: str | Path | None = None,
    extend: bool = False,
    **options: Any,
) -> Schema:
    """Turn a raw log into the prepared folder `output`, or resume that, and return its schema.

    `log` is a file, a folder, a glob or several of them, or a table of pandas (without its index), polars or pyarrow.
    `config` is a file of settings whose section `prepare` counts. `data` describes a log with other columns than
    Criteo's: what `describe` proposes, a file of it, or its keys. `options` are single settings of the section.
    `overwrite` replaces a prepared folder that is there, `restart` one that is unfinished. `vocabulary_of` is the
    prepared folder whose ids the next day of a log has. With `extend` its new values get ids after those. After Ctrl-C
    (in a notebook: interrupt) the same call resumes. Raises as `data_prep.pipeline.prepare.prepare`.
    """
    from data_prep.pipeline.in_memory import prepare_table
    from data_prep.pipeline.prepare import prepare

    table = arrow_table(log)
    changes: dict[str, Any] = {} if data is None else {"data": _described(data)}
    resolved: PrepareOptions = _config(config, {PREPARE_SECTION: {**changes, **options}}).prepare
    if table is not None and data is None and not set(resolved.data.columns) <= set(table.column_names):
        raise ValueError(
            f"the table has not the columns of Criteo's log, which is expected without data; found "
            f"{', '.join(table.column_names)}. Give data=describe(table), or the name of a file of it"
        )
    if not device.has_loaded_mindspore():
        device.prepare_environment(DeviceOptions())
    how: dict[str, Any] = {"overwrite": overwrite, "restart": restart, "extend": extend, "report": True}
    how["vocabulary_of"] = None if vocabulary_of is None else Path(vocabulary_of)
    with log_shown(*LOGGERS):
        try:
            if table is not None:
                return prepare_table(table, Path(output), resolved, **how)
            return prepare(_paths(log), Path(output), resolved, **how)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("stopped; the same call resumes") from None


def train(
    config: Config | str | Path | None,
    dataset: str | Path,
    run: str | Path = "device_0",
    on_step: Callable[[Run, Values], object] | None = None,
    on_evaluation: Callable[[Run, Values], object] | None = None,
    **sections: Mapping[str, Any],
) -> Run:
    """Train in the folder `run` as `python -m app train`: a new run, or the one there resumed. Return the run.

    `config` is a file of settings, `sections` change them: `train={"epochs": 3}`. (A `Config` counts as set throughout:
    `train.auto` has nothing left to choose.) After each `train.log_every_steps` steps `on_step` is called with their
    means, after each evaluation on valid `on_evaluation` with its metrics. An error that they raise ends the training,
    whose checkpoints stay. Ctrl-C (in a notebook: interrupt) finishes the step, saves, and raises KeyboardInterrupt.
    The same call resumes. Raises ValueError and OSError for wrong input, FloatingPointError if a step is not finite,
    OSError if the last state cannot be saved.
    """
    path = Path(run).absolute()
    settled, lines = settle(lambda base: _config(config, sections, base), Path(dataset), path)
    with log_shown(*LOGGERS):
        device.check_environment(settled.device)
        launch = plan_launch(settled, Path(dataset), path, choices=lines)
        launch = replace(launch, on_step=_for_run(on_step), on_evaluation=_for_run(on_evaluation))
        try:
            launch.check_folder()
        except RunIsFinishedError as finished:
            report_finished(finished)
        else:
            status = launch.train(launch.select_device())
            if status > 128:  # SIGTERM too: MindSpore, which had no chance to block it, may make that of Ctrl-C
                raise KeyboardInterrupt("stopped after saving; the same call resumes")
            if status == NOT_WRITTEN:
                raise OSError("the training ended, and not all could be written: see its log")
    return Run(path)


def sweep(
    values: Mapping[str, Sequence[Any]],
    dataset: str | Path,
    output: str | Path = "sweep",
    config: str | Path | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Train a run for each point of `values` as `python -m app sweep`, and return a pandas table, the best run first.

    `values` are lists by the names of settings, such as {"loss.l2_coef": [1e-3, 1e-2]}. `options` are those of a
    sweep's file: runs, seed, parallel, rungs, keep. A line has the run's folder, its settings, its metrics on valid at
    its best epoch, and what it took. The runs are other processes. The same call resumes. Raises ValueError for wrong
    settings, KeyboardInterrupt after Ctrl-C, with the runs saved.
    """
    lists = {name: list(tried) for name, tried in values.items()}
    set_values = {"config": str(config or ""), "dataset": str(dataset), **options}
    with log_shown(*LOGGERS):
        try:
            sweep_options = settings.merge(sweep_command.SweepOptions(), set_values, where="arguments")
            _, results = sweep_command.sweep(lists, sweep_options, Path(output), "arguments")
        except Stopped as stopped:
            raise KeyboardInterrupt(f"{stopped}; the same call resumes") from None
    return data_frame(results)


def evaluate(
    run: Run | str | Path,
    split: str = "test",
    dataset: str | Path | None = None,
    checkpoint: str | Path | None = None,
    by: str | Sequence[str] = (),
    calibrate: bool = False,
) -> Evaluation:
    """Evaluate a run's best checkpoint or the given one as `python -m app evaluate`, print and return the result.

    `by` are names of fields, `time` and `unseen`: metrics of parts of the rows. `calibrate` fits the scores to valid.
    """
    folder = run.path if isinstance(run, Run) else Path(run)
    by = [by] if isinstance(by, str) else by
    opened = named_or_best(folder, Path(checkpoint) if checkpoint else None)
    with log_shown(*LOGGERS):
        trained = open_trained(opened, Path(dataset) if dataset else None).with_device(target="auto")
        evaluate_split.check_evaluation(trained, split, by, calibrate)
        device.check_environment(trained.config.device)
        try:
            evaluation = evaluate_split.evaluate(trained, split, by, calibrate)
        except Stopped as stopped:
            raise KeyboardInterrupt(str(stopped)) from None
        print(describe_evaluation(evaluation))
        evaluate_split.save_evaluation(evaluation, folder)
    return evaluation


def load_run(run: str | Path = "device_0") -> Run:
    """Return the run in a folder. Raises FileNotFoundError if there is none."""
    run_config(Path(run))
    return Run(run)


class Run:
    """A run's folder: its settings, how its training went, and scores of its best checkpoint."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._predictor: Predictor | None = None

    def __repr__(self) -> str:
        text = "".join(f", {name} {self.metrics[name]:.6f}" for name in ("auc", "log_loss") if self.metrics.get(name))
        return f"<Run {self.path}: {self.status}{text}>"

    @property
    def config(self) -> Config:
        """Its settings."""
        return run_config(self.path)

    @property
    def status(self) -> str:
        """`running`, `finished`, `stopped` or `failed`."""
        return str(read_state(self.path).get("status", "running"))

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl. The lines of evaluations have a `split`."""
        (record,) = read_runs([self.path])
        return record.lines

    @property
    def metrics(self) -> dict[str, Any]:
        """The best evaluation on valid by `eval.metric`, with its step and epoch. Empty before the first."""
        (record,) = read_runs([self.path])
        return record.best_evaluation() or {}

    @property
    def curve(self) -> pd.DataFrame:
        """Losses, learning rates and speed by step, each `train.log_every_steps` steps, as a pandas table."""
        return data_frame([line for line in self.history if "wide_loss" in line], ["step"]).set_index("step")

    @property
    def evaluations(self) -> pd.DataFrame:
        """The evaluations of all splits, a row each, as a pandas table: metrics, and their 95 % intervals if any."""
        (record,) = read_runs([self.path])
        frame = data_frame(record.evaluation_lines(), ["split", "step", "epoch", "calibrated"])
        return frame.drop(columns="seconds", errors="ignore")

    def report(self, height: int = 800) -> Report:
        """Return the report as it is now, which a notebook shows `height` pixels high."""
        return Report(report_page(read_runs([self.path])), height)

    def predict(self, rows: RawRows) -> Any:
        """Return click probabilities of raw rows [n] float32: a table of pandas, polars or pyarrow, mappings, lines.

        Of a pandas table they are a series with its index. By the best checkpoint, which is exported to the run's
        folder when it is first asked for.
        """
        return self.predictor.score(rows)

    @overload
    def explain(self, rows: str | bytes | Mapping[str, Any]) -> list[FieldEffect]: ...
    @overload
    def explain(self, rows: RawRows, orders: int = ORDERS) -> Any: ...
    def explain(self, rows: Any, orders: int = ORDERS) -> Any:
        """Return the effects of one raw row's columns on its logit, or a table of the columns' parts for several rows.

        See `Predictor.explain`.
        """
        return self.predictor.explain(rows, orders)

    def effects(self, log: Log, values: int = VALUES) -> pd.DataFrame:
        """Return the effects of the columns over a log's file or a table, which the run's report shows from then on.

        Of a file, `app.scoring.effects.ROWS` lines are drawn. See `Predictor.effects`.
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
        """The open bundle of the best checkpoint."""
        best, folder = best_of_run(self.path), self.path / BUNDLE
        if self._predictor is None or self._predictor.manifest.checkpoint["id"] != best.manifest.id:
            exported = ""  # the id of the checkpoint that the bundle there was made of
            with suppress(OSError, ValueError):
                exported = str(read_manifest(folder).checkpoint["id"])
            if exported != best.manifest.id:
                self._export(best, folder)
            self._predictor = self._open(folder)
        return self._predictor

    def export(self, bundle: str | Path, rows: RowType = "float32", calibrate: bool = False) -> Predictor:
        """Write the best checkpoint as a bundle, in place of one that is there, and open it.

        `calibrate` fits its scores to the click rates of valid.
        """
        self._export(best_of_run(self.path), Path(bundle), rows, calibrate)
        return self._open(Path(bundle))

    def _export(self, checkpoint: Checkpoint, bundle: Path, rows: RowType = "float32", calibrate: bool = False) -> None:
        """Export in this process, or in another if this one's MindSpore has other threads or precision."""
        with log_shown(*LOGGERS):
            try:
                device.check_environment(replace(self.config.device, precision="float32"))
            except ValueError:
                words = [str(checkpoint.path), str(bundle), f"rows={rows}", "--overwrite"]
                _run_command("export", *words, *(["--calibrate"] if calibrate else []))
            else:
                export(open_trained(checkpoint), bundle, rows, calibrate=calibrate, overwrite=True)

    def _open(self, bundle: Path) -> Predictor:
        return Predictor.open(bundle, self.config.device.num_threads)


class Report:
    """A page that a notebook shows in a frame. `page` is the HTML, which loads nothing from outside."""

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
    """Return the settings of a log's description: a proposal, its text, its keys, or a file of it."""
    text = data.as_yaml() if hasattr(data, "as_yaml") else data
    if isinstance(text, str) and "\n" in text:
        return yaml_settings.parse_yaml(text, where="data")
    return text if isinstance(text, Mapping) else read_data(Path(text))


def _config(config: Config | str | Path | None, sections: Mapping[str, Any], base: Config | None = None) -> Config:
    if not isinstance(config, Config):
        config = yaml_settings.resolve(Config, Path(config) if config else None, base=base)
    return settings.merge(config, sections, where="arguments")


def _for_run(call: Callable[[Run, Values], object] | None) -> tuple[Callback, ...]:
    """Return the callback of the training that calls `call`, if any."""
    if call is None:
        return ()

    def called(folder: RunFolder, values: Values) -> None:
        call(Run(folder.path), values)

    return (called,)


def _run_command(*words: str) -> None:
    """Run `python -m app` in another process. Raises ValueError with its last line if it fails."""
    command, environment = [sys.executable, "-m", "app", *words], project_environment()
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 (our own)
    if process.returncode:
        raise ValueError(process.stderr.strip().rpartition("\n")[2].removeprefix("error: "))


@contextlib.contextmanager
def log_shown(*names: str) -> Iterator[None]:
    """Within the block, write the messages of these loggers to standard error, unless the program shows its log."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    handler = None if logging.getLogger().handlers else AboveBars(sys.stderr)
    for logger in loggers:
        logger.setLevel(logging.INFO)  # a run's own log file has them too
        if handler is not None:
            logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
            if handler is not None:
                logger.removeHandler(handler)
