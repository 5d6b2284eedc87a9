"""Saving a tower that lies on several ranks: integrated or in slices, and the strategy file.

    <folder>/step-00000008/   a checkpoint of the project: rows of the tables and, unless in slices, whole dense arrays
    <folder>/dense-<rank>-of-<ranks>.safetensors      the slices that each rank holds
    <folder>/strategy.json                            ranks, mode and strategies, and the shapes of the whole parameters

The name of a slice contains its place in the whole array: `tower.matrix_0[0:104, 0:32] of [208, 32]`. So the files
alone say how to join the slices, and a tower can be loaded under any other mode or number of ranks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.numpy import load_file, save_file

from app.checkpoint.manifest import Manifest
from app.checkpoint.read import Checkpoint, join
from app.checkpoint.write import ModelState, write_checkpoint
from app.run.identity import data_identity
from common import settings

if TYPE_CHECKING:
    from examples.tower_over_ranks.training import Training

STRATEGY_FILE = "strategy.json"


def slice_name(name: str, block: Sequence[slice], shape: Sequence[int]) -> str:
    """Return the name under which a slice of the array `name` is saved. `block` is its place in the whole array.

    `shape` is the shape of the whole array.
    """
    return f"{name}[{', '.join(f'{part.start}:{part.stop}' for part in block)}] of {list(shape)}"


def write_strategy(folder: Path, mode: str, training: Training) -> None:
    """Write strategy.json into `folder`: how the tower lies on the ranks, and the shapes of its whole parameters."""
    shapes = {name: array.shape for name, array in training.gather().items() if name.startswith("tower.")}
    content = {"num_ranks": training.group.size, "mode": mode, **training.tower.describe(), "shapes": shapes}
    if training.group.rank == 0:
        (folder / STRATEGY_FILE).write_text(json.dumps(content, indent=1) + "\n")


def read_strategies(path: Path) -> dict[str, str]:
    """Return the strategies in a strategy file, as texts by layer.

    Raise FileNotFoundError if there is no such file, and ValueError if it contains no strategies.
    """
    try:
        strategies: dict[str, str] = json.loads(path.read_text())["strategies"]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no strategy file, which is JSON with a strategy a layer ({error})") from error
    return strategies


def save(folder: Path, training: Training, epoch: int, sliced: bool) -> None:
    """Save the model: the rows of the tables, and the dense arrays as a whole or, if `sliced`, as each rank's slices.

    Without `sliced` it is a checkpoint that the project's commands can read.
    """
    group, config, schema = training.group, training.config, training.schema
    if group.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        for slices_before in folder.glob("dense-*"):
            slices_before.unlink()
    snapshot = training.step.tables.snapshot(changed_only=False)
    dense = {} if sliced else training.gather()
    manifest = Manifest(
        step=training.step.tables.step,
        epoch=epoch + 1,
        epoch_step=0,
        config=settings.as_dict(config),
        dataset=str(training.dataset.resolve()),
        data=data_identity(schema),
        metrics={},
        selection={},
        schedules=training.rates.state(),
    )
    write_checkpoint(folder, ModelState(dense, snapshot.tables), manifest, group=group)
    snapshot.release(saved=True)
    if sliced:
        save_file(training.slices(), folder / f"dense-{group.rank}-of-{group.size}.safetensors")
    group.gather(None)  # Wait until all ranks have saved.


def load(folder: Path, training: Training) -> int:
    """Load a model that `save` saved under any mode and number of ranks.

    Return the number of epochs it was trained for.
    """
    path = max(folder.glob("step-*"), default=None)
    if path is None:
        raise FileNotFoundError(f"{folder} has no checkpoint step-*; save one there with --save")
    checkpoint = Checkpoint.open(path)
    training.rates.load_state(checkpoint.manifest.schedules)
    with training.step.tables.loading(checkpoint.manifest.step) as place:
        dense = checkpoint.read_once(training.step.tables.spec, place)
    slices: list[tuple[str, Any]] = [item for file in folder.glob("dense-*") for item in load_file(file).items()]
    training.write(dense | join(slices))
    return checkpoint.manifest.epoch - 1
