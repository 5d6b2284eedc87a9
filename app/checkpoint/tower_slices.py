"""Read dense arrays that were saved in slices, in one file per rank: `dense-<rank>-of-<ranks>.safetensors`.

Release 1.0.0 could split the tower (the dense layers of the deep part) over ranks and then saved slices of its arrays.
The program in examples/tower_over_ranks still does so. The name of a slice has its bounds in the whole array and the
shape of that array: `tower.matrix_0[0:104, 0:32] of [208, 32]`. A name without bounds belongs to a whole array. So the
files alone determine how to join the slices.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable

import numpy as np

WHOLE_FILE = "dense.safetensors"
SLICE_FILE = re.compile(r"dense-(\d+)-of-(\d+)\.safetensors")
SLICE_NAME = re.compile(r"(.+)\[((?:\d+:\d+, )*\d+:\d+)\] of \[((?:\d+, )*\d+)\]")


def dense_files(names: Iterable[str]) -> list[str]:
    """Select, from the names of a checkpoint's files, the files with dense arrays (weights outside the tables). Return
    their names.
    """
    return [name for name in names if name == WHOLE_FILE or SLICE_FILE.fullmatch(name)]


def join(arrays: Iterable[tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Join arrays that ranks have saved in slices, and return whole arrays by name. `arrays` has a pair (name, values)
    for each whole array and slice.

    Raise ValueError if the slices of an array do not cover it exactly once.
    """
    whole: dict[str, np.ndarray] = {}
    slices: dict[str, list[tuple[str, str, np.ndarray]]] = {}
    for name, values in arrays:
        match = SLICE_NAME.fullmatch(name)
        if match is None:
            whole[name] = values
        else:
            key, places, lengths = match.groups()
            slices.setdefault(key, []).append((places, lengths, values))
    return whole | {name: _join_slices(name, parts) for name, parts in slices.items()}


def _join_slices(name: str, slices: list[tuple[str, str, np.ndarray]]) -> np.ndarray:
    """Return the whole array `name`, joined from its slices. The tuple of a slice has its bounds in the array as text,
    the shape of the whole array as text, and its values.

    Raise ValueError if the slices do not cover the array exactly once.
    """
    lengths, dtype = slices[0][1], slices[0][2].dtype
    shape = tuple(int(length) for length in lengths.split(", "))
    count = sum(values.size for _, _, values in slices)
    if count != math.prod(shape):  # Check the number of values before allocating memory for the whole array.
        raise ValueError(f"the slices of {name} have {count} values, the whole has {math.prod(shape)}")
    whole, is_filled = np.empty(shape, dtype), np.zeros(shape, bool)
    for places, of, values in slices:
        bounds = [tuple(map(int, place.split(":"))) for place in places.split(", ")]
        fits = of == lengths and values.dtype == dtype and values.shape == tuple(end - start for start, end in bounds)
        if not fits or len(bounds) != len(shape) or any(map(operator.gt, (end for _, end in bounds), shape)):
            raise ValueError(
                f"the slice {name}[{places}] of [{of}] is {values.dtype} {list(values.shape)}; expected one of "
                f"{dtype} [{lengths}]"
            )
        block = tuple(slice(*bound) for bound in bounds)
        whole[block], is_filled[block] = values, True
    if not is_filled.all():
        raise ValueError(f"the slices of {name} overlap")
    return whole
