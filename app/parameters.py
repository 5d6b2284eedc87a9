"""Values put into MindSpore parameters from outside a graph."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, ops


def write(parameter: Parameter, values: np.ndarray) -> None:
    """Set all values of a parameter, in the memory it has.

    Not `set_data`: where a compiled graph updates the parameter in a branch, as `if finite` is, it goes on writing to
    the memory from before, and every later update is lost (MindSpore 2.10 on CPU).
    """
    ops.assign(parameter, Tensor(values))
