"""First pass over the log: fit vocabulary and numeric parameters to the training rows, or take them from a folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from common.files import checksum
from data_prep.checks.rejects import check_statistics
from data_prep.encoding.base import BaseVocabulary
from data_prep.encoding.fit import FittedVocabulary, copy_base_vocabulary, extend_base_vocabulary, fit_vocabulary
from data_prep.encoding.lookup_file import LOOKUP_FILE
from data_prep.execution.folder import REJECTS_FILE, WorkDir
from data_prep.execution.pieces import storable
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.count import count_log, new_statistics
from data_prep.pipeline.split import SplitRule
from data_prep.prepared.rows import row_bytes
from data_prep.prepared.schema import INDICATOR, VOCABULARY_FILE, CategoricalField, NumericField
from data_prep.raw_log.reading import LogReading
from data_prep.statistics.statistics import IntegerStatistics, LogStatistics

_PIECE = "fitted"

storable(FittedVocabulary, CategoricalField, NumericField)


@dataclass(frozen=True)
class Fitted:
    """Results of the first pass; `statistics` are empty if there was none."""

    statistics: LogStatistics
    numeric: tuple[NumericField, ...]
    vocabulary: FittedVocabulary


def fit(
    reading: LogReading, split: SplitRule, options: PrepareOptions, given: BaseVocabulary | None, work_dir: WorkDir
) -> Fitted:
    """Count the log, if anything is fitted to it, and write vocabulary.parquet, or restore what an earlier run fitted.

    Raises ValueError if the log is bad.
    """
    restored = _restore(reading, options, given, work_dir)
    if restored is not None:
        return restored
    folder = work_dir.folder
    statistics = new_statistics(options, work_dir, reading.num_workers)
    (folder / REJECTS_FILE).write_bytes(b"")
    if needs_counting(options, given):
        count_log(reading, split, options, statistics, folder)
        check_statistics(statistics, options, reading.name, folder, is_fitted=True)
    if given is not None and given.extends:
        extended = extend_base_vocabulary(given, statistics, options, folder)
        fitted = Fitted(statistics, given.schema.numeric, extended)
    elif given is not None:
        fitted = Fitted(statistics, given.schema.numeric, copy_base_vocabulary(given, folder))
    else:
        numeric = numeric_fields(options, statistics.integers)
        fitted = Fitted(statistics, numeric, fit_vocabulary(statistics, options, len(numeric), folder))
    made = (fitted.statistics.kept(), fitted.numeric, fitted.vocabulary, _checksums(work_dir, options, given))
    work_dir.pieces.write(_PIECE, made)
    work_dir.pieces.clear("counts-")
    work_dir.pieces.clear("texts-")
    return fitted


def needs_counting(options: PrepareOptions, given: BaseVocabulary | None) -> bool:
    """Return True if the log is counted: something is fitted to the training rows, or added from them."""
    return options.needs_counting if given is None else given.extends


def _restore(
    reading: LogReading, options: PrepareOptions, given: BaseVocabulary | None, work_dir: WorkDir
) -> Fitted | None:
    kept = work_dir.pieces.read(_PIECE)
    if kept is None or kept[-1] != _checksums(work_dir, options, given):
        return None
    statistics = new_statistics(options, work_dir, reading.num_workers)
    statistics.restore(kept[0])
    numeric: tuple[NumericField, ...] = kept[1]
    vocabulary: FittedVocabulary = kept[2]
    lookup = dataclasses.replace(vocabulary.lookup, path=work_dir.work_folder / LOOKUP_FILE)
    return Fitted(statistics, numeric, dataclasses.replace(vocabulary, lookup=lookup))


def _checksums(work_dir: WorkDir, options: PrepareOptions, given: BaseVocabulary | None) -> dict[str, str | None]:
    """Return the checksums of the files that belong to the piece; rejects.tsv only if the first pass writes it."""
    files = [work_dir.work_folder / LOOKUP_FILE, work_dir.folder / VOCABULARY_FILE]
    if needs_counting(options, given):
        files.append(work_dir.folder / REJECTS_FILE)
    return {path.name: checksum(path) if path.is_file() else None for path in files}


def usual_row_bytes(options: PrepareOptions) -> int:
    """Return the bytes of an encoded row before the vocabulary is known: with int32 ids, enough below 2**31 of them."""
    num_numeric = len(numeric_fields(options, [IntegerStatistics()] * len(options.data.numeric_fields)))
    return row_bytes(
        options.num_positions,
        num_numeric,
        "int32",
        bool(options.data.weight_source),
        len(options.data.key_fields),
    )


def numeric_fields(options: PrepareOptions, statistics: Sequence[IntegerStatistics]) -> tuple[NumericField, ...]:
    """Return the numeric columns: each integer field transformed, then each field's missing indicator if asked for."""
    transform, names = options.numeric_transform, options.data.numeric_fields
    values = [
        NumericField(name, name, transform, _fit(transform, statistics_of_field))
        for name, statistics_of_field in zip(names, statistics, strict=True)
    ]
    indicators = [NumericField(f"{name}_missing", name, INDICATOR, {}) for name in names]
    return tuple(values + indicators if options.missing_indicator else values)


def _fit(transform: str, statistics: IntegerStatistics) -> dict[str, float]:
    """Fit a transform's parameters to the training rows, so that it never divides by 0 or flips signs."""
    if transform == "max":
        return {"max": float(max(statistics.maximum or 1, 1))}
    if transform == "standardize":
        if not statistics.count:
            return {"mean": 0.0, "standard_deviation": 1.0}
        return {"mean": statistics.mean, "standard_deviation": statistics.standard_deviation or 1.0}
    return {}
