"""Inputs of graphs."""

from collections.abc import Iterable

import numpy as np


def variable(arrays: Iterable[np.ndarray]) -> tuple:
    """Tensors as a tuple that is an input of a graph. A plain tuple is a constant, for which it is compiled anew."""
    from mindspore import Tensor, mutable

    return mutable(tuple(Tensor(array) for array in arrays))
