"""All that is fitted to the training rows before the second reading, or taken from another folder in place of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from common.files import checksum
from data_prep.encoding.fit import UsedVocabulary, extend_vocabulary, fit_vocabulary, take_vocabulary
from data_prep.encoding.given import GivenVocabulary
from data_prep.encoding.lookup_file import LOOKUP_FILES
from data_prep.execution.folder import REJECTS_FILE, Workplace
from data_prep.execution.pieces import storable
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.count import check_statistics, count_log, new_statistics
from data_prep.pipeline.split import SplitRule
from data_prep.prepared.rows import row_bytes
from data_prep.prepared.schema import INDICATOR, VOCABULARY_FILE, CategoricalField, NumericField
from data_prep.raw_log.reading import LogReading
from data_prep.statistics.statistics import IntegerStatistics, LogStatistics

_PIECE = "fitted"

storable(UsedVocabulary, CategoricalField, NumericField)


@dataclass(frozen=True)
class Fitted:
    """What the second reading needs. Without a first reading, `statistics` are still empty."""

    statistics: LogStatistics
    numeric: tuple[NumericField, ...]
    vocabulary: UsedVocabulary


def fit(
    reading: LogReading, split: SplitRule, options: PrepareOptions, given: GivenVocabulary | None, workplace: Workplace
) -> Fitted:
    """Read the log for the first time, if anything is fitted to it, and make the vocabulary; or what an ended run made.

    Raises ValueError where the log is bad.
    """
    kept = _read(reading, options, given, workplace)
    if kept is not None:
        return kept
    folder = workplace.folder
    statistics = new_statistics(options, workplace, reading.num_workers)
    (folder / REJECTS_FILE).write_bytes(b"")
    if needs_counting(options, given):
        count_log(reading, split, options, statistics, folder)
        check_statistics(statistics, options, reading.name, folder, is_fitted=True)
    if given is not None and given.extends:
        extended = extend_vocabulary(given, statistics, options, folder)
        fitted = Fitted(statistics, given.schema.numeric, extended)
    elif given is not None:
        fitted = Fitted(statistics, given.schema.numeric, take_vocabulary(given, folder))
    else:
        numeric = numeric_fields(options, statistics.integers)
        fitted = Fitted(statistics, numeric, fit_vocabulary(statistics, options, len(numeric), folder))
    made = (fitted.statistics.kept(), fitted.numeric, fitted.vocabulary, _checksums(workplace, options, given))
    workplace.pieces.write(_PIECE, made)
    workplace.pieces.clear("counts-")
    workplace.pieces.clear("texts-")
    return fitted


def needs_counting(options: PrepareOptions, given: GivenVocabulary | None) -> bool:
    """Whether there is a first reading: something is fitted to the training rows, or added from them."""
    return options.needs_counting if given is None else given.extends


def _read(
    reading: LogReading, options: PrepareOptions, given: GivenVocabulary | None, workplace: Workplace
) -> Fitted | None:
    kept = workplace.pieces.read(_PIECE)
    if kept is None or kept[-1] != _checksums(workplace, options, given):
        return None
    statistics = new_statistics(options, workplace, reading.num_workers)
    statistics.restore(kept[0])
    numeric: tuple[NumericField, ...] = kept[1]
    vocabulary: UsedVocabulary = kept[2]
    lookup = vocabulary.lookup.moved_to(workplace.work_folder)
    return Fitted(statistics, numeric, dataclasses.replace(vocabulary, lookup=lookup))


def _checksums(workplace: Workplace, options: PrepareOptions, given: GivenVocabulary | None) -> dict[str, str | None]:
    """Of the files that belong to the piece. Without a first reading the second one writes rejects.tsv anew."""
    files = [*sorted(workplace.work_folder.glob(LOOKUP_FILES)), workplace.folder / VOCABULARY_FILE]
    if needs_counting(options, given):
        files.append(workplace.folder / REJECTS_FILE)
    return {path.name: checksum(path) if path.is_file() else None for path in files}


def usual_row_bytes(options: PrepareOptions) -> int:
    """The same by the options alone, before the vocabulary is known: ids are int32 but for 2**31 of them."""
    num_numeric = len(numeric_fields(options, [IntegerStatistics()] * len(options.data.numeric_fields)))
    return row_bytes(len(options.categorical_columns), num_numeric, "int32")


def numeric_fields(options: PrepareOptions, statistics: Sequence[IntegerStatistics]) -> tuple[NumericField, ...]:
    """The numeric columns: every raw integer field transformed, then every field's indicator if asked for."""
    transform, names = options.numeric_transform, options.data.numeric_fields
    values = [
        NumericField(name, name, transform, _fit(transform, statistics_of_field))
        for name, statistics_of_field in zip(names, statistics, strict=True)
    ]
    indicators = [NumericField(f"{name}_missing", name, INDICATOR, {}) for name in names]
    return tuple(values + indicators if options.missing_indicator else values)


def _fit(transform: str, statistics: IntegerStatistics) -> dict[str, float]:
    """Parameters of a transform from the training rows, such that none divides by 0 or turns signs."""
    if transform == "max":
        return {"max": float(max(statistics.maximum or 1, 1))}
    if transform == "standardize":
        if not statistics.count:
            return {"mean": 0.0, "standard_deviation": 1.0}
        return {"mean": statistics.mean, "standard_deviation": statistics.standard_deviation or 1.0}
    return {}
