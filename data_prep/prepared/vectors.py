"""Describe the vector columns of a prepared folder, and turn their raw vectors into the inputs of a model.

A vector of width W becomes W + 1 inputs: its components after the scaling that the setting `scale` names (such as
standardization), and an indicator that is 1 if the vector is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MOST_DEVIATIONS = 10.0  # Bound of the standardized components, and of numbers with the transform log1p_standardize.
_BOUND = np.float32(MOST_DEVIATIONS)
_ROWS_AT_ONCE = 512  # This many rows are scaled at a time, so that their vectors stay in the cache.
NORM_RANKS = np.linspace(0, 1, 11)  # Ranks of the quantiles in `VectorField.norms`.


@dataclass(frozen=True)
class VectorField:
    """A vector column of the prepared rows, as schema.json describes it.

    The statistics are those of the training rows with a label and a weight above 0, estimated from a sample. `mean` and
    `deviation` have the mean and the standard deviation of each component: of the raw component, or with scale "norm"
    of the component after the division by the vector's Euclidean length. A deviation of 0 marks a constant component.
    """

    name: str
    width: int  # W, the number of components.
    scale: Literal["standardize", "norm", "none"]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    missing: float = 0.0  # Share of the training rows without this vector.
    # Quantiles, at NORM_RANKS, of the Euclidean lengths of the raw vectors. () if all vectors are missing.
    norms: tuple[float, ...] = ()
    # Mean and standard deviation, over the training rows, of the distance that `vector_distances` computes.
    distance: float = 0.0
    distance_deviation: float = 0.0

    @property
    def inputs(self) -> int:
        """Number of inputs that the column has in `Examples.vectors`: its components and the indicator."""
        return self.width + 1

    @functools.cached_property
    def _fitted(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Half of each component's mean [W], and half of the number [W] by which the scale "standardize" divides it.

        A constant component is divided by infinity, which makes it 0.
        """
        mean, deviation = np.array(self.mean, np.float32), np.array(self.deviation, np.float32)
        return mean / 2, np.where(deviation > 0, deviation / 2, np.float32(np.inf))

    @functools.cached_property
    def scaled_mean(self) -> NDArray[np.float32]:
        """Mean [W] of each component after the scaling, as a model sees it."""
        mean = np.array(self.mean, np.float32)
        return np.zeros_like(mean) if self.scale == "standardize" else mean

    @functools.cached_property
    def scaled_deviation(self) -> NDArray[np.float32]:
        """Standard deviation [W] of each component after the scaling. It is 0 for a constant component."""
        deviation = np.array(self.deviation, np.float32)
        return np.sign(deviation) if self.scale == "standardize" else deviation


def vector_slices(fields: Iterable[VectorField]) -> list[slice]:
    """Return, for each vector column, the slice of its components in the last axis of `Examples.vectors`.

    The element after a slice, at its `stop`, is the column's indicator, which is 1 if the vector is missing.
    """
    slices: list[slice] = []
    for field in fields:
        first = slices[-1].stop + 1 if slices else 0
        slices.append(slice(first, first + field.width))
    return slices


def vector_norms(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the Euclidean length of each vector of `values` [n, W]. In float64, no square overflows."""
    return np.sqrt(np.square(values, dtype=np.float64).sum(axis=1))


def divided_by_norm(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the vectors [n, W] divided by their Euclidean lengths. A vector of zeros stays as it is."""
    norms = vector_norms(values)
    return (values / np.where(norms > 0, norms, 1)[:, None]).astype(np.float32)


def scale_vectors(field: VectorField, values: NDArray[np.float32], present: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the inputs [n, W + 1] of a vector column, computed from its raw vectors `values` [n, W].

    A vector that is not `present` becomes zeros and the indicator 1. The inputs of a row do not depend on other rows.
    """
    inputs = np.empty((len(values), field.inputs), np.float32)
    for first in range(0, len(values), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        inputs[rows, : field.width] = _scaled(field, values[rows])
    inputs[~present, : field.width] = 0
    inputs[:, field.width] = ~present
    return inputs


def _scaled(field: VectorField, values: NDArray[np.float32]) -> NDArray[np.float32]:
    if field.scale == "standardize":
        # Half of the mean is subtracted from half of the component, because the whole difference of two large numbers
        # of opposite signs could be infinite.
        half_mean, half_divisor = field._fitted
        with np.errstate(over="ignore"):  # A quotient that overflows becomes infinite, and is clipped.
            scaled = values * np.float32(0.5)
            scaled -= half_mean
            scaled /= half_divisor
        np.clip(scaled, -_BOUND, _BOUND, out=scaled)
    else:
        scaled = divided_by_norm(values) if field.scale == "norm" else values.copy()
    scaled += np.float32(0)  # Turns -0.0 into 0.0, so that the bits do not depend on how a zero was written.
    return scaled


def vector_distances(field: VectorField, scaled: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return how far each vector is from the training mean: the root mean square of its components' deviations [n].

    `scaled` [n, W] are vectors, none of which is missing, after the scaling that `field.scale` names: standardized with
    the training mean and deviation, divided by their Euclidean lengths, or unchanged. A component's deviation is its
    difference from the training mean of the scaled component, in its standard deviations. Components that were constant
    in training are left out. The result is about 1 for vectors that are distributed as in training.
    """
    deviation = field.scaled_deviation.astype(np.float64)
    varies = deviation > 0
    if not varies.any():
        return np.zeros(len(scaled))
    deviations = (scaled[:, varies] - field.scaled_mean.astype(np.float64)[varies]) / deviation[varies]
    return np.sqrt(np.square(deviations).mean(axis=1))


def fit_vector(
    name: str,
    scale: Literal["standardize", "norm", "none"],
    values: NDArray[np.float32],
    missing: float,
) -> VectorField:
    """Return a vector column whose statistics are those of the vectors `values` [k, W], none of which is missing.

    `missing` is the share of the training rows without a vector. Without any vectors, all deviations are 0.
    """
    width = values.shape[1]
    if not len(values):
        zeros = (0.0,) * width
        return VectorField(name, width, scale, zeros, zeros, missing)
    components = (divided_by_norm(values) if scale == "norm" else values).astype(np.float64)
    # Mean and deviation are rounded to float32, the type with which `scale_vectors` computes. The deviation of a
    # constant component is 0. A deviation that is too small to divide by is replaced by 0.
    mean, deviation = components.mean(axis=0).astype(np.float32), components.std(axis=0).astype(np.float32)
    deviation[(np.ptp(components, axis=0) == 0) | (deviation < np.finfo(np.float32).smallest_normal)] = 0
    norms = tuple(np.quantile(vector_norms(values), NORM_RANKS).tolist())
    field = VectorField(name, width, scale, tuple(mean.tolist()), tuple(deviation.tolist()), missing, norms)
    scaled = scale_vectors(field, values, np.ones(len(values), np.bool_))[:, :width]
    distances = vector_distances(field, scaled)
    return replace(field, distance=float(distances.mean()), distance_deviation=float(distances.std()))
