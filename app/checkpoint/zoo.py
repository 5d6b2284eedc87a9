"""Read a MindSpore checkpoint of the model zoo's Wide&Deep, and rename its parameters to this project's names.

The file is a `.ckpt`, or a `.safetensors` of `save_checkpoint(…, format="safetensors")`.

The zoo (mindspore-ai/models, official/recommend/Wide_and_Deep/src/wide_and_deep.py) looks up all fields, the numeric
ones first. Its training saves these parameters, each with the prefix "network.":

    wide_embeddinglookup.embedding_table [V, 1]   (older: Wide_w)
    deep_embeddinglookup.embedding_table [V, D]   (older: V_l2)
    Wide_b [1]    dense_layer_1.weight [fields · D, H], .bias [H]    …    the last dense layer has one output

In this project the last layer has no bias. The bias of the zoo's last layer is added to the bias of the wide part,
since both are added to the logit. Optimizer states are skipped.
"""

from __future__ import annotations

import math
import re
from itertools import groupby
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

import ml_dtypes
import numpy as np

from app.checkpoint.write import ModelState
from app.tables.interface import DEEP, WIDE, TableState
from common.arrays.format import MOST_DIMENSIONS

PREFIX = "network."
TABLES = {
    WIDE: ("wide_embeddinglookup.embedding_table", "Wide_w"),
    DEEP: ("deep_embeddinglookup.embedding_table", "V_l2"),
}
BIAS = "Wide_b"
LAYER = "dense_layer_"
DTYPES = {
    "Float16": np.float16,
    "BFloat16": ml_dtypes.bfloat16,
    "Float32": np.float32,
    "Float64": np.float64,
    "Int32": np.int32,
    "Int64": np.int64,
}
# MindSpore may append 17 bytes with a checksum to the protobuf message. These bytes begin with this mark.
CRC_MARK, CRC_BYTES = b"crc_num", 17


def read_zoo_checkpoint(path: Path) -> ModelState:
    """Return the weights in a checkpoint file of MindSpore's model zoo: tables, and dense arrays under this project's
    names, as float32.

    The tables also have the rows of numeric fields, because the zoo's model looks up numeric fields, too. Each table
    has only the array `rows`, and no optimizer state. Raise ValueError if the file is not a checkpoint, is encrypted,
    or belongs to another network.
    """
    saved = _safetensors(path) if path.suffix == ".safetensors" else _parameters(path)
    parameters = {
        re.sub(f"^({re.escape(PREFIX)})+", "", name): values.astype(np.float32, copy=False)
        for name, values in saved.items()
    }
    tables = {table: _rows(path, parameters, names) for table, names in TABLES.items()}
    return ModelState(_dense(path, parameters), tables)


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a `.safetensors` file by name."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays: dict[str, np.ndarray] = load_file(path)
    except (SafetensorError, KeyError) as error:  # `load_file` raises KeyError if NumPy has no dtype of an array.
        raise ValueError(f"{path} is no safetensors file that can be read: {error}") from error
    return arrays


def _parameters(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a `.ckpt` file by name. Arrays with dtypes that are not in `DTYPES` are left out.

    MindSpore's own reader (mindspore/train/serialization.py, 2.10) is not used: it makes a Parameter of each array, and
    its errors do not name the array. A large array is stored as several pieces under one name, in order, each with the
    shape of the whole array.
    """
    import mindspore  # noqa: F401 (its package must be loaded first)
    from google.protobuf.message import DecodeError
    from mindspore._c_expression import _is_cipher_file
    from mindspore.train.checkpoint_pb2 import Checkpoint

    if _is_cipher_file(str(path)):
        raise ValueError(
            f"{path} is an encrypted checkpoint, expected a plain one; load it with mindspore.load_checkpoint(…, "
            "dec_key=…), and save that with mindspore.save_checkpoint without enc_key"
        )
    content = path.read_bytes()
    if content[-CRC_BYTES:].startswith(CRC_MARK):
        content = content[:-CRC_BYTES]
    try:
        message = Checkpoint.FromString(content)
    except (DecodeError, ValueError) as error:
        raise ValueError(f"{path} is no MindSpore checkpoint that can be read: {error}") from error
    parameters: dict[str, np.ndarray] = {}
    for name, pieces in groupby(message.value, key=lambda value: value.tag):
        tensors = [piece.tensor for piece in pieces if piece.HasField("tensor")]
        # If a name is not valid UTF-8, protobuf's native reader returns it as bytes, and its Python reader raises an
        # error.
        if isinstance(name, bytes):
            raise ValueError(f"{path}: the parameter name {name!r} is no UTF-8")
        if name in parameters:
            raise ValueError(f"{path}: parameter {name!r} is there twice")
        if tensors and tensors[0].tensor_type in DTYPES:
            parameters[name] = _array(path, name, tensors)
    return parameters


def _array(path: Path, name: str, tensors: list[Any]) -> np.ndarray:
    """Return the array of one parameter, joined from the pieces into which MindSpore splits a large array.

    Raise ValueError if the number of bytes does not fit its shape.
    """
    kind, shape = tensors[0].tensor_type, tuple(tensors[0].dims)
    if any(tensor.tensor_type != kind or tuple(tensor.dims) != shape for tensor in tensors):
        raise ValueError(f"{path}: parameter {name!r} has pieces of several shapes or dtypes")
    content = b"".join(tensor.tensor_content for tensor in tensors)
    item_bytes = np.dtype(DTYPES[kind]).itemsize
    if shape == (0,) and len(content) == item_bytes:
        shape = ()  # MindSpore gives a scalar the shape (0,).
    fits = len(shape) <= MOST_DIMENSIONS and min(shape, default=1) >= 1
    if not fits or math.prod(shape) * item_bytes != len(content):
        raise ValueError(
            f"{path}: parameter {name!r} has shape {short_repr(list(shape))} of {item_bytes} bytes a value, "
            f"and {len(content):,} bytes"
        )
    return np.frombuffer(content, DTYPES[kind]).reshape(shape)


def _rows(path: Path, parameters: dict[str, np.ndarray], names: tuple[str, ...]) -> TableState:
    for name in names:
        if name in parameters:
            rows = parameters[name]
            if rows.ndim != 2:
                raise ValueError(f"{path}: parameter {name!r} has shape {list(rows.shape)}, expected [rows, width]")
            return TableState(np.arange(len(rows), dtype=np.int64), {"rows": rows})
    raise _not_of_the_zoo(path, parameters, " or ".join(names))


def _dense(path: Path, parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    num_layers = sum(name.startswith(LAYER) and name.endswith(".weight") for name in parameters)
    required = [BIAS, *(f"{LAYER}{i + 1}.{part}" for i in range(max(num_layers, 2)) for part in ("weight", "bias"))]
    for name in required:
        if name not in parameters:
            raise _not_of_the_zoo(path, parameters, name)
    for name in (BIAS, f"{LAYER}{num_layers}.bias"):
        if parameters[name].size != 1:
            raise ValueError(f"{path}: parameter {name!r} has shape {list(parameters[name].shape)}, expected one value")
    layers = range(num_layers)
    matrices = {f"tower.matrix_{i}": parameters[f"{LAYER}{i + 1}.weight"] for i in layers}
    biases = {f"tower.bias_{i}": parameters[f"{LAYER}{i + 1}.bias"] for i in layers[:-1]}
    return {"wide.bias": parameters[BIAS] + parameters[f"{LAYER}{num_layers}.bias"], **matrices, **biases}


def _not_of_the_zoo(path: Path, parameters: dict[str, np.ndarray], missing: str) -> ValueError:
    names = ", ".join(sorted(parameters)[:8])
    return ValueError(f"{path} is not of the model zoo's Wide&Deep: it has no {missing}; found {names} …")
