"""Options of `prepare`: the section `prepare:` of a run's YAML file."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from common import settings
from common.settings import Bounds, Checked, Count, Seed, did_you_mean
from data_prep.options.columns import CategoricalColumn, EncodingOptions, cross_name
from data_prep.options.format_checks import checked_format
from data_prep.options.log_format import MAX_LIST_LENGTH, LogFormat

INDECISIVE = ("workers", "memory_limit", "kernels")  # options that change no byte of the result
# The names by which a prepared folder has the options of single fields: a mapping of fields to numbers for each.
RECORDED = {
    "field_min_count": "min_count",
    "field_max_size": "max_size",
    "field_hash_size": "hash_size",
    "field_max_length": "max_length",
}
# The rows of a MindRecord sample, which the zoo's layout prescribes. A reader goes by block_rows in schema.json.
BLOCK_ROWS = ZOO_BLOCK_ROWS = 1_000
MAX_CROSSED = 4  # fields of a cross
MOST_OF_A_CROSS = 1 << 24  # values with ids, unless its max_size is set
SplitFraction = Annotated[float, Bounds(least=0, expected=">= 0 and sum to 1")]


@dataclass(frozen=True)
class FieldOptions(Checked):
    """What one categorical field has in place of the options for all fields. None: it has theirs."""

    min_count: Annotated[int | None, Bounds(least=1)] = None
    max_size: Annotated[int | None, Bounds(least=1)] = None
    hash_size: Annotated[int | None, Bounds(least=1)] = None
    max_length: Annotated[int | None, Bounds(least=1, most=MAX_LIST_LENGTH)] = None


@dataclass(frozen=True)
class PrepareOptions(Checked):
    """Options that decide the bytes of the prepared folder. The last ones do not (`INDECISIVE`)."""

    data: LogFormat = field(default_factory=LogFormat)  # The log's format, as in configs/data/*.yaml.
    # counted: each frequent value has an id. hash: values share oov_buckets ids per field.
    vocabulary: Literal["counted", "hash"] = "counted"
    min_count: Count = 10  # A value has an id of its own if at least so many training rows have it.
    # Options of single fields by name, such as {C3: {min_count: 20}}. min_count: as prepare.min_count. max_size: only
    # so many values have ids, the most frequent ones. hash_size: values are not counted and share so many ids by a
    # hash. max_length: the most combinations of values that a cross with a list has in a row.
    fields: dict[str, FieldOptions] = field(default_factory=dict)
    oov_buckets: Count = 1  # The number of ids per field that values without their own share by a hash.
    # hash: by a hash of the line's number. chronological: the last rows are test and those before them valid, by a
    # timestamp or, if the log has none, by line. stratified: as hash, but clicks and other rows apart. files: by
    # valid_files and test_files.
    split: Literal["hash", "chronological", "stratified", "files"] = "hash"
    split_by: str = ""  # With split: chronological, the timestamp column that decides if there are several.
    train_fraction: SplitFraction = 0.8  # The share of the rows in the split train.
    valid_fraction: SplitFraction = 0.1  # The share of the rows in the split valid.
    test_fraction: SplitFraction = 0.1  # The share of the rows in the split test.
    valid_files: tuple[str, ...] = ()  # With split: files, names or globs of the files of valid. The rest is train.
    test_files: tuple[str, ...] = ()  # With split: files, names or globs of the files of test.
    seed: Seed = 1  # Decides the split by hash and the order of the training rows.
    # log1p: sign(x) · ln(1 + |x|). max: x over the training rows' largest. standardize: (x - mean) / standard
    # deviation. quantile: the rank of x among the training rows, 0 to 1.
    numeric_transform: Literal["log1p", "max", "standardize", "quantile"] = "log1p"
    # Each integer field also becomes a categorical field of buckets: floor(ln(x)²) for x > 2, else x itself.
    integer_buckets: bool = False
    # Each entry adds a categorical field: [C1, C2] becomes C1*C2, whose values are pairs of theirs.
    crosses: tuple[tuple[str, ...], ...] = ()
    shuffle_window_rows: Count = 1_000_000  # So many training rows are shuffled together, in memory.
    # zoo: MindRecord as the MindSpore model zoo's Wide&Deep reads it, without columns that tell missing numbers.
    layout: Literal["blocks", "zoo"] = "blocks"
    # The preparation fails if more than this share of the lines is rejected.
    max_reject_fraction: Annotated[float, Bounds(least=0, most=1, expected="between 0 and 1")] = 0.01
    # The number of processes. None: one a core, if memory_limit allows.
    workers: Annotated[int | None, Bounds(least=1)] = None
    memory_limit: str = "4 GiB"  # The memory of all processes together (the sum of their Pss).
    kernels: Literal["auto", "native", "numpy"] = "auto"  # auto: the native kernels if they are built.

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_format(self.data)
        fractions = (self.train_fraction, self.valid_fraction, self.test_fraction)
        if abs(sum(fractions) - 1) > 1e-9:
            raise ValueError(
                f"train_fraction, valid_fraction, test_fraction must be >= 0 and sum to 1; found {fractions}"
            )
        if (self.split == "files") != bool(self.valid_files or self.test_files):
            raise ValueError(
                "split: files and valid_files or test_files belong together; found split "
                f"{self.split!r}, valid_files {list(self.valid_files)}, test_files {list(self.test_files)}"
            )
        times = self.data.time_fields
        if self.split_by and (self.split != "chronological" or self.split_by not in times):
            raise ValueError(
                "split_by is for split: chronological and names a column of kind timestamp; found split "
                f"{self.split!r}, split_by {self.split_by!r}, timestamps {', '.join(times) or 'none'}"
            )
        if self.split == "chronological" and len(times) > 1 and not self.split_by:
            raise ValueError(f"split: chronological goes by one timestamp; set split_by to one of {', '.join(times)}")
        if self.layout == "zoo":
            self._check_zoo_layout()
        parse_bytes(self.memory_limit)
        self._check_crosses()
        self._check_fields()

    def _check_zoo_layout(self) -> None:
        if others := [column.name for column in self.categorical_columns if column.kind == "list" or column.shares]:
            raise ValueError(
                f"layout zoo has one id a field, of a vocabulary of its own; {', '.join(others)} of kind list or in "
                "shares have not. Give them the kind ignored, or leave --layout zoo out"
            )
        if beside := self.data.columns_of_kind("weight", "id"):
            raise ValueError(
                f"layout zoo has no place for columns of kind weight or id; found {', '.join(beside)}. Give them the "
                "kind ignored, or leave --layout zoo out"
            )
        if self.crosses:
            raise ValueError("layout zoo has one id a field of the log, so it takes no prepare.crosses; leave one out")
        if self.integer_buckets:
            raise ValueError(
                "layout zoo has one id a field of the log; found integer_buckets True. Set "
                "prepare.integer_buckets=false, as the flag --layout zoo does"
            )

    def _check_crosses(self) -> None:
        known = [column.name for column in self.categorical_columns if not column.cross]
        seen: set[frozenset[str]] = set()
        for parts in self.crosses:
            entry = f"crosses: [{', '.join(parts)}]"
            if not 2 <= len(parts) <= MAX_CROSSED:
                raise ValueError(
                    f"{entry} has {len(parts)} fields; write two to {MAX_CROSSED} of them, such as [[C1, C2], [C1, C3]]"
                )
            for part in parts:
                if part not in known:
                    raise ValueError(f"{entry}: {part!r} is no categorical field; {self._instead_of(part, known)}")
            if len(set(parts)) < len(parts):
                raise ValueError(f"{entry} names a field twice; write each field once")
            if frozenset(parts) in seen:
                raise ValueError(f"{entry} is listed twice; write it once (the order of its fields changes nothing)")
            if cross_name(parts) in {*self.data.columns, *known}:
                raise ValueError(f"{entry} would be named {cross_name(parts)!r}, as a column is; rename the column")
            seen.add(frozenset(parts))

    def _instead_of(self, part: str, known: list[str]) -> str:
        """Return what to write in a cross in place of something that is no categorical field."""
        if part in self.data.numeric_fields:
            return f"cross the buckets of its numbers: {part}_bucket, with prepare.integer_buckets=true"
        return did_you_mean(part, known)

    def _check_fields(self) -> None:
        known = [column.name for column in self.vocabularies]
        crosses = [column.name for column in self.categorical_columns if column.cross and column.is_list]
        for name, of_field in self.fields.items():
            if name not in {*known, *crosses}:
                raise ValueError(f"fields: unknown field {name!r}; known here: {known[0]} … {known[-1]}")
            if of_field.max_length is not None and name not in crosses:
                raise ValueError(
                    f"fields: max_length of {name!r}, which is no cross with a list; known here: "
                    f"{', '.join(crosses) or 'none'}. The length of a list itself is max_length in prepare.data.lists"
                )
            if of_field.hash_size and (of_field.min_count or of_field.max_size):
                raise ValueError(
                    f"fields: {name} has hash_size, so its values are not counted, and min_count and max_size choose "
                    "none of them; leave them out for this field"
                )

    def of_fields(self, key: str) -> dict[str, int]:
        """Return the numbers of one option of single fields, such as `max_size`, by the fields that have one."""
        numbers = {name: getattr(of_field, key) for name, of_field in self.fields.items()}
        return {name: number for name, number in numbers.items() if number is not None}

    def is_hashed(self, name: str) -> bool:
        """Return True if no value of this field has an id of its own, so that none is counted."""
        return self.vocabulary == "hash" or name in self.of_fields("hash_size")

    def num_oov_ids(self, name: str) -> int:
        """Return the ids of this field for values without one of their own."""
        return self.of_fields("hash_size").get(name, self.oov_buckets)

    def least_count(self, name: str) -> int:
        """Return the training rows in which a value of this field has to be for an id of its own."""
        return self.of_fields("min_count").get(name, self.min_count)

    def check_cross_size(self, name: str, num_values: int) -> None:
        """Raise ValueError if so many values of a cross are too many to have ids."""
        if name not in self.of_fields("max_size") and num_values > MOST_OF_A_CROSS:
            raise ValueError(
                f"the cross {name} has at least {num_values:,} values in at least {self.least_count(name)} training "
                f"rows, and may have {MOST_OF_A_CROSS:,} where its size is not set. Set it: 'prepare.fields="
                f'{{"{name}": {{max_size: 1000000}}}}\' keeps the most frequent ones; hash_size instead gives so many '
                "ids by hash and counts nothing; a higher min_count leaves more values without ids"
            )

    @property
    def block_rows(self) -> int:
        """The number of rows of a MindRecord sample."""
        return ZOO_BLOCK_ROWS if self.layout == "zoo" else BLOCK_ROWS

    @property
    def has_indicators(self) -> bool:
        """True if each numeric field has a second column, which is 1 if its cell is missing."""
        return self.layout != "zoo"

    @property
    def needs_counting(self) -> bool:
        """True if anything is fitted to the training rows, which takes a first pass over the log."""
        return (
            self.vocabulary == "counted"
            or self.numeric_transform != "log1p"
            or any(map(self.data.has_age, self.data.time_fields))
        )

    @property
    def split_time(self) -> str:
        """The timestamp by which a chronological split goes. "" if it goes by line, or for another split."""
        return self.split_by or "".join(self.data.time_fields[:1]) * (self.split == "chronological")

    @functools.cached_property
    def encoding(self) -> EncodingOptions:
        """The options that scoring needs as well."""
        return EncodingOptions(
            self.data, self.integer_buckets, self.crosses, self.of_fields("max_length"), self.kernels
        )

    @property
    def categorical_columns(self) -> tuple[CategoricalColumn, ...]:
        return self.encoding.categorical_columns

    @property
    def vocabularies(self) -> tuple[CategoricalColumn, ...]:
        """The categorical columns with a vocabulary of their own, which others may share."""
        return self.encoding.vocabularies

    @property
    def num_positions(self) -> int:
        """P, the columns of `ids`."""
        return sum(column.max_length for column in self.categorical_columns)

    def decisive(self) -> dict[str, Any]:
        """Return the options that decide the result, as plain values, as a prepared folder has them.

        Options of single fields stand under the names of RECORDED. `field_max_length`, which was added later, is left
        out if it is empty, so that a folder without it keeps the bytes that it had.
        """
        recorded = {name: self.of_fields(key) for name, key in RECORDED.items()}
        plain: dict[str, Any] = {}
        for name, value in settings.as_dict(self).items():  # in this order since the first release
            if name == "fields":
                plain |= {name: numbers for name, numbers in recorded.items() if name != "field_max_length"}
            elif name not in INDECISIVE:
                plain[name] = value
            if name == "crosses" and recorded["field_max_length"]:
                plain["field_max_length"] = recorded["field_max_length"]
        return plain

    @property
    def memory_limit_bytes(self) -> int:
        return parse_bytes(self.memory_limit)


def fields_as_set(recorded: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the setting `fields` of a prepared folder from its recorded options (`PrepareOptions.decisive`)."""
    of_fields: dict[str, dict[str, int]] = {}
    for name, key in RECORDED.items():
        for field_name, number in recorded.get(name, {}).items():
            of_fields.setdefault(field_name, {})[key] = number
    return of_fields


def parse_bytes(text: str) -> int:
    """Return the bytes of "4 GiB", "512MiB" or plain "1000000". Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)?\s*", text)
    if match is None:
        raise ValueError(f"memory_limit must be a size such as '4 GiB' or '512 MiB'; found {text!r}")
    return int(float(match[1]) * 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(match[2] or "B"))
