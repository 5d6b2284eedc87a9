"""A MindSpore `.ckpt` of the model zoo's Wide&Deep, under this project's names.

The zoo (mindspore-ai/models, official/recommend/Wide_and_Deep/src/wide_and_deep.py) looks all fields up, the numeric
ones first. Its parameters, with "network." before them as its training saves them:

    wide_embeddinglookup.embedding_table [V, 1]   (older: Wide_w)
    deep_embeddinglookup.embedding_table [V, D]   (older: V_l2)
    Wide_b [1]    dense_layer_1.weight [fields · D, H], .bias [H]    …    the last dense layer has one output

Here the last layer has no bias: it is added to b, as the wide part's is. Optimizer states are passed over.

Letters: V vocabulary size, D embedding width, H width of a layer.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from app.checkpoint import ModelState
from app.tables.interface import DEEP, WIDE, TableState

PREFIX = "network."
TABLES = {
    WIDE: ("wide_embeddinglookup.embedding_table", "Wide_w"),
    DEEP: ("deep_embeddinglookup.embedding_table", "V_l2"),
}
BIAS = "Wide_b"
LAYER = "dense_layer_"


def read_zoo_checkpoint(path: Path) -> ModelState:
    """The zoo's model, its numeric fields looked up; tables have `rows` alone.

    Raises ValueError where the file is no `.ckpt`, or of another network.
    """
    import mindspore

    try:
        loaded = mindspore.load_checkpoint(str(path))
    except (ValueError, OSError, RuntimeError) as error:
        raise ValueError(f"{path} is no MindSpore checkpoint that can be read: {error}") from error
    found = {_plain(name): parameter.asnumpy() for name, parameter in loaded.items()}
    tables = {table: _rows(path, found, names) for table, names in TABLES.items()}
    return ModelState(_dense(path, found), tables)


def _plain(name: str) -> str:
    while name.startswith(PREFIX):
        name = name.removeprefix(PREFIX)
    return name


def _rows(path: Path, found: dict[str, np.ndarray], names: tuple[str, ...]) -> TableState:
    for name in names:
        if name in found:
            rows = found[name].astype(np.float32, copy=False)
            return TableState(np.arange(len(rows), dtype=np.int64), {"rows": rows})
    raise _not_of_the_zoo(path, found, " or ".join(names))


def _dense(path: Path, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    num_layers = sum(name.startswith(LAYER) and name.endswith(".weight") for name in found)
    wanted = [BIAS, *(f"{LAYER}{i + 1}.{part}" for i in range(max(num_layers, 2)) for part in ("weight", "bias"))]
    for name in wanted:
        if name not in found:
            raise _not_of_the_zoo(path, found, name)
    layers = range(num_layers)
    matrices = {f"tower.matrix_{i}": found[f"{LAYER}{i + 1}.weight"] for i in layers}
    biases = {f"tower.bias_{i}": found[f"{LAYER}{i + 1}.bias"] for i in layers[:-1]}
    return {"wide.bias": found[BIAS] + found[f"{LAYER}{num_layers}.bias"], **matrices, **biases}


def _not_of_the_zoo(path: Path, found: dict[str, np.ndarray], missing: str) -> ValueError:
    shown = ", ".join(sorted(found)[:8])
    return ValueError(f"{path} is not of the model zoo's Wide&Deep: it has no {missing}; found {shown} …")
