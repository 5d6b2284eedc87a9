"""Run the dense model and its optimizers on a CPU without a MindSpore graph, by a few calls of `csrc/tower_step.h`.

MindSpore takes milliseconds to start the kernels of a graph. With small batches that is most of the time of a step. The
calls work on the memory of the model's own parameters and optimizer states. So if a MindSpore graph runs between two
calls, it sees the same values.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from app.config.config import LossOptions
from app.model.dense_layer import memory_of
from app.model.graph import DEEP_LOSS, NUM_BAD, WIDE_LOSS, HostGraph, OnDevice
from app.model.layer_library import LIBRARY, TowerBatch, TowerPointers, TowerShape, check_status
from app.model.native_layer import NativeLayer
from app.model.tower_optimizers import CLIP_EPSILON, Adam, DenseOptimizers, Ftrl
from app.model.wide_deep import WideDeep
from app.tables.checks import LARGEST_GRADIENT
from common.arrays.pages import HugeBuffer
from common.native_library import address, output_address

Arrays = dict[str, np.ndarray]  # Arrays by the names of the model's parameters.
# Function that sums each array over all ranks. It returns the sums, valid until the next call, and True if all of them
# are finite.
SumOverRanks = Callable[[list[np.ndarray]], tuple[list[np.ndarray], bool]]


class NativeTower:
    """Computes logits by one C++ call, for a model for which `covers` returns True."""

    def __init__(self, model: WideDeep, loss: LossOptions | None = None) -> None:
        self.parameters = {name: memory_of(parameter) for name, parameter in model.named_parameters().items()}
        self._arrays = TowerPointers(self.parameters)
        tower, loss = model.tower, loss or LossOptions()
        rows = self.parameters.get("tower.numeric_rows", np.empty((0, 0), np.float32))
        widths = [self.parameters[f"tower.bias_{i}"].size for i in range(tower.num_hidden)]
        self._widths = np.array(widths, np.int64)
        self._shape = TowerShape(
            0,
            len(self.parameters["tower.matrix_0"]),
            len(rows),
            len(self.parameters.get("tower.vector_matrix", ())),
            rows.shape[1],
            tower.num_hidden,
            output_address(self._widths),
            tower.layers[0].bfloat16,
            loss.loss_scale,
            loss.l2_coef,
            loss.label_smoothing,
            float(LARGEST_GRADIENT),
        )

    @staticmethod
    def covers(model: WideDeep) -> bool:
        """Return True if C++ can run the model without a graph.

        All hidden layers must be `NativeLayer`, without distinct rows or batch normalization. The environment variable
        `app.config.device.GRAPH`, which asks for a graph, must not be set.
        """
        tower = model.tower
        if tower.as_graph or tower.distinct_layer is not None:
            return False
        return all(isinstance(layer, NativeLayer) for layer in tower.layers)

    def logits(self, deep: np.ndarray, wide: np.ndarray, numeric: np.ndarray) -> np.ndarray:
        """Return the model's logits [B] from deep rows [B, K], summed wide rows [B] and numeric inputs [B, N + M]."""
        logits = np.empty(len(wide), np.float32)
        self._shape.num_rows = len(wide)
        batch = TowerBatch(*self._addresses(deep, wide, numeric))
        check_status(
            LIBRARY.load().tower_logits(
                self._pointer(), self._arrays.pointer, ctypes.byref(batch), output_address(logits)
            )
        )
        return logits

    def _pointer(self) -> Any:
        return ctypes.pointer(self._shape)

    def _addresses(self, deep: np.ndarray, wide: np.ndarray, numeric: np.ndarray) -> tuple[int, int, int]:
        shape = self._shape
        return (
            address(deep, np.float32, shape.num_rows, shape.num_inputs),
            address(wide, np.float32, shape.num_rows),
            address(numeric, np.float32, shape.num_rows, shape.num_numeric + shape.num_vector),
        )


class NativeStep(NativeTower, HostGraph):
    """A training step without a graph, with the inputs and results of `DeviceGraph`.

    It runs forward pass, losses, backward pass and the check of finite values. If all values are finite, it updates the
    dense parameters (all weights outside the tables).
    """

    is_native = True

    def __init__(
        self,
        model: WideDeep,
        optimizers: DenseOptimizers,
        loss: LossOptions,
        drops: bool,
        sum_over_ranks: SumOverRanks | None = None,
    ) -> None:
        """`drops` is True if dropout is used. With `sum_over_ranks`, losses, dense gradients and the check of finite
        values are combined over the ranks (processes).
        """
        super().__init__(model, loss)
        self.sum = sum_over_ranks
        self._drops, self._loss_scale, self._optimizers = drops, loss.loss_scale, optimizers
        self._deep_gradient = HugeBuffer()
        self._gradients = {name: np.empty_like(values) for name, values in self.parameters.items()}
        self._gradient_arrays = TowerPointers(self._gradients)
        assert isinstance(optimizers.tower, Adam)
        assert isinstance(optimizers.wide, Ftrl)
        wide = optimizers.wide
        states = zip(wide.names, wide.weights, wide.accumulators, wide.linear, strict=True)
        self._wide = [(*map(memory_of, arrays), self._gradients[name]) for name, *arrays in states]
        self._wide_addresses = [(arrays[0].size, *map(output_address, arrays)) for arrays in self._wide]
        self._tower_names = [name for name in self.parameters if name.startswith("tower.")]
        self._adam = _AdamCall(optimizers.tower, [self._gradients[name] for name in self._tower_names])

    @staticmethod
    def takes(model: WideDeep, optimizers: DenseOptimizers) -> bool:
        """Return True if C++ can run the whole step without a graph.

        `covers` must return True for the model. The wide head's optimizer must be FTRL, and the tower's Adam or AdamW.
        """
        return (
            NativeTower.covers(model)
            and isinstance(optimizers.wide, Ftrl)
            and isinstance(optimizers.tower, Adam)
            and optimizers.tower.native is not None
        )

    def __call__(self, *arrays: np.ndarray, **named: np.ndarray) -> tuple[float, float, bool, np.ndarray, np.ndarray]:
        """Take one step. Return deep loss, wide loss, a flag that all values are finite, and the gradients of the deep
        and the wide rows.

        The arguments are those of `LossCell.construct`. The deep gradients are valid until the next call.
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
        inputs = self._pointer(), self._arrays.pointer, ctypes.byref(batch), self._gradient_arrays.pointer
        check_status(
            LIBRARY.load().tower_gradients(*inputs, *map(output_address, (deep_gradient, wide_gradient, result)))
        )
        # The kernels write 1 if all values are finite. The sum over ranks must count the ranks with bad values instead.
        result[NUM_BAD] = 1 - result[NUM_BAD]
        if self.sum is not None:
            # The sum may overflow even if the values of each rank are finite.
            (result, *sums), finite_sums = self.sum([result, *self._gradients.values()])
            for gradient, summed in zip(self._gradients.values(), sums, strict=True):
                gradient[...] = summed
            result[NUM_BAD] += not finite_sums
        finite = result[NUM_BAD] == 0
        if finite:
            self._update()
        return float(result[DEEP_LOSS]), float(result[WIDE_LOSS]), bool(finite), deep_gradient, wide_gradient

    def _update(self) -> None:
        optimizers = self._optimizers
        if optimizers.tower_clip_norm:
            self._clip(optimizers.tower_clip_norm)
        rate = float(memory_of(optimizers.wide.learning_rate))
        options = self._loss_scale, rate, optimizers.wide.l1, optimizers.wide.l2
        for arrays in self._wide_addresses:
            LIBRARY.load().dense_ftrl(*arrays, *options)
        self._adam()
        if optimizers.means is not None:
            mean_rate = memory_of(optimizers.means.rate)
            for weight, mean in zip(optimizers.means.weights, optimizers.means.means, strict=True):
                values = memory_of(mean)
                values += mean_rate * (memory_of(weight) - values)

    def _clip(self, clip_norm: float) -> None:
        gradients = [self._gradients[name] for name in self._tower_names]
        norm = np.sqrt(sum(float(np.vdot(g, g)) for g in gradients)) / self._loss_scale
        factor = np.float32(min(clip_norm / (norm + CLIP_EPSILON), 1.0))
        for gradient in gradients:
            gradient *= factor


def logits_of(model: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Return a function that computes the model's logits [B] from NumPy arrays, in C++ if `NativeTower` can run it.

    `model` is a `WideDeep`, or a callable with the same arguments that computes the logits of a tower that is split
    over several ranks.
    """
    if isinstance(model, WideDeep) and NativeTower.covers(model):
        return NativeTower(model).logits
    return OnDevice(model)


class _AdamCall:
    """Calls `dense_adam` of dense_step.h for the tower's weights, moments and gradients."""

    def __init__(self, adam: Adam, gradients: list[np.ndarray]) -> None:
        inputs = (adam.constants, adam.learning_rate, *adam.powers, *adam.weights, *adam.moments)
        self._arrays = [*map(memory_of, inputs), *gradients, np.empty(1, np.float32)]
        shapes = [np.array(values.shape, np.int64) for values in self._arrays]
        count = len(self._arrays)
        self._shape_arrays = shapes  # The pointers in `_shapes` point to these arrays, which must not be freed.
        self._values = (ctypes.c_void_p * count)(*map(output_address, self._arrays))
        self._dims = (ctypes.c_int * count)(*(values.ndim for values in self._arrays))
        self._shapes = (ctypes.c_void_p * count)(*(output_address(shape) for shape in shapes))

    def __call__(self) -> None:
        lists = self._values, self._dims, self._shapes
        check_status(LIBRARY.load().dense_adam(len(self._arrays), *lists, None, None, None))
