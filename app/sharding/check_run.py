"""The tower's parallel modes checked against model, data and ranks, before anything starts."""

from __future__ import annotations

from app.config import Config
from app.process_group import largest_share
from app.sharding.options import check_parallel
from app.sharding.tower_plan import TowerPlan, layer_names, plan_run, tower_shapes
from data_prep.schema import Schema


def check_run(config: Config, schema: Schema, num_ranks: int) -> TowerPlan | None:
    """Who holds what, where the tower is split. Raises ValueError where settings, ranks and shapes do not fit."""
    options, model = config.parallel, config.model
    check_parallel(options, layer_names(model.hidden_widths), num_ranks, config.device.target)
    if not options.is_sharded:
        return None
    unsupported = {
        "model.dropout": model.dropout,
        "loss.tower_clip_norm": config.loss.tower_clip_norm,
    }
    for name, value in unsupported.items():
        if value:
            raise ValueError(f"{name}={value:g} is not there for a tower that is split over ranks (section parallel)")
    if num_ranks == 1:
        raise ValueError("the section parallel splits the tower over ranks, and there is one; raise RANK_SIZE")
    shapes = tower_shapes(schema.num_categorical, schema.num_numeric, model.embedding_dim, model.hidden_widths)
    rows = largest_share(config.train.batch_size, num_ranks) * num_ranks  # short slices are filled up
    return plan_run(shapes, options, rows, num_ranks)
