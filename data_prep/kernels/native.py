"""Call the native kernels in csrc/. They return the same as the functions of numpy_kernels.py in much less time."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.native_library import NativeLibrary, address, output_address
from data_prep.kernels import numpy_kernels
from data_prep.kernels.numpy_kernels import NUM_BINS, CountedStrings, FieldLookup, StringLookup, add_up
from data_prep.kernels.parse import ParsedVectors, with_vectors
from data_prep.kernels.parsed import (
    BARE_SEPARATOR,
    MAX_LINE_BYTES,
    Cells,
    Chunk,
    ParsedChunk,
    ParsedRows,
    weights_of_labelled,
)
from data_prep.kernels.strings import PADDING_BYTES, Lists, Strings
from data_prep.kernels.times import zone_table
from data_prep.options.kinds import KINDS
from data_prep.options.log_format import RELATIONS, VECTOR, LogFormat


class _LogKernels(NativeLibrary):
    def load(self) -> ctypes.CDLL:
        if sys.byteorder != "little":
            raise OSError("the native log kernels are for little-endian machines; choose prepare.kernels=numpy")
        return super().load()


LIBRARY = _LogKernels("log_kernels", __file__, ["log_kernels.h"], "log kernels are", "choose prepare.kernels=numpy")
load, is_available = LIBRARY.load, LIBRARY.is_available


@functools.cache
def choose_kernels(choice: str) -> ModuleType:
    """Return the module whose kernels are to be used: this module or `numpy_kernels`. Both have the same functions.

    `choice` is "native", "numpy" or "auto". "auto" uses the native kernels if they are built. Raise OSError if `choice`
    is "native" and they are not built.
    """
    if choice == "native":
        load()
    return sys.modules[__name__] if choice != "numpy" and is_available() else numpy_kernels


_Texts, _Format, _Rows, _Rejects, _Vocabulary = (
    LIBRARY.interface.structures[f"LogKernels{name}"] for name in ("Strings", "Format", "Rows", "Rejects", "Vocabulary")
)
# Number that the native parser writes for a missing label. It must equal the constant LOG_KERNELS_UNLABELLED in
# log_kernels.h.
_UNLABELLED = 2
# Names and dtypes of the arrays of numbers in the C structure _Rows. Each array is followed by an array of flags, which
# are 1 for the cells that are not missing.
_NUMBERS: dict[str, type[np.generic]] = {
    "integers": np.int64,
    "values": np.uint32,
    "floats": np.float64,
    "times": np.int64,
}
# Names of the arrays to which the native parser writes rejected lines, in the order of the fields of the C structure
# _Rejects.
_REJECT = ("reject_lines", "reject_starts", "reject_ends", "reasons")
_ROW = tuple(field[0] for field in _Rows._fields_[1:])
_OF_A_LINE: dict[str, type[np.generic]] = {"line_numbers": np.int64, "labels": np.uint8, "weights": np.float32}
_OF_A_LINE |= dict(zip(_REJECT, (np.int64, np.int64, np.int64, np.int8), strict=True))
_ALIGNMENT = 64  # Output arrays begin at multiples of this many bytes, the size of a cache line.
_KIND_NUMBERS = LIBRARY.interface.enums["LogKernelsKind"]
# The number that the C code uses for each form in which times are written, such as "seconds" or "iso". All forms with %
# codes, such as %Y-%m-%d, have the number of the name "codes".
_TIME_KINDS = LIBRARY.interface.enums["LogKernelsTimes"]


def parse_chunk(chunk: Chunk, log_format: LogFormat) -> ParsedChunk:
    """Parse a chunk of lines: turn every line into a row, or record it as rejected.

    The result is that of `parse.parse_chunk`.
    """
    raw = text = np.frombuffer(chunk.lines, np.uint8)
    if log_format.text_fields or log_format.key_fields or log_format.vector_fields or log_format.quotes:
        # Copy the bytes, with padding after them, because strings become slices of the copy and quotes are removed in
        # place.
        text = np.concatenate([raw, np.zeros(PADDING_BYTES, np.uint8)])
    in_c = _format_in_c(log_format, chunk.file.columns, chunk.is_bare)
    outputs = _Outputs(in_c, chunk.num_lines)
    num_rejects = ctypes.c_int64()
    content = address(text, np.uint8, len(text)), len(raw), MAX_LINE_BYTES
    good, bad = _Rows(chunk.num_lines, *outputs.addresses(_ROW)), _Rejects(*outputs.addresses(_REJECT))
    num_rows = load().log_kernels_parse(*content, in_c.struct, good, bad, ctypes.byref(num_rejects))
    chunk.check_num_lines(num_rows + num_rejects.value)
    rows = _rows_of(outputs, num_rows, chunk.first_line, text, log_format)
    rejects = [outputs[name][: num_rejects.value] for name in _REJECT]
    if log_format.vector_fields:
        rows, are_bad = with_vectors(rows, chunk, log_format, parse_vectors)
        lines = rows.row_numbers[are_bad] - chunk.first_line
        more = (lines, *chunk.offsets_of(lines), np.full(len(lines), VECTOR))
        order = np.argsort(np.concatenate([rejects[0], lines]))
        rejects = [np.concatenate(both)[order] for both in zip(rejects, more, strict=True)]
        rows = rows.take(~are_bad)
    return ParsedChunk.of(chunk, rows, *rejects)


def _rows_of(
    outputs: _Outputs, num_rows: int, first_line: int, text: NDArray[np.uint8], log_format: LogFormat
) -> ParsedRows:
    """Return the first `num_rows` rows in `outputs`, which the native parser wrote.

    The strings of these rows are slices of `text`.
    """
    labels = outputs["labels"][:num_rows]
    labelled = labels != _UNLABELLED
    weights = outputs["weights"][:num_rows].copy() if log_format.weight else None
    strings = {}
    if texts := outputs.form.texts:
        starts, lengths = (_filled(outputs[name], num_rows) for name in ("string_starts", "string_lengths"))
        strings = {name: Strings(text, *cells) for name, *cells in zip(texts, starts, lengths, strict=True)}
    return ParsedRows(
        row_numbers=outputs["line_numbers"][:num_rows] + first_line,
        labels=labels == 1,
        labelled=labelled,
        separate={
            name: Cells(strings[name], strings[name].lengths > 0)
            for name in log_format.text_fields + log_format.vector_fields
        },
        blocks={
            names: Cells(*(_filled(outputs[each], num_rows) for each in (name, f"{name}_present")))
            for name, names in outputs.form.blocks.items()
            if names
        },
        weights=weights_of_labelled(weights, labelled) if log_format.label == "optional" else weights,
        keys={name: strings[name].keys().view(np.int64) for name in log_format.key_fields},
    )


class _Outputs:
    """The arrays to which the native parser writes the rows and rejected lines of a chunk, all in one allocation.

    To allocate each array separately would take longer than to parse a single row.
    """

    def __init__(self, form: _FormatInC, capacity: int) -> None:
        self._places, num_bytes = _layout(form, capacity)
        self._memory = np.empty(num_bytes, np.uint8)
        self._first = output_address(self._memory)
        self.form = form
        self["labels"][:] = _UNLABELLED

    def __getitem__(self, name: str) -> NDArray[Any]:
        offset, shape, dtype = self._places[name]
        return np.ndarray(shape, dtype, self._memory, offset)

    def addresses(self, names: Sequence[str]) -> list[int]:
        return [self._first + self._places[name][0] for name in names]


@functools.lru_cache(maxsize=64)
def _layout(form: _FormatInC, capacity: int) -> tuple[dict[str, tuple[int, tuple[int, ...], Any]], int]:
    """Return the offset, shape and dtype of each output array by name, and the size in bytes of all together.

    The arrays have room for the rows of `capacity` lines.
    """
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {name: ((capacity,), dtype) for name, dtype in _OF_A_LINE.items()}
    for name, dtype in _NUMBERS.items():
        of_block = len(form.blocks[name]), capacity
        shapes |= {name: (of_block, dtype), f"{name}_present": (of_block, np.bool_)}
    shapes |= {name: ((len(form.texts), capacity), np.int64) for name in ("string_starts", "string_lengths")}
    places: dict[str, tuple[int, tuple[int, ...], Any]] = {}
    offset = 0
    for name, (shape, dtype) in shapes.items():
        places[name] = offset, shape, dtype
        offset += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
    return places, offset


class _FormatInC:
    """A log format as the C structure `struct`, together with the arrays to which pointers in `struct` refer.

    The kernels only read these arrays. `names` are the columns of a file, or () if the file has the columns of the
    format. `is_bare` is True if quotes are already removed from the lines.
    """

    def __init__(self, log_format: LogFormat, names: tuple[str, ...], is_bare: bool) -> None:
        names = names or tuple(log_format.columns)
        described = (log_format.columns.get(name, "ignored") for name in names)
        kinds = [KINDS[kind].native or kind for kind in described]
        num_columns = len(kinds)
        self._kinds = np.array([_KIND_NUMBERS[f"{kind}_column"] for kind in kinds], np.uint8)
        arrays = {name: KINDS[kind].array for name, kind in log_format.columns.items()}
        self.blocks = {array: tuple(name for name in arrays if arrays[name] == array) for array in _NUMBERS}
        self.texts = log_format.text_fields + log_format.key_fields + log_format.vector_fields
        together = [*self.blocks.values(), self.texts]
        slots = [next((s.index(name) for s in together if name in s), 0) for name in names]
        self._slots = np.array(slots, np.int64)
        self._alike = np.ones(num_columns, np.int64)
        for i in reversed(range(num_columns - 1)):
            if (kinds[i], slots[i] + 1) == (kinds[i + 1], slots[i + 1]):
                self._alike[i] += self._alike[i + 1]
        *by_cell, rest = log_format.label_cells
        relation, bound = log_format.click_rule or ("", 0.0)
        self._cells = [
            Strings.of([cell.encode() for cell in columns_of_kind])
            for columns_of_kind in (log_format.missing, *by_cell)
        ]
        forms = [log_format.time_form(name) for name in log_format.time_fields]
        self._time_forms = Strings.of([form.encode() for form in forms])
        self._time_kinds = np.array([_TIME_KINDS.get(form, _TIME_KINDS["codes"]) for form in forms], np.uint8)
        zones = [zone_table(log_format.timezone.get(name, "")) for name in log_format.time_fields]
        self._zones = [
            np.cumsum([0, *(len(zone.starts) for zone in zones)]),
            np.concatenate([np.zeros(0, np.int64), *(zone.local_starts for zone in zones)]),
            np.concatenate([np.zeros(0, np.int64), *(zone.offsets for zone in zones)]),
        ]
        self.struct = _Format(
            BARE_SEPARATOR if is_bare else ord(log_format.separator),
            log_format.quotes and not is_bare,
            num_columns,
            address(self._kinds, np.uint8, num_columns),
            address(self._slots, np.int64, num_columns),
            address(self._alike, np.int64, num_columns),
            *map(texts_in_c, self._cells),
            RELATIONS.index(relation) + 1 if relation else 0,
            log_format.label == "optional",
            ("", "not_clicked", "clicked").index(rest),
            log_format.trim,
            log_format.decimal == ",",
            bound,
            address(self._time_kinds, np.uint8, len(forms)),
            texts_in_c(self._time_forms),
            *(address(array, np.int64, len(array)) for array in self._zones),
        )


# The structure is cached, because to make it takes longer than to parse a single row.
_format_in_c = functools.lru_cache(maxsize=4)(_FormatInC)


def _filled(columns: NDArray[Any], num_rows: int) -> NDArray[Any]:
    """Return the first `num_rows` columns of `columns` [M, capacity] as a contiguous array [M, num_rows].

    The result uses the memory of `columns`, which must therefore not be used afterwards.
    """
    num_columns, capacity = columns.shape
    if num_rows == capacity:
        return columns
    together = columns.reshape(-1)[: num_columns * num_rows].reshape(num_columns, num_rows)
    for index, column in enumerate(columns):
        together[index] = column[:num_rows]
    return together


def _addresses(*outputs: NDArray[Any]) -> list[int]:
    return [output_address(each) for each in outputs]


def split_lists(cells: Strings, separator: str, max_length: int, trim: bool = False) -> Lists:
    """Split each cell of a list column into its values. The result is that of `strings.split_lists`.

    The values share the memory of the cells.
    """
    num_rows, most = len(cells), int(np.minimum((cells.lengths + 1) // 2, max_length).sum())
    starts, value_lengths = np.empty(most, np.int64), np.empty(most, np.int64)
    lengths, cut = np.empty(num_rows, np.int64), np.empty(num_rows, np.bool_)
    outputs = _addresses(starts, value_lengths, lengths, cut)
    num_values = load().log_kernels_split_lists(texts_in_c(cells), ord(separator), max_length, trim, *outputs)
    return Lists(Strings(cells.data, starts[:num_values], value_lengths[:num_values]), lengths, cut)


def parse_vectors(cells: Strings, width: int, decimal: str) -> ParsedVectors:
    """Parse cells [n] as vectors with `width` components. The result is that of `parse.parse_vectors`: the vectors, a
    mask of those that are not missing, and a mask of the good cells.
    """
    values = np.empty((len(cells), width), np.float32)
    present, good = np.empty(len(cells), np.bool_), np.empty(len(cells), np.bool_)
    outputs = _addresses(values, present, good)
    load().log_kernels_parse_vectors(texts_in_c(cells), width, decimal == ",", *outputs)
    return values, present, good


def join_strings(parts: Sequence[Strings], present: NDArray[np.bool_]) -> Strings:
    """Join the strings that several arrays have in each row, with * between them.

    The result is that of `numpy_kernels.join_strings`.
    """
    num_rows = len(present)
    # In the worst case every byte gets an escape byte before it. Memory pages that are never written take no memory.
    most = sum(2 * int(part.lengths.sum()) + num_rows for part in parts)
    data = np.empty(most + PADDING_BYTES, np.uint8)
    starts, lengths = np.empty(num_rows, np.int64), np.empty(num_rows, np.int64)
    texts = (_Texts * len(parts))(*map(texts_in_c, parts))
    outputs = _addresses(data, starts, lengths)
    num_bytes = load().log_kernels_join_strings(texts, len(parts), address(present, np.bool_, num_rows), *outputs)
    data[num_bytes : num_bytes + PADDING_BYTES] = 0
    return Strings(data[: num_bytes + PADDING_BYTES], starts, lengths)


def find_strings(field: StringLookup, texts: Strings, present: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the ids [n] that the search table `field` has for `texts` [n], as `numpy_kernels.find_strings` does. Rows
    that `present` [n] does not mark get the id of a missing cell.
    """
    ids, num_known = np.empty(len(texts), np.int64), len(field.texts)
    known = address(field.keys, np.uint64, num_known), address(field.ids, np.int64, num_known)
    special = field.missing_id, field.first_oov_id, field.num_oov_ids
    given = texts_in_c(texts), address(present, np.bool_, len(texts))
    load().log_kernels_find_strings(*given, texts_in_c(field.texts), *known, *special, output_address(ids))
    return ids


def texts_in_c(texts: Strings) -> Any:
    """Return a C structure that points to the memory of `texts`.

    `texts` must exist as long as the structure is used.
    """
    starts, lengths = (address(array, np.int64, len(texts)) for array in (texts.starts, texts.lengths))
    return _Texts(address(texts.data, np.uint8, len(texts.data)), starts, lengths, len(texts))


def encode_values(
    fields: Sequence[FieldLookup], values: NDArray[np.uint32], present: NDArray[np.bool_], dtype: str
) -> NDArray[np.signedinteger]:
    """Return the ids [n, C] that the search tables `fields` have for the values of C fields in n rows.

    The result is that of `numpy_kernels.encode_values`.
    """
    shape = num_fields, num_rows = len(fields), values.shape[1]
    ids = np.empty((num_rows, num_fields), dtype)
    cells = address(values, np.uint32, *shape), address(present, np.bool_, *shape), num_rows
    load().log_kernels_encode(_vocabularies(tuple(fields)), num_fields, *cells, ids.itemsize, output_address(ids))
    return ids


@functools.lru_cache(maxsize=4)
def _vocabularies(fields: tuple[FieldLookup, ...]) -> ctypes.Array[Any]:
    """Return the search tables of several fields as an array of C structures.

    The array is cached, because to make it takes longer than to look up a single row.
    """
    return (_Vocabulary * len(fields))(*map(_vocabulary, fields))


def _vocabulary(field: FieldLookup) -> Any:
    words = address(field.words, np.uint64, len(field.words))
    starts = address(field.starts, np.uint32, (2**32 >> field.shift) + 1)
    ids = (field.base_id, field.missing_id, field.first_oov_id, field.num_oov_ids)
    return _Vocabulary(words, starts, field.shift, *ids)


_ALL_BITS = 2**64 - 1


def count_values(values: NDArray[np.uint32], present: NDArray[np.bool_], mask: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Count how often each distinct value occurs in the cells that `present` and `mask` both mark. The result is that
    of `numpy_kernels.count_values`: for each value a 64-bit number made of the value and its count.
    """
    words, scratch = np.empty(len(values), np.uint64), np.empty(2 * len(values), np.uint32)
    outputs = _addresses(scratch, words)
    num_words = load().log_kernels_count(*_masked(values, np.uint32, present, mask), *outputs)
    return words[:num_words].copy()


def count_bins(integers: NDArray[np.int64], present: NDArray[np.bool_], mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of integers in each bin of the histogram that `numpy_kernels.count_bins` defines. Only cells
    that `present` and `mask` both mark are counted.
    """
    counts = np.empty(NUM_BINS, np.int64)
    load().log_kernels_bins(*_masked(integers, np.int64, present, mask), output_address(counts))
    return counts


def _masked(
    cells: NDArray[Any], dtype: type[np.generic], present: NDArray[np.bool_], mask: NDArray[np.bool_]
) -> tuple[Any, ...]:
    """Return the arguments of a kernel that counts those of the n `cells` that `present` and `mask` both mark: the
    addresses of the three arrays, and n.
    """
    return address(cells, dtype, n := len(cells)), address(present, np.bool_, n), address(mask, np.bool_, n), n


def count_strings(texts: Strings, key_mask: int = _ALL_BITS) -> CountedStrings:
    """Count how often each distinct string occurs. The result is that of `numpy_kernels.count_strings`.

    Of the key (hash) of a string, only the bits that are set in `key_mask` are used. Tests pass a mask with few bits,
    so that different strings share keys.
    """
    num_rows = len(texts)
    # Make a hash table that has room for at least twice the number of strings, so that few of them collide.
    table = np.empty(1 << (2 * num_rows).bit_length(), np.int32)
    keys, counts, firsts = np.empty(num_rows, np.uint64), np.empty(num_rows, np.int64), np.empty(num_rows, np.int64)
    secret, outputs = address(_secret(), np.uint64, 2), _addresses(keys, counts, firsts)
    num_distinct = load().log_kernels_count_strings(
        texts_in_c(texts), secret, key_mask, output_address(table), len(table), *outputs
    )
    distinct = slice(num_distinct)
    return add_up(keys[distinct], counts[distinct], texts.take(firsts[distinct]))


def sketch_counts(halves: NDArray[np.uint32], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the counts that a count-min sketch (an approximate counter) has for `keys`.

    The result is that of `numpy_kernels.sketch_counts`.
    """
    counts = np.empty(len(keys), np.int64)
    of_keys = address(keys, np.uint64, len(keys)), len(keys)
    in_sketch = address(halves, np.uint32, *halves.shape), *halves.shape
    load().log_kernels_sketch_counts(*in_sketch, *of_keys, output_address(counts))
    return counts


def add_to_sketch(half: NDArray[np.uint32], keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
    """Add the counts of keys to one part of a count-min sketch (an approximate counter), the array `half`, in place.

    The result is that of `numpy_kernels.add_to_sketch`.
    """
    scratch = np.empty(len(keys), np.uint32)
    noted = address(keys, np.uint64, len(keys)), address(counts, np.int64, len(keys)), len(keys)
    load().log_kernels_sketch_add(output_address(half), *half.shape, *noted, output_address(scratch))


@functools.cache
def _secret() -> NDArray[np.uint64]:
    """Return two random numbers that are mixed into the hashes of strings. A process always gets the same numbers.

    Without them the hashes would be predictable, and somebody could write a log whose strings all have the same place
    in the hash table, which makes counting slow.
    """
    return np.frombuffer(os.urandom(16), np.uint64)
