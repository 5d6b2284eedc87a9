"""Hold rows of a prepared folder as arrays, before they are written and after they are read.

`one_hot` converts rows to the sparse features of a logistic regression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.prepared.schema import NO_ID, Schema

# Factor by which numeric columns are multiplied for the logistic regression. Logarithms of counts reach 16; unscaled,
# they would make the solver take ten times as long.
NUMERIC_SCALE = 0.2
NO_VECTORS = np.zeros((0, 0), np.float32)  # Stands for rows without vectors, whatever their number.
VECTORS = "vectors"  # Name of the MindRecord column that holds a row's features of kind vector.
KEY_PREFIX = "key_"  # A column `user` of kind id is stored in the MindRecord column `key_user`.


@dataclass(frozen=True)
class Examples:
    """Ids, numbers and labels of n prepared rows, and weights, keys and vectors if the log has such columns.

    Keys are hashes of the cells of columns of kind id, which identify rows and are no inputs of a model.
    """

    ids: NDArray[np.signedinteger]  # Ids [n, P], int32 or, if V >= 2**31, int64. A list has -1 after its last value.
    numeric: NDArray[np.float32]  # [n, N]
    labels: NDArray[np.float32]  # [n]
    # Weights [n], not negative. None means that all rows have the same weight.
    weights: NDArray[np.float32] | None = None
    # Name of a column of kind id -> hashes [n], 64 bits each, of its texts in the rows.
    keys: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    # [n, K] float32: for each vector column its components after scaling (such as standardization), then 1 if the
    # vector is missing and else 0.
    vectors: NDArray[np.float32] = field(default_factory=lambda: NO_VECTORS)

    def __post_init__(self) -> None:
        if self.vectors is NO_VECTORS:
            object.__setattr__(self, "vectors", np.zeros((len(self.labels), 0), np.float32))

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, selection: NDArray[np.generic] | slice) -> Examples:
        """Return the rows that `selection`, a mask, an index array or a slice, selects.

        With a slice, the result shares the memory of this object.
        """
        return _of_each_column(lambda column: _take(column, selection), [self])

    def room(self, num_rows: int) -> Examples:
        """Return uninitialized arrays for `num_rows` rows, with the same columns and dtypes as this object.

        The system provides the memory of the arrays only as they are filled.
        """
        return _of_each_column(lambda column: np.empty((num_rows, *column.shape[1:]), column.dtype), [self])

    def overwrite(self, first: int, rows: Examples) -> None:
        """Overwrite the rows of this object from row `first` on with `rows`.

        Columns, widths and dtypes must be the same.
        """
        for column, new in zip(self.columns(), rows.columns(), strict=True):
            column[first : first + len(rows)] = new

    def columns(self) -> list[NDArray[Any]]:
        """Return the arrays ids, numeric, labels, weights, each array of `keys`, and vectors, in this order.

        Weights and vectors are left out if there are none.
        """
        weights = [] if self.weights is None else [self.weights]
        vectors = [self.vectors] * (self.vectors.shape[1] > 0)
        return [self.ids, self.numeric, self.labels, *weights, *self.keys.values(), *vectors]


def _of_each_column(function: Callable[..., NDArray[Any]], parts: Sequence[Examples]) -> Examples:
    """Return rows whose columns (ids, labels and so on) are computed by `function` from the same columns of `parts`.

    For each column, `function` gets the arrays of this column in all parts as its arguments, and returns the new array.
    """
    first = parts[0]
    ids, numeric, labels, *others = map(function, *(part.columns() for part in parts))
    weights = None if first.weights is None else others.pop(0)
    vectors = others.pop() if first.vectors.shape[1] else NO_VECTORS
    return Examples(ids, numeric, labels, weights, dict(zip(first.keys, others, strict=True)), vectors)


def _take(column: NDArray[Any], selection: NDArray[Any] | slice) -> NDArray[Any]:
    if isinstance(selection, slice):
        return column[selection]
    indices = np.flatnonzero(selection) if selection.dtype == np.bool_ else selection
    return np.take(column, indices, axis=0)  # `np.take` takes a third of the time of column[indices].


def concatenate(parts: Sequence[Examples]) -> Examples:
    """Return the rows of all `parts`, in order. If there is only one part, return it itself, not a copy."""
    if len(parts) == 1:
        return parts[0]
    return _of_each_column(lambda *columns: np.concatenate(columns), parts)


def position_weights(ids: np.ndarray, fields: Iterable[tuple[int, bool]]) -> np.ndarray:
    """Return the factor by which each id's embedding row is multiplied when the rows of a field are added up.

    The result is float32 [n, P], for `ids` [n, P]. `fields` gives the number of ids of each field, and whether its
    embedding rows are averaged. The factor is 0 for NO_ID, the padding of lists. In an averaged list it is 1 / (number
    of values), otherwise 1.
    """
    weights: np.ndarray = (ids != NO_ID).astype(np.float32)
    start = 0
    for length, is_mean in fields:
        if is_mean and length > 1:
            of_field = weights[:, start : start + length]
            of_field /= np.maximum(of_field.sum(axis=1, keepdims=True), np.float32(1))
        start += length
    return weights


def one_hot(rows: Examples, schema: Schema) -> Any:
    """Return prepared rows as features of a logistic regression: a SciPy CSR matrix [rows, N + K + V].

    Its columns are the numeric columns times NUMERIC_SCALE, the vectors, and then a column for each id. The column of
    an id is 1 in rows that have the id, and 0 in others. In a list field that is averaged (`pool` "mean"), it is 1 /
    (number of values in the list).
    """
    from scipy import sparse

    num_rows, num_positions = rows.ids.shape
    numbers = np.concatenate([rows.numeric * np.float32(NUMERIC_SCALE), rows.vectors], axis=1)
    first = numbers.shape[1]  # Column of the id 0.
    width, num_columns = first + num_positions, first + schema.vocabulary_size
    columns = np.empty((num_rows, width), np.int32 if num_columns < 2**31 else np.int64)
    columns[:, :first] = np.arange(first)
    columns[:, first:] = np.maximum(rows.ids, 0) + first
    values = np.ones((num_rows, width), np.float32)
    values[:, :first] = numbers
    lists = ((field.max_length, field.pool == "mean") for field in schema.categorical)
    values[:, first:] = position_weights(rows.ids, lists)
    starts = np.arange(0, num_rows * width + 1, width)
    return sparse.csr_matrix((values.reshape(-1), columns.reshape(-1), starts), shape=(num_rows, num_columns))
