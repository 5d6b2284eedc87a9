"""Load the C++ library of the tower (`csrc/`), and run the dense model and its optimizers on a CPU without MindSpore,
by a few calls of `csrc/tower_step.h`.

MindSpore takes seconds to import, and milliseconds to start the kernels of a graph. With small batches these
milliseconds are most of the time of a step.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from app.config.config import Config, LossOptions, ModelOptions
from app.config.device import BFLOAT16_FLAGS, GRAPH, DeviceOptions, cpu_flags, runs_on_cpu
from app.config.optimizer_settings import AdamOptions, AdamWOptions, FtrlOptions
from app.model.dense_state import CLIP_EPSILON, AdamState, HostParameter, OptimizerStates, initial_tower
from app.tables.checks import LARGEST_GRADIENT
from common.arrays.pages import HugeBuffer
from common.native_library import NativeLibrary, address, output_address
from data_prep.prepared.schema import Schema

log = logging.getLogger(__name__)

LIBRARY = NativeLibrary(
    "dense_layer",
    __file__,
    ["dense_layer.h", "distinct_layer.h", "tower_step.h"],
    "dense layer is",
    "continue with MindSpore's operators",
)

NATIVE_ACTIVATION = "relu"  # The activation function of the library's layers.

TowerShape, TowerArrays, TowerBatch = (
    LIBRARY.interface.structures[name] for name in ("TowerShape", "TowerArrays", "TowerBatch")
)
# Indices in the array [3] of a step's results, which is summed over the ranks: the two losses, and the number of ranks
# that have found a value that is NaN or infinite.
DEEP_LOSS, WIDE_LOSS, NUM_BAD = range(3)

NUMERIC_MATRIX, FIRST_MATRIX = "tower.numeric_matrix", "tower.matrix_0"


class TowerPointers:
    """The addresses of a model's arrays in the form of the C structure `TowerArrays`.

    `arrays` are the model's arrays by parameter name. The addresses are valid as long as this object lives.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        matrices = [output_address(values) for name, values in arrays.items() if name.startswith("tower.matrix_")]
        biases = [output_address(values) for name, values in arrays.items() if name.startswith("tower.bias_")]
        self._arrays = arrays
        self._lists = [(ctypes.c_void_p * len(addresses))(*addresses) for addresses in (matrices, biases)]
        tower = (f"tower.{name}" for name in ("numeric_rows", "numeric_matrix", "vector_matrix"))
        names = "wide.bias", "wide.numeric_weight", *tower
        plain = (output_address(arrays[name]) if name in arrays else None for name in names)
        self._struct = TowerArrays(*plain, *map(ctypes.addressof, self._lists))
        self.pointer = ctypes.pointer(self._struct)


def distinct_rows(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct rows that the ids of a batch, `ids` [B, C], look up, grouped by field.

    Return three arrays: the ids of the rows, int64 [U]; for each cell of `ids` the index of its row, int32 [B, C]; and
    the index of each field's first row, int32 [C + 1], with U as the last value. Raise OSError if the library is not
    built.
    """
    ids = np.ascontiguousarray(ids, np.int64)
    rows, index = np.empty(ids.size, np.int64), np.empty(ids.shape, np.int32)
    starts = np.empty(ids.shape[1] + 1, np.int32)
    outputs = output_address(rows), output_address(index), output_address(starts)
    if LIBRARY.load().distinct_rows(address(ids, np.int64, *ids.shape), *ids.shape, *outputs):
        raise MemoryError(f"no memory to find the distinct ones of {ids.size} ids")
    return rows[: starts[-1]], index, starts


def check_status(status: int) -> None:
    """Raise RuntimeError unless `status`, the result of a C++ function that multiplies by oneDNN, is 0 (success)."""
    if status:
        raise RuntimeError(f"oneDNN refused the tower's products with status {status}; is there memory left?")


class SumOverRanks(Protocol):
    """The methods of `app.distributed.process_group.GradientSum` that a step uses to sum arrays over all ranks."""

    num_ranks: int

    def allocate(self, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]: ...

    def start(self, num_values: int) -> None: ...

    def finish(self) -> bool: ...

    def gather(self, values: np.ndarray) -> np.ndarray: ...


def has_native_layers(model: ModelOptions) -> bool:
    """Return True if the library's kernels cover the hidden layers of `model`: ReLU without batch normalization."""
    return model.activation == NATIVE_ACTIVATION and not model.batch_norm


def scores_natively(config: Config) -> bool:
    """Return True if C++ can compute the model's logits without a MindSpore graph.

    The tower must run on a CPU, with ReLU and without batch normalization or distinct rows, and the library must be
    built. The environment variable `app.config.device.GRAPH`, which asks for a graph, must not be set. MindSpore is not
    imported, unless that is the only way to find out if the tower runs on a CPU.
    """
    model = config.model
    is_covered = has_native_layers(model) and model.first_layer != "distinct"
    return is_covered and GRAPH not in os.environ and LIBRARY.is_available() and runs_on_cpu(config.device)


def trains_natively(config: Config) -> bool:
    """Return True if C++ can run whole training steps without MindSpore.

    `scores_natively` must be True, the processor must have FMA instructions, and the optimizers of the wide head and of
    the tower must be FTRL and Adam or AdamW.
    """
    wide, tower = config.wide_optimizer, config.tower_optimizer
    are_covered = isinstance(wide, FtrlOptions) and isinstance(tower, AdamOptions | AdamWOptions)
    return are_covered and "fma" in cpu_flags() and scores_natively(config)


def uses_bfloat16(options: DeviceOptions) -> bool:
    """Return True if the native kernels multiply in bfloat16. Warn if the settings ask for it and this CPU cannot."""
    if options.precision != "bfloat16":
        return False
    if not cpu_flags() & BFLOAT16_FLAGS:
        usable = ", ".join(sorted(BFLOAT16_FLAGS))
        log.warning("warning: device.precision=bfloat16 needs one of %s: float32 is used", usable)
        return False
    return True


class NativeModel:
    """The parameters of the dense model in host memory, with the names and initial values of `WideDeep`'s."""

    def __init__(self, config: Config, schema: Schema, folded: bool = True) -> None:
        """If `folded` is True, the embedding rows of numeric fields are parameters of the tower. Otherwise they are
        rows of the tables.
        """
        tower = initial_tower(config, schema, folded)
        arrays = {"wide.bias": np.zeros(1)}
        if "numeric_rows" in tower:
            arrays["wide.numeric_weight"] = np.zeros((schema.num_numeric, 1))
        arrays |= {f"tower.{name}": values for name, values in tower.items()}
        self._parameters = {name: HostParameter(values) for name, values in arrays.items()}

    def named_parameters(self) -> dict[str, HostParameter]:
        """Return all parameters by the names that they have in checkpoints."""
        return self._parameters

    def named_statistics(self) -> dict[str, HostParameter]:
        """Return {}, because a native model has no batch normalization."""
        return {}


class HostGraph(ABC):
    """A function from host arrays to host arrays that computes the dense part of a step, or logits.

    `is_native` is True if it consists of C++ kernels, and False if a MindSpore graph runs.
    """

    is_native = False

    @abstractmethod
    def __call__(self, *arrays: np.ndarray, **named: np.ndarray) -> Any:
        """Run the computation on NumPy arrays. Return its outputs as NumPy arrays: a tuple, or one array alone."""

    def update(self) -> None:  # noqa: B027 (a graph need not override it)
        """Update the dense parameters by the gradients of the last call, unless the call itself has done so."""


class NativeTower:
    """Computes logits by one C++ call, for settings for which `scores_natively` returns True."""

    def __init__(
        self,
        model: Any,
        config: Config,
        loss: LossOptions | None = None,
        largest_summand: float = math.inf,
    ) -> None:
        """`model` is a `NativeModel`, or a `WideDeep` that MindSpore runs. `largest_summand` is the bound of the
        parameters' gradients in a step.
        """
        self.parameters = {name: parameter.asnumpy() for name, parameter in model.named_parameters().items()}
        self._arrays = TowerPointers(self.parameters)
        LIBRARY.load().dense_set_threads(config.device.num_threads)
        loss = loss or config.loss
        rows = self.parameters.get("tower.numeric_rows", np.empty((0, 0), np.float32))
        num_inputs, num_vector = len(self.parameters[FIRST_MATRIX]), len(self.parameters.get("tower.vector_matrix", ()))
        self._widths = np.array(config.model.hidden_widths, np.int64)
        widths = len(self._widths), output_address(self._widths)
        options = uses_bfloat16(config.device), loss.loss_scale, loss.l2_coef, loss.label_smoothing
        bounds = float(LARGEST_GRADIENT), largest_summand
        self._shape = TowerShape(0, num_inputs, len(rows), num_vector, rows.shape[1], *widths, *options, *bounds)

    def logits(self, deep: np.ndarray, wide: np.ndarray, numeric: np.ndarray) -> np.ndarray:
        """Return the model's logits [B] from deep rows [B, K], summed wide rows [B] and numeric inputs [B, N + M]."""
        logits = np.empty(len(wide), np.float32)
        self._shape.num_rows = len(wide)
        batch = TowerBatch(*self._addresses(deep, wide, numeric))
        inputs = ctypes.byref(self._shape), self._arrays.pointer, ctypes.byref(batch)
        check_status(LIBRARY.load().tower_logits(*inputs, output_address(logits)))
        return logits

    def _addresses(self, deep: np.ndarray, wide: np.ndarray, numeric: np.ndarray) -> tuple[int, int, int]:
        shape = self._shape
        return (
            address(deep, np.float32, shape.num_rows, shape.num_inputs),
            address(wide, np.float32, shape.num_rows),
            address(numeric, np.float32, shape.num_rows, shape.num_numeric + shape.num_vector),
        )


class NativeStep(NativeTower, HostGraph):
    """A training step without a graph, with the inputs and results of `DeviceGraph`.

    It runs forward pass, losses, backward pass and the check of finite values. If all values are finite, `update` then
    updates the dense parameters (all weights outside the tables).
    """

    is_native = True

    def __init__(
        self,
        model: NativeModel,
        optimizers: OptimizerStates,
        config: Config,
        loss: LossOptions,
        sum_over_ranks: SumOverRanks | None = None,
    ) -> None:
        """With `sum_over_ranks`, losses, dense gradients and the check of finite values are combined over the ranks
        (processes). The gradients are summed while the kernels compute further gradients and those of the deep rows.
        """
        # Each rank decides whether its gradients refuse a step before their sums over the ranks are known. If the
        # gradients of all ranks are below this bound, the sums are finite in float32.
        super().__init__(model, config, loss, 2.0**127 / sum_over_ranks.num_ranks if sum_over_ranks else math.inf)
        self.sum = sum_over_ranks
        self._drops, self._loss_scale, self._optimizers = config.model.dropout > 0, loss.loss_scale, optimizers
        self._deep_gradient = HugeBuffer()
        self._gradients = {name: np.empty_like(values) for name, values in self.parameters.items()}
        self._of_ranks: tuple[Any, Any] = (None, None)
        if sum_over_ranks is not None:
            # The gradient of the first matrix is known first. The numeric fields' matrix is much larger than the
            # factors of its gradient, so the ranks exchange the factors.
            names = sorted(self.parameters.keys() - {NUMERIC_MATRIX}, key=lambda name: (name != FIRST_MATRIX, name))
            summed = sum_over_ranks.allocate([self.parameters[name].shape for name in names])
            self._gradients |= zip(names, summed, strict=True)
            self._factor = np.empty((self._shape.num_numeric, self._widths[0]), np.float32)
            self._start_sum = ctypes.CFUNCTYPE(None, ctypes.c_int64)(sum_over_ranks.start)
            self._of_ranks = output_address(self._factor), ctypes.cast(self._start_sum, ctypes.c_void_p)
        self._gradient_arrays = TowerPointers(self._gradients)
        wide = optimizers.wide
        states = zip(wide.names, wide.weights, wide.accumulators, wide.linear, strict=True)
        self._wide = [(*(array.asnumpy() for array in arrays), self._gradients[name]) for name, *arrays in states]
        self._wide_addresses = [(arrays[0].size, *map(output_address, arrays)) for arrays in self._wide]
        self._tower_names = [name for name in self.parameters if name.startswith("tower.")]
        self._adam = _AdamCall(optimizers.tower, [self._gradients[name] for name in self._tower_names])

    def __call__(self, *arrays: np.ndarray, **named: np.ndarray) -> tuple[float, float, bool, np.ndarray, np.ndarray]:
        """Return deep loss, wide loss, a flag that all values are finite, and the gradients of the deep and the wide
        rows. No weight changes until `update` applies the gradients.

        The arguments are those of `LossCell.construct`: deep rows, wide rows, numbers, labels, weights of the batch
        rows, and dropout's noise. The deep gradients are valid until the next call.
        """
        deep, wide, numeric, labels, example_weights, noise = arrays
        shape, result = self._shape, np.empty(3, np.float32)
        shape.num_rows = len(wide)
        deep_gradient, wide_gradient = self._deep_gradient.array(deep.shape), np.empty_like(wide)
        batch = TowerBatch(
            *self._addresses(deep, wide, numeric),
            address(noise, np.int32, shape.num_layers, 3) if self._drops else None,
            address(labels, np.float32, shape.num_rows),
            address(example_weights, np.float32, shape.num_rows),
        )
        inputs = ctypes.byref(shape), self._arrays.pointer, ctypes.byref(batch), self._gradient_arrays.pointer
        results = map(output_address, (deep_gradient, wide_gradient, result))
        check_status(LIBRARY.load().tower_gradients(*inputs, *self._of_ranks, *results))
        # The kernels write 1 at this index if all values are finite, else 0. Invert it, so that its sum over the ranks
        # is the number of ranks with bad values.
        result[NUM_BAD] = 1 - result[NUM_BAD]
        if self.sum is not None:
            result = self.sum.gather(result).sum(axis=0)
        # The sum of losses may overflow even if those of each rank are finite.
        finite = result[NUM_BAD] == 0 and np.isfinite(result).all()
        if self.sum is not None and not finite:
            self.sum.finish()
        return float(result[DEEP_LOSS]), float(result[WIDE_LOSS]), bool(finite), deep_gradient, wide_gradient

    def _finish_sum(self, ranks: SumOverRanks) -> None:
        """Wait until the gradients have been summed over the ranks, and sum that of the numeric fields' matrix."""
        ranks.finish()
        if self._factor.size:
            rows, matrix = self.parameters["tower.numeric_rows"], self._gradients[NUMERIC_MATRIX]
            factors = ranks.gather(self._factor)
            arrays = map(output_address, (rows, factors, matrix))
            LIBRARY.load().dense_products(len(factors), *matrix.shape, *arrays)

    def update(self) -> None:
        if self.sum is not None:
            self._finish_sum(self.sum)
        optimizers = self._optimizers
        if optimizers.tower_clip_norm:
            self._clip(optimizers.tower_clip_norm)
        rate = float(optimizers.wide.learning_rate.asnumpy())
        options = self._loss_scale, rate, optimizers.wide.l1, optimizers.wide.l2
        for arrays in self._wide_addresses:
            LIBRARY.load().dense_ftrl(*arrays, *options)
        self._adam()
        if optimizers.means is not None:
            mean_rate = optimizers.means.rate.asnumpy()
            for weight, mean in zip(optimizers.means.weights, optimizers.means.means, strict=True):
                values = mean.asnumpy()
                values += mean_rate * (weight.asnumpy() - values)

    def _clip(self, clip_norm: float) -> None:
        gradients = [self._gradients[name] for name in self._tower_names]
        norm = np.sqrt(sum(float(np.vdot(g, g)) for g in gradients)) / self._loss_scale
        factor = np.float32(min(clip_norm / (norm + CLIP_EPSILON), 1.0))
        for gradient in gradients:
            gradient *= factor


def l2_loss(squared_norm: Any, l2_coef: float) -> Any:
    """Return l2_coef · ½ Σ‖row‖², where `squared_norm` is Σ‖row‖², a number or a MindSpore tensor."""
    return 0.5 * l2_coef * squared_norm


class _AdamCall:
    """Calls `dense_adam` of dense_step.h for the tower's weights, moments and gradients."""

    def __init__(self, adam: AdamState, gradients: list[np.ndarray]) -> None:
        inputs = (adam.constants, adam.learning_rate, *adam.powers, *adam.weights, *adam.moments)
        self._arrays = [*(array.asnumpy() for array in inputs), *gradients, np.empty(1, np.float32)]
        count = len(self._arrays)
        # The pointers in `_shapes` point to these arrays, which must not be freed.
        self._shape_arrays = [np.array(values.shape, np.int64) for values in self._arrays]
        self._values = (ctypes.c_void_p * count)(*map(output_address, self._arrays))
        self._dims = (ctypes.c_int * count)(*(values.ndim for values in self._arrays))
        self._shapes = (ctypes.c_void_p * count)(*map(output_address, self._shape_arrays))

    def __call__(self) -> None:
        lists = self._values, self._dims, self._shapes
        check_status(LIBRARY.load().dense_adam(len(self._arrays), *lists, None, None, None))
