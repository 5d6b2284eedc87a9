"""Define the options of a preparation, which are the section `prepare` of a run's YAML file."""

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

ADDED_TO_DATA = ("vectors", "serve_as")  # Keys of the log's format that schema.json has only if they are not empty.
INDECISIVE = ("workers", "memory_limit", "kernels")  # Options that do not change any byte of the prepared folder.
# Options of single fields, such as min_count. The keys of this mapping are the options' names in schema.json, which
# records each option as a mapping from field names to numbers. The values are the names that users write in
# `prepare.fields`.
RECORDED = {
    "field_min_count": "min_count",
    "field_max_size": "max_size",
    "field_hash_size": "hash_size",
    "field_max_length": "max_length",
}
# Number of rows in a sample (record) of a MindRecord file. The layout of MindSpore's model zoo prescribes it. Readers
# of a prepared folder use the value of `block_rows` in its schema.json instead.
BLOCK_ROWS = ZOO_BLOCK_ROWS = 1_000
MAX_CROSSED = 4  # Maximum number of fields of a cross.
MOST_OF_A_CROSS = 1 << 24  # Maximum number of values of a cross that get ids, unless the user sets its max_size.
# Values of the setting `split`, each with the sentence that explains it in the report. pipeline/split.py applies them.
SPLIT_RULES = {
    "hash": "The split of a row follows from a hash of its line number.",
    "chronological": "The first lines of the log are train, the next ones valid, the last ones test.",
    "stratified": "Exact shares, with the same share of clicks in every split.",
    "files": "Whole files of the log are valid and test.",
}
SplitFraction = Annotated[float, Bounds(least=0, expected=">= 0 and sum to 1")]


@dataclass(frozen=True)
class FieldOptions(Checked):
    """Options of a single categorical field, which the comment of `PrepareOptions.fields` describes.

    If an option is None, the option for all fields applies to the field as well.
    """

    min_count: Annotated[int | None, Bounds(least=1)] = None
    max_size: Annotated[int | None, Bounds(least=1)] = None
    hash_size: Annotated[int | None, Bounds(least=1)] = None
    max_length: Annotated[int | None, Bounds(least=1, most=MAX_LIST_LENGTH)] = None


@dataclass(frozen=True)
class PrepareOptions(Checked):
    """All options of a preparation. Each of them can change the prepared folder, except for those in `INDECISIVE`."""

    data: LogFormat = field(default_factory=LogFormat)  # The format of the log, as in configs/data/*.yaml.
    # How the values of categorical fields get ids. counted: each frequent value (prepare.min_count) has an id of its
    # own. hash: nothing is counted, and a hash maps the values of each field to its oov_buckets ids.
    vocabulary: Literal["counted", "hash"] = "counted"
    # With vocabulary: counted, a value gets an id of its own if it occurs in at least this number of training rows.
    min_count: Count = 10
    # Options of single fields by name, such as {C3: {min_count: 20}}. min_count: as prepare.min_count, but for this
    # field. max_size: only this number of values, the most frequent ones, get ids of their own. hash_size: values are
    # not counted, and a hash maps them to this number of ids. max_length: for a cross with a list, the maximum number
    # of combinations that a row has. Where a field has no option of its own, the settings for all fields apply.
    fields: dict[str, FieldOptions] = field(default_factory=dict)
    # The number of out-of-vocabulary ids of each field. A hash maps values without an id of their own to these ids.
    oov_buckets: Count = 1
    # The rule that assigns rows to train, valid and test. hash: a hash of the row's line number decides. chronological:
    # the last rows are test, the rows before them valid, and the first rows train, in the order of a timestamp or, if
    # the log has none, of the lines. stratified: like hash, but clicks and other rows are divided separately, so that
    # all splits have the same click rate. files: valid_files and test_files name whole files of the log.
    split: Literal["hash", "chronological", "stratified", "files"] = "hash"
    # With split: chronological, the timestamp column that orders the rows. It must be given if the log has several
    # timestamp columns.
    split_by: str = ""
    train_fraction: SplitFraction = 0.8  # The fraction of the rows that go to train. Not used with split: files.
    # The fraction of the rows that go to valid. Not used with split: files.
    valid_fraction: SplitFraction = 0.1
    test_fraction: SplitFraction = 0.1  # The fraction of the rows that go to test. Not used with split: files.
    # With split: files, the names or globs of the files whose rows are valid. The rows of files that match neither
    # valid_files nor test_files are train.
    valid_files: tuple[str, ...] = ()
    test_files: tuple[str, ...] = ()  # With split: files, the names or globs of the files whose rows are test.
    # The fraction of the training rows without a click that is kept, each with 1 / keep_negatives times its weight. The
    # hashes of their line numbers decide which rows these are. Values are still counted in all training rows, and valid
    # and test keep all rows. 1 keeps every row.
    keep_negatives: Annotated[float, Bounds(above=0, most=1)] = 1.0
    # Seed of the hashes that divide rows among the splits and draw negatives, and of the order of the training rows.
    seed: Seed = 1
    # The transform of a number x of a numeric field. log1p: sign(x) · ln(1 + |x|). max: x divided by the field's
    # largest number in the training rows, or by 1 if that is larger. standardize: (x - mean) / standard deviation, both
    # over the training rows. log1p_standardize: log1p, and then standardize. quantile: the rank of x among the field's
    # numbers in the training rows, from 0 to 1. piecewise: log1p_standardize, and a field of kind float also becomes
    # eight numeric columns NAME_piece1 to NAME_piece8, from which a model learns a function of x that bends at the
    # quantiles. With many float fields there are fewer of these columns, and with layout: zoo there are none.
    numeric_transform: Literal["log1p", "max", "standardize", "log1p_standardize", "quantile", "piecewise"] = "log1p"
    # true: each integer field also becomes a categorical field NAME_bucket. Its values are buckets of the numbers x:
    # floor(ln(x)²) for x > 2, otherwise x itself. false: it is a numeric field only.
    integer_buckets: bool = False
    # Each entry adds a categorical field that combines two to four fields: [C1, C2] becomes the field C1*C2, whose
    # values are pairs of a value of C1 and a value of C2.
    crosses: tuple[tuple[str, ...], ...] = ()
    # The training rows are shuffled in windows, each of this number of consecutive rows, which must fit into memory. 1
    # keeps the order of the log.
    shuffle_window_rows: Count = 1_000_000
    # The format of the prepared files. blocks: the format of this project. zoo: a format that the Wide&Deep of
    # MindSpore's model zoo can read. It has no columns that tell in which rows a number is missing.
    layout: Literal["blocks", "zoo"] = "blocks"
    # The preparation fails if more than this fraction of the log's lines is bad and therefore rejected.
    max_reject_fraction: Annotated[float, Bounds(least=0, most=1, expected="between 0 and 1")] = 0.01
    # The number of worker processes. null: one for each core, or fewer if memory_limit requires it.
    workers: Annotated[int | None, Bounds(least=1)] = None
    # The maximum memory of all processes together, measured as the sum of their Pss (proportional set size).
    memory_limit: str = "4 GiB"
    # The code that parses and encodes the log. native: kernels in C++. numpy: slower kernels in NumPy, with the same
    # result. auto: native if the C++ library is built, otherwise numpy.
    kernels: Literal["auto", "native", "numpy"] = "auto"

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
        if beside := self.data.columns_of_kind("weight", "id", "vector"):
            raise ValueError(
                f"layout zoo has no place for columns of kind weight, id or vector; found {', '.join(beside)}. Give "
                "them the kind ignored, or leave --layout zoo out"
            )
        if self.keep_negatives < 1:
            raise ValueError("layout zoo has no place for the weights that keep_negatives gives; leave one of them out")
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
        """Return advice for an error message: which field to cross instead of `part`, which is no categorical field.

        `known` are the names of the categorical fields.
        """
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
        """Return the values of the option `key`, such as "max_size", in the setting `fields`, by name of the field.

        Fields that do not set the option are left out.
        """
        numbers = {name: getattr(of_field, key) for name, of_field in self.fields.items()}
        return {name: number for name, number in numbers.items() if number is not None}

    def is_hashed(self, name: str) -> bool:
        """Return True if values of the field `name` get their ids by a hash, so that they need not be counted."""
        return self.vocabulary == "hash" or name in self.of_fields("hash_size")

    def num_oov_ids(self, name: str) -> int:
        """Return the number of out-of-vocabulary ids of the field `name`."""
        return self.of_fields("hash_size").get(name, self.oov_buckets)

    def least_count(self, name: str) -> int:
        """Return the number of training rows in which a value of the field `name` must occur to get an id."""
        return self.of_fields("min_count").get(name, self.min_count)

    def check_cross_size(self, name: str, num_values: int) -> None:
        """Raise ValueError if `num_values`, the number of frequent values of the cross `name`, is too large.

        The limit does not apply if the user has set the max_size of the cross.
        """
        if name not in self.of_fields("max_size") and num_values > MOST_OF_A_CROSS:
            raise ValueError(
                f"the cross {name} has at least {num_values:,} values in at least {self.least_count(name)} training "
                f"rows, and may have {MOST_OF_A_CROSS:,} where its size is not set. Set it: 'prepare.fields="
                f'{{"{name}": {{max_size: 1000000}}}}\' keeps the most frequent ones; hash_size instead gives so many '
                "ids by hash and counts nothing; a higher min_count leaves more values without ids"
            )

    @property
    def block_rows(self) -> int:
        """Number of rows in a sample (record) of a MindRecord file."""
        return ZOO_BLOCK_ROWS if self.layout == "zoo" else BLOCK_ROWS

    @property
    def has_indicators(self) -> bool:
        """True if each numeric field has a second column, which tells where the field's cell is missing.

        The second column is 1 in rows in which the cell is missing, and 0 in other rows.
        """
        return self.layout != "zoo"

    @property
    def has_pieces(self) -> bool:
        """True if each number of a field of kind float also becomes several columns, its piecewise linear encoding."""
        return self.numeric_transform == "piecewise" and self.layout != "zoo"

    @property
    def weight_source(self) -> str:
        """Name of the column that decides the weights of rows, or "" if rows have no weights.

        It is that of the log's format. If only a sample of the negatives is kept, labels decide weights at least.
        """
        return self.data.weight_source or self.data.label_column * (self.keep_negatives < 1)

    @property
    def needs_counting(self) -> bool:
        """True if a vocabulary or a transform is fitted to the training rows.

        Fitting takes an additional first pass over the log.
        """
        return (
            self.vocabulary == "counted"
            or self.numeric_transform != "log1p"
            or bool(self.data.vector_fields)
            or any(map(self.data.has_age, self.data.time_fields))
        )

    @property
    def samples_numbers(self) -> bool:
        """True if the numeric transform is fitted to a sample of the training rows."""
        return self.transform_of_values in ("quantile", "log1p_standardize")

    @property
    def transform_of_values(self) -> str:
        """The transform of the numeric columns that hold the numbers themselves, not pieces of them or indicators."""
        return "log1p_standardize" if self.numeric_transform == "piecewise" else self.numeric_transform

    @property
    def samples_rows(self) -> bool:
        """True if numeric transforms or vector columns are fitted to a sample of the training rows."""
        return self.samples_numbers or bool(self.data.vector_fields)

    @property
    def split_time(self) -> str:
        """Name of the timestamp column by which a chronological split divides the rows.

        Return "" if the log has no timestamp column, or if another kind of split is used.
        """
        return self.split_by or "".join(self.data.time_fields[:1]) * (self.split == "chronological")

    @functools.cached_property
    def encoding(self) -> EncodingOptions:
        """The options that decide how a row of the log is encoded."""
        return EncodingOptions(
            self.data, self.integer_buckets, self.crosses, self.of_fields("max_length"), self.kernels
        )

    @property
    def categorical_columns(self) -> tuple[CategoricalColumn, ...]:
        return self.encoding.categorical_columns

    @property
    def vocabularies(self) -> tuple[CategoricalColumn, ...]:
        """The categorical columns that have a vocabulary of their own, that is, a mapping from values to ids.

        Each other column uses one of these vocabularies.
        """
        return self.encoding.vocabularies

    @property
    def num_positions(self) -> int:
        """P, the number of ids in an encoded row: one for each categorical column, but `max_length` for each list."""
        return sum(column.max_length for column in self.categorical_columns)

    def decisive(self) -> dict[str, Any]:
        """Return the options that can change the prepared folder, as plain values for schema.json.

        Options of single fields have the names in RECORDED. `field_max_length`, `keep_negatives` and some keys of
        `data` were added in later releases. They are left out if they have their default values, so that schema.json
        stays the same, byte for byte, as earlier releases wrote it.
        """
        recorded = {name: self.of_fields(key) for name, key in RECORDED.items()}
        plain: dict[str, Any] = {}
        # The options must stay in the order that they have had in schema.json since the first release.
        for name, value in settings.as_dict(self).items():
            if name == "fields":
                plain |= {name: numbers for name, numbers in recorded.items() if name != "field_max_length"}
            elif name not in INDECISIVE:
                plain[name] = value
            if name == "crosses" and recorded["field_max_length"]:
                plain["field_max_length"] = recorded["field_max_length"]
        if self.keep_negatives == 1:
            del plain["keep_negatives"]
        plain["data"] = {key: value for key, value in plain["data"].items() if value or key not in ADDED_TO_DATA}
        return plain

    @property
    def memory_limit_bytes(self) -> int:
        return parse_bytes(self.memory_limit)


def fields_as_set(recorded: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the value of the setting `prepare.fields` from `recorded`, the options as schema.json records them.

    `PrepareOptions.decisive` describes how schema.json records the setting.
    """
    of_fields: dict[str, dict[str, int]] = {}
    for name, key in RECORDED.items():
        for field_name, number in recorded.get(name, {}).items():
            of_fields.setdefault(field_name, {})[key] = number
    return of_fields


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text such as "4 GiB", "512MiB" or "1000000" means.

    Raise ValueError for any other text.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)?\s*", text)
    if match is None:
        raise ValueError(f"memory_limit must be a size such as '4 GiB' or '512 MiB'; found {text!r}")
    return int(float(match[1]) * 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(match[2] or "B"))
