"""Load a checkpoint's model for scoring."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from app.checkpoint.read import scoring_arrays
from app.config.device import select_device
from app.distributed.process_group import ONE_PROCESS, ProcessGroup
from app.evaluation.measure import Scorer
from app.model.dense_state import write_parameter
from app.model.native_tower import NativeModel, scores_natively
from app.scoring.trained.trained_model import Trained
from app.tables.backends import pick_host_backend
from app.tables.native.storage import AUTO
from app.training.assemble import check_dense, fold_numeric, logits_of, rows_for_device
from app.training.learning_rates import LearningRates, table_spec
from app.training.parallel.data_parallel import over_ranks
from app.training.step.step import score_batch


def load_for_scoring(trained: Trained, group: ProcessGroup = ONE_PROCESS) -> Scorer:
    """Return a `Scorer`, which scores batches with a checkpoint's model. The model's tables are loaded into host
    memory, whatever backend (`tables.backend`) trained the model.

    The ranks of `group` divide the rows of the tables among them and share each batch. Raise ValueError, naming the
    array, if an array is missing in the checkpoint or has another shape than the settings say.
    """
    checkpoint, config, schema = trained.checkpoint, trained.config, trained.schema
    step = checkpoint.manifest.step
    spec = table_spec(config, schema)
    if not Path(config.tables.storage).is_dir():  # The folder may be on the machine that trained the model.
        config = replace(config, tables=replace(config.tables, storage=AUTO))
    rates = LearningRates(config.optimizers)
    rates.load_state(checkpoint.manifest.schedules)
    batch_rows = group.batch_rows(trained.batch_size)
    backend, folder = pick_host_backend(), checkpoint.path.parent
    rows = rows_for_device(config, spec, rates.of_tables(), backend, group, batch_rows, folder)
    with rows.tables.loading(step) as place:
        arrays = checkpoint.read_once(spec, place)
    if not config.model.fold_numeric:
        arrays = fold_numeric(checkpoint.state(), spec, schema.num_numeric)
    arrays = scoring_arrays(arrays, step)
    if scores_natively(config):
        model = NativeModel(config, schema)
    else:
        from app.model.wide_deep import make_model

        select_device(config.device)
        model = make_model(config, schema)
    parameters = model.named_parameters() | model.named_statistics()
    dense = {name: array for name, array in arrays.items() if name in parameters}
    check_dense(dense, {name: parameter.shape for name, parameter in parameters.items()})
    for name, parameter in parameters.items():
        write_parameter(parameter, dense[name])
    scorer = Scorer(rows.prepare, partial(score_batch, rows, logits_of(model, config)))
    return over_ranks(scorer, group) if group.sharded else scorer
