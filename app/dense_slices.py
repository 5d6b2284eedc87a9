"""Dense arrays saved in slices, a file a rank: `dense-<rank>-of-<ranks>.safetensors`.

A slice's name says what it is a slice of, `tower.matrix_0[0:104, 0:32] of [208, 32]`; an array under its plain name is
whole. So the files tell by themselves how to join them, under whatever strategy they are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

WHOLE_FILE = "dense.safetensors"
SLICE_FILE = re.compile(r"dense-(\d+)-of-(\d+)\.safetensors")
SLICE_NAME = re.compile(r"(.+)\[([\d:, ]+)\] of \[([\d, ]+)\]")


def slice_file(rank: int, num_ranks: int) -> str:
    """The file of one rank's slices."""
    return f"dense-{rank}-of-{num_ranks}.safetensors"


def slice_name(name: str, block: Sequence[slice], shape: Sequence[int]) -> str:
    """The name of the slice `block` of the array `name`, which has `shape` as a whole."""
    return f"{name}[{', '.join(f'{part.start}:{part.stop}' for part in block)}] of {list(shape)}"


def dense_files(names: Iterable[str]) -> list[str]:
    """Which files of a checkpoint hold dense arrays."""
    return [name for name in names if name == WHOLE_FILE or SLICE_FILE.fullmatch(name)]


def join(arrays: Iterable[tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The whole arrays of all files. Raises ValueError where a slice is missing."""
    whole: dict[str, np.ndarray] = {}
    filled: dict[str, int] = {}
    for name, values in arrays:
        found = SLICE_NAME.fullmatch(name)
        if found is None:
            whole[name] = values
            continue
        key, places, lengths = found.groups()
        shape = tuple(int(length) for length in lengths.split(","))
        block = tuple(slice(*map(int, place.split(":"))) for place in places.split(","))
        whole.setdefault(key, np.empty(shape, values.dtype))[block] = values
        filled[key] = filled.get(key, 0) + values.size
    for name, count in filled.items():
        if count != whole[name].size:
            raise ValueError(f"the slices of {name} have {count} values, the whole has {whole[name].size}")
    return whole
