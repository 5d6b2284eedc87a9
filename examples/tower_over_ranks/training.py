"""Train a model whose tower is split over ranks as a mode says, with the project's tables, step and batches."""

from __future__ import annotations

from pathlib import Path

from mindspore import Parameter

from app.config.config import Config
from app.config.device import deprecations_silenced
from app.distributed.process_group import MpiGroup
from app.evaluation.measure import Scorer, measure
from app.evaluation.metrics import Metrics
from app.model.dense_state import DropoutNoise, write_parameter
from app.model.graph import OnDevice
from app.model.tower_optimizers import DenseOptimizers
from app.tables.backends import table_spec
from app.training.assemble import check_dense
from app.training.learning_rates import LearningRates
from app.training.step.step import ByPosition, DataParallelStep, HostTablesStep, Losses, StepSettings
from data_prep.prepared.batches import mean_training_weight, read_batches, training_order
from data_prep.prepared.schema import read_schema
from examples.tower_over_ranks.accelerator import MindSporeSplit
from examples.tower_over_ranks.optimizer_shards import OptimizerShards
from examples.tower_over_ranks.pipeline import Pipeline
from examples.tower_over_ranks.recompute import Recompute
from examples.tower_over_ranks.split_tower import SplitTower
from examples.tower_over_ranks.whole_tower import Arrays, Options, WholeTower

MODES: dict[str, type[WholeTower]] = {
    "data": WholeTower,
    "split": SplitTower,
    "automatic": SplitTower,
    "pipeline": Pipeline,
    "recompute": Recompute,
}


def mode_class(mode: str, target: str) -> type[WholeTower]:
    """Return the class that implements a mode on the device `target`.

    On Ascend and GPU, MindSpore itself splits products.
    """
    return MindSporeSplit if MODES[mode] is SplitTower and target != "CPU" else MODES[mode]


class Training:
    """A training in one of the modes: the step, and the model state that it changes.

    All ranks call each method together.
    """

    def __init__(self, config: Config, dataset: Path, mode: type[WholeTower], options: Options) -> None:
        """Make model, optimizers and tables at their initial values.

        Raise ValueError for options and settings that do not fit together or do not fit the data.
        """
        from mpi4py import MPI

        self.config, self.dataset, self.schema = config, dataset, read_schema(dataset)
        check_settings(config)
        if self.schema.vectors:
            raise ValueError("this example splits no vectors over ranks; prepare the data with their kind `ignored`")
        self.mean_weight = mean_training_weight(dataset, self.schema)
        self.group: MpiGroup = mode.group_class(MPI.COMM_WORLD)
        self.tower = mode(config, self.schema, self.group, options)
        with deprecations_silenced():
            self.optimizers = DenseOptimizers(self.tower.model, config)
            self.tower.adapt(self.optimizers)
        self.rates = LearningRates(config.optimizers)
        noise = DropoutNoise(config.train.seed, 0.0, len(config.model.hidden_widths))
        numeric, rows = tuple(field.name for field in self.schema.numeric), self.tower.batch_rows
        settings = StepSettings(self.tower.model, self.optimizers, self.rates, noise, config.loss, rows, numeric)
        spec = table_spec(config, self.schema)
        tables = self.group.make_tables("native", spec, self.rates.of_tables(), config.device.num_threads)
        graph, scorer = OnDevice(self.tower.graph(settings)), OnDevice(self.tower.scorer())
        self.step = DataParallelStep(HostTablesStep(ByPosition(tables, rows), settings, graph, scorer), self.group)

    def train_epoch(self, epoch: int) -> list[Losses]:
        """Train for epoch number `epoch` (1, 2, …). Return the losses of its steps, each over the whole batch."""
        options, losses = self.config.train, []
        order = training_order(self.schema, options.seed, epoch)
        for batch in read_batches(self.dataset, self.schema, "train", order, options.batch_size):
            batch = batch.rows_that_count(self.mean_weight)
            losses.append(self.step(batch, self.step.prepare(batch)))
        return losses

    def evaluate(self) -> Metrics:
        """Return the metrics of all rows of the split valid. All ranks score the rows together."""
        scorer, rows = Scorer(self.step.prepare, self.step.score), self.config.train.batch_size
        return measure(scorer, self.dataset, self.schema, "valid", rows).metrics

    def gather(self) -> Arrays:
        """Return the whole dense arrays of the model and the optimizers, on every rank."""
        return self.tower.gather(self._dense())

    def slices(self) -> Arrays:
        """Return the slices of the dense arrays that this rank saves, by name."""
        return self.tower.slices(self._dense())

    def write(self, whole: Arrays) -> None:
        """Copy this rank's parts of the whole dense arrays `whole` into the model and the optimizers.

        Raise ValueError if the arrays are those of another model.
        """
        parameters, parts, step = self._parameters(), self.tower.parts(whole), self.step.tables.step
        check_dense(parts, {name: parameter.shape for name, parameter in parameters.items()})
        for name, part in parts.items():
            write_parameter(parameters[name], part)
        if isinstance(self.optimizers.tower, OptimizerShards):
            self.optimizers.tower.take_weights()
        rates = self.rates.at(max(step, 1))
        self.optimizers.resume_learning_rates(rates["wide"], rates["tower"])

    def _parameters(self) -> dict[str, Parameter]:
        return self.tower.model.named_parameters() | self.optimizers.named_state()

    def _dense(self) -> Arrays:
        return {name: parameter.asnumpy().copy() for name, parameter in self._parameters().items()}


def check_settings(config: Config) -> None:
    """Raise ValueError if a setting is used that these example programs do not support."""
    model, loss = config.model, config.loss
    left_out = {
        "model.dropout": model.dropout,
        "model.batch_norm": model.batch_norm,
        "loss.tower_clip_norm": loss.tower_clip_norm,
        "train.ema_decay": config.train.ema_decay,
        "train.auto": config.train.auto,
        "device.precision": config.device.precision if config.device.precision != "float32" else "",
    }
    for name, value in left_out.items():
        if value:
            raise ValueError(f"{name}={value} is not in this example, which shows how a tower is split; leave it out")
