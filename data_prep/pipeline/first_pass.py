"""Run the first pass over the log: fit the vocabulary and the numeric transforms to the training rows.

If the user names another prepared folder with `--vocabulary DIR`, its vocabulary and transforms are used instead. In
this file the vocabulary of that folder is called `base`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from common.files import checksum
from data_prep.checks.reject_causes import check_statistics
from data_prep.encoding.encoder import LOOKUP_FILE
from data_prep.encoding.fit import FittedVocabulary, copy_base_vocabulary, extend_base_vocabulary, fit_vocabulary
from data_prep.encoding.from_values import bad_cell
from data_prep.encoding.prepared_vocabulary import BaseVocabulary
from data_prep.execution.pieces import storable
from data_prep.execution.prepared_folder import REJECTS_FILE, WorkDir
from data_prep.options.columns import check_names
from data_prep.options.log_format import AGE
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.chunk_tasks import count_log, new_statistics
from data_prep.pipeline.split import SplitRule
from data_prep.prepared import schema
from data_prep.prepared.schema import CategoricalField, NumericField, VectorField
from data_prep.raw_log.reading import LogReading
from data_prep.statistics.statistics import LogStatistics, NumericStatistics, RowSample

_FITTED = "fitted"
NUM_QUANTILES = 256
# Number of pieces of each number (transform "piecewise"), and the most that all numbers of a row have together.
NUM_PIECES, MOST_PIECES = 8, 256

storable(FittedVocabulary, CategoricalField, NumericField, VectorField)


@dataclass(frozen=True)
class Fitted:
    """The results of the first pass over a log: statistics of the log, numeric and vector columns, and vocabulary.

    If there was no first pass, `statistics` has counted no line.
    """

    statistics: LogStatistics
    numeric: tuple[NumericField, ...]
    vectors: tuple[VectorField, ...]
    vocabulary: FittedVocabulary


def fit(
    reading: LogReading, split: SplitRule, options: PrepareOptions, base: BaseVocabulary | None, work_dir: WorkDir
) -> Fitted:
    """Return the statistics, the numeric columns and the vocabulary of a log. Also write vocabulary.parquet.

    The log is only read if `needs_counting` says so. The result is stored in the work folder; a resumed run reads it
    from there. Raise ValueError if the log has too many bad lines.
    """
    restored = _restore(reading, options, base, work_dir)
    if restored is not None:
        return restored
    folder = work_dir.folder
    statistics = new_statistics(options, work_dir, reading.num_workers)
    (folder / REJECTS_FILE).write_bytes(b"")
    if needs_counting(options, base):
        count_log(reading, split, options, statistics, folder, base)
        check_statistics(statistics, options.max_reject_fraction, reading.name, folder, bad_cell, is_fitted=True)
    if base is None:
        numeric = numeric_fields(options, statistics.numeric, statistics.sample)
        vectors = vector_fields(options, statistics)
        vocabulary = fit_vocabulary(statistics, options, len(numeric), folder)
    else:
        numeric, vectors = base.schema.numeric, base.schema.vectors
        if base.extends:
            vocabulary = extend_base_vocabulary(base, statistics, options, folder)
        else:
            vocabulary = copy_base_vocabulary(base, folder)
    checksums = _checksums(work_dir, options, base)
    work_dir.pieces.write(_FITTED, (statistics.state(), numeric, vectors, vocabulary, checksums))
    work_dir.pieces.clear("counts-")
    work_dir.pieces.clear("texts-")
    return Fitted(statistics, numeric, vectors, vocabulary)


def needs_counting(options: PrepareOptions, base: BaseVocabulary | None) -> bool:
    """Return True if the preparation needs a first pass over the log.

    With a base vocabulary, only `--extend` needs one, to count the values that get new ids. Without a base, a first
    pass is needed if the vocabulary or a numeric transform is fitted to the log.
    """
    return options.needs_counting if base is None else base.extends


def _restore(
    reading: LogReading, options: PrepareOptions, base: BaseVocabulary | None, work_dir: WorkDir
) -> Fitted | None:
    """Return the result of `fit` that an interrupted preparation stored in its work folder.

    Return None if there is no stored result, or if a file that `fit` has written is missing or has changed.
    """
    piece = work_dir.pieces.read(_FITTED)
    if piece is None or piece[-1] != _checksums(work_dir, options, base):
        return None
    statistics = new_statistics(options, work_dir, reading.num_workers)
    statistics.restore(piece[0])
    _, numeric, vectors, vocabulary, _ = piece
    lookup = replace(vocabulary.lookup, path=work_dir.work_folder / LOOKUP_FILE)
    return Fitted(statistics, numeric, vectors, replace(vocabulary, lookup=lookup))


def _checksums(work_dir: WorkDir, options: PrepareOptions, base: BaseVocabulary | None) -> dict[str, str | None]:
    """Return the checksum of each file that `fit` writes, by the name of the file, and None for a missing file.

    rejects.tsv is only included if there is a first pass; otherwise the second pass writes it.
    """
    files = [work_dir.work_folder / LOOKUP_FILE, work_dir.folder / schema.VOCABULARY_FILE]
    if needs_counting(options, base):
        files.append(work_dir.folder / REJECTS_FILE)
    return {path.name: checksum(path) if path.is_file() else None for path in files}


def usual_row_bytes(options: PrepareOptions) -> int:
    """Return the estimated number of bytes of an encoded row before the vocabulary is known.

    The estimate assumes ids of type int32.
    """
    num_numeric = len(numeric_fields(options, [NumericStatistics()] * len(options.data.numeric_fields)))
    return encoded_row_bytes(options, num_numeric, "int32")


def encoded_row_bytes(options: PrepareOptions, num_numeric: int, ids_dtype: str) -> int:
    """Return the number of bytes that an encoded row takes during a preparation, in memory and in temporary files.

    The bytes hold the row's ids, numbers, label, weight, vectors and keys (hashes of the cells of columns of kind id),
    and its 8-byte line number.
    """
    beside = 4 * bool(options.weight_source) + 8 * len(options.data.key_fields)
    beside += sum(4 * (form.width + 1) for form in options.data.vectors.values())
    return options.num_positions * np.dtype(ids_dtype).itemsize + num_numeric * 4 + 4 + beside + 8


def numeric_fields(
    options: PrepareOptions, statistics: Sequence[NumericStatistics], sample: RowSample | None = None
) -> tuple[NumericField, ...]:
    """Return the numeric columns: one per numeric field, then the pieces of each float field, then for each field a 0/1
    column that marks missing cells.

    Pieces and 0/1 columns exist only if the options ask for them. `statistics` holds one element per numeric field of
    the options, in the same order. `sample` is only needed if `options.samples_numbers`. A timestamp field gives a
    column with its age if the options ask for the age, and otherwise no column. Raise ValueError if two columns have
    the same name.
    """
    transform, names = options.transform_of_values, options.data.numeric_fields
    floats = [name for name in names if options.data.columns[name] == "float"]
    num_pieces = min(NUM_PIECES, MOST_PIECES // max(len(floats), 1)) if options.has_pieces else 0
    values, pieces = [], []
    for place, (name, of_field) in enumerate(zip(names, statistics, strict=True)):
        field = NumericField(name, name, transform, _fit(transform, of_field))
        if name in options.data.time_fields:
            if not options.data.has_age(name):
                continue
            newest = {schema.NEWEST: float(of_field.maximum or 0)}
            field = NumericField(f"{name}{AGE}", name, transform, newest | _fit(transform, _ages(of_field), schema.DAY))
        if options.samples_numbers:
            cells = np.empty(0) if sample is None else sample.numbers[place]
            field = _fit_to_sample(field, cells)
            pieces += _pieces(field, cells, num_pieces) if name in floats else []
        values.append(field)
    indicators = [NumericField(f"{field.source}_missing", field.source, schema.INDICATOR, {}) for field in values]
    fields = (*values, *pieces, *(indicators if options.has_indicators else []))
    check_names([field.name for field in fields])
    return fields


def vector_fields(options: PrepareOptions, statistics: LogStatistics) -> tuple[VectorField, ...]:
    """Return the vector columns, with means and deviations of the sample of training rows in `statistics`."""
    fields: list[VectorField] = []
    sample, first = statistics.sample, 0
    for name, missing in zip(options.data.vector_fields, statistics.missing_vectors, strict=True):
        form = options.data.vectors[name]
        values = np.zeros((0, form.width), np.float32)
        if sample is not None:
            values = sample.vectors[:, first : first + form.width]
        share = missing / max(statistics.num_training_rows, 1)
        fields.append(schema.fit_vector(name, form.scale, values[~np.isnan(values[:, 0])], share))
        first += form.width
    return tuple(fields)


def _ages(times: NumericStatistics) -> NumericStatistics:
    """Return statistics of the ages of times, computed from statistics of the times. All are in milliseconds.

    The age of a time is the newest time minus this time.
    """
    if times.maximum is None or times.minimum is None:
        return times
    newest = int(times.maximum)
    squares = times.count * newest**2 - 2 * newest * times.total + times.total_squares
    oldest = newest - int(times.minimum)
    return NumericStatistics(times.count, times.count * newest - times.total, squares, oldest, 0)


def _fit_to_sample(field: NumericField, cells: NDArray[np.float64]) -> NumericField:
    """Return a numeric column whose transform has parameters that are computed from a sample of the training rows.

    `cells` [k] are the cells of the column in this sample. NaN stands for a missing cell and is ignored.
    """
    numbers = schema.before_transform(field, cells[~np.isnan(cells)])
    if field.transform == "quantile":
        return replace(field, quantiles=_quantiles(numbers))
    logs = schema.signed_log1p(numbers) if len(numbers) else np.zeros(1)
    fitted = {"mean": float(logs.mean()), "standard_deviation": float(logs.std()) if np.ptp(logs) else 1.0}
    return replace(field, parameters=field.parameters | fitted)


def _pieces(field: NumericField, cells: NDArray[np.float64], number: int) -> list[NumericField]:
    """Return the `number` columns of a number's piecewise linear encoding (Gorishniy et al. 2022, arXiv:2203.05556),
    from which a model learns a function of the number that bends at its quantiles.

    `cells` [k] are a sample of the column of the log that `field` describes, and NaN stands for a missing cell. The
    quantiles of sign(x) · ln(1 + |x|) divide the numbers x into ranges with equally many rows. A column rises from 0 to
    1 within its range, and is then centered and scaled. If quantiles are equal, there are fewer ranges, and the columns
    left over are 0.
    """
    logs = schema.signed_log1p(schema.before_transform(field, cells[~np.isnan(cells)]))
    logs = logs if len(logs) else np.zeros(1)
    edges = np.unique(np.quantile(logs, np.linspace(0, 1, number + 1), method="inverted_cdf")).tolist()
    edges += edges[-1:] * (number + 1 - len(edges))
    pieces = []
    for place, (low, high) in enumerate(itertools.pairwise(edges), 1):
        piece = NumericField(f"{field.name}_piece{place}", field.source, schema.PIECE, {"low": low, "high": high})
        inside = schema.piece_of_logs(piece, logs)
        fitted = {"mean": float(inside.mean()), "standard_deviation": float(inside.std()) or 1.0}
        pieces.append(replace(piece, parameters=piece.parameters | fitted))
    return pieces


def _quantiles(numbers: NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    """Return NUM_QUANTILES + 1 quantiles of numbers [k], as ascending pairs (value, rank) with ranks from 0 to 1.

    If several quantiles have the same value, there is one pair with the mean of their ranks.
    """
    ordered = np.sort(numbers)
    if not len(ordered):
        return ((0.0, 0.5),)
    ranks = np.arange(NUM_QUANTILES + 1) / NUM_QUANTILES
    places = np.maximum(np.ceil(ranks * len(ordered)).astype(np.int64) - 1, 0)
    boundaries, tied = np.unique(ordered[places], return_inverse=True)
    mean_ranks = np.bincount(tied, ranks) / np.bincount(tied)
    return tuple(zip(boundaries.tolist(), mean_ranks.tolist(), strict=True))


def _fit(transform: str, statistics: NumericStatistics, unit: int = 1) -> dict[str, float]:
    """Return the parameters of a numeric transform by name, fitted to numbers that have the given statistics.

    The result has "max" for the transform "max", and "mean" and "standard_deviation" for "standardize". It is empty for
    any other `transform`, whose parameters, if it has any, are fitted to a sample (`_fit_to_sample`). Numbers are
    divided by `unit` before they are transformed: ages of times, which are in ms, by the ms of a day. Parameters that
    are divisors are always above 0.
    """
    if transform == "max":
        return {"max": float(max((statistics.maximum or 1) / unit, 1))}
    if transform == "standardize":
        if not statistics.count:
            return {"mean": 0.0, "standard_deviation": 1.0}
        return {"mean": statistics.mean / unit, "standard_deviation": statistics.standard_deviation / unit or 1.0}
    return {}
