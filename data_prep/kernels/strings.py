"""Store and process arrays of byte strings, many strings at a time.

The key of a string is a 64-bit hash, by which it is found quickly. Equality is decided by comparing bytes, so different
strings with the same key stay different. Somebody can easily construct strings that share a key, so such strings must
not take longer to process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.arrays.hashing import GOLDEN, mix64

_WORD_BYTES = 8
PADDING_BYTES = _WORD_BYTES  # Number of bytes after the last string.
_PADDING = np.zeros(PADDING_BYTES, np.uint8)
# Whole floats as pandas, C and Java write large ones. A point or a sign tells them from hex digits such as 12e7.
_LARGE_FLOAT = re.compile(rb"-?(?:[0-9]{16,}\.0|[0-9](?:\.[0-9]+)?[eE]\+[0-9]{2,3}|[0-9]\.[0-9]+[eE][0-9]{2,3})")
_WHOLE, _WHOLE_WITH_POINT = re.compile(rb"-?[0-9]{1,15}"), re.compile(rb"-?[0-9]{1,15}\.0")
# Masks that keep the n lowest bytes of a word, by n from 0 to 8. They clear the bytes after the end of a string.
_OWN_MASKS = np.array([2 ** (8 * n) - 1 for n in range(_WORD_BYTES + 1)], np.uint64)


@dataclass(frozen=True)
class Strings:
    """An array of n byte strings, which are slices of the shared buffer `data`.

    `data` has at least seven more bytes after the end of every string, so that words of eight bytes can be read.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]  # Offset of each string [n] in `data`.
    lengths: NDArray[np.int64]  # Length of each string [n] in bytes.

    @classmethod
    def of(cls, strings: Sequence[bytes]) -> Strings:
        lengths = np.array([len(string) for string in strings], np.int64)
        data = np.concatenate([np.frombuffer(b"".join(strings), np.uint8), _PADDING])
        return cls(data, np.cumsum(lengths) - lengths, lengths)

    def __len__(self) -> int:
        return len(self.starts)

    def tolist(self) -> list[bytes]:
        ends = self.starts + self.lengths
        return [self.data[start:end].tobytes() for start, end in zip(self.starts, ends, strict=True)]

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + self.starts.nbytes + self.lengths.nbytes

    def take(self, selection: NDArray[np.generic] | slice) -> Strings:
        """Return the strings that a mask, an index array or a slice selects. They share the buffer."""
        return Strings(self.data, self.starts[selection], self.lengths[selection])

    def compact(self) -> Strings:
        """Return a copy of the strings in a new buffer, where they follow each other without gaps."""
        starts = np.cumsum(self.lengths) - self.lengths
        positions = np.arange(int(self.lengths.sum())) + np.repeat(self.starts - starts, self.lengths)
        return Strings(np.concatenate([self.data[positions], _PADDING]), starts, self.lengths.copy())

    def keys(self) -> NDArray[np.uint64]:
        """Return a 64-bit hash of each string [n].

        Different strings of the same length, up to eight bytes, always have different hashes.
        """
        keys = self.lengths.astype(np.uint64) * GOLDEN
        for number in range(-(-int(self.lengths.max(initial=0)) // _WORD_BYTES)):
            longer = np.flatnonzero(self.lengths > number * _WORD_BYTES)
            mixed = (keys[longer] ^ self._words(number, longer)) * np.uint64(0xD6E8FEB86659FD93)
            keys[longer] = mixed ^ mixed >> np.uint64(32)
        return mix64(keys)

    def equal(self, others: Strings) -> NDArray[np.bool_]:
        """Return a mask [n] that tells where a string equals the string at the same index in `others` [n]."""
        same = self.lengths == others.lengths
        for number in range(-(-int(self.lengths.max(initial=0, where=same)) // _WORD_BYTES)):
            longer = np.flatnonzero(same & (self.lengths > number * _WORD_BYTES))
            same[longer] = self._words(number, longer) == others._words(number, longer)
        return same

    def are_ascii(self) -> NDArray[np.bool_]:
        """Return a mask [n] of the strings that have no byte above 127."""
        ascii_only = np.ones(len(self), np.bool_)
        for number in range(-(-int(self.lengths.max(initial=0)) // _WORD_BYTES)):
            longer = np.flatnonzero(self.lengths > number * _WORD_BYTES)
            ascii_only[longer] &= self._words(number, longer) & np.uint64(0x8080808080808080) == 0
        return ascii_only

    def one_of(self, strings: Iterable[str]) -> NDArray[np.bool_]:
        """Return a mask [n] of the strings that equal one of the given strings, which should be few."""
        is_among = np.zeros(len(self), np.bool_)
        for string in strings:
            one = Strings.of([string.encode()])
            is_among |= self.equal(one.take(np.zeros(len(self), np.int64)))
        return is_among

    def _words(self, number: int, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return eight bytes of each string in `places`, from byte 8 * number on, as one little-endian word.

        Bytes after the end of a string are 0.
        """
        words: NDArray[np.uint64] = np.ndarray((len(self.data) - _WORD_BYTES + 1,), "<u8", self.data, strides=(1,))
        num_bytes = np.clip(self.lengths[places] - number * _WORD_BYTES, 0, _WORD_BYTES)
        return words[self.starts[places] + number * _WORD_BYTES] & _OWN_MASKS[num_bytes]


def end_in_point_zero(texts: Strings) -> NDArray[np.bool_]:
    """Return a mask [n] of the strings that end in .0 and have at least one byte before it."""
    ends = texts.starts + texts.lengths
    return (texts.lengths > 2) & (texts.data[ends - 2] == ord(".")) & (texts.data[ends - 1] == ord("0"))


def are_whole(texts: Strings, has_point: bool) -> NDArray[np.bool_]:
    """Return a mask [n] of the strings that are whole numbers in the form 7.0 (with `has_point`) or 7 (without).

    Only numbers of up to 15 digits count, because a float may not represent longer numbers exactly.
    """
    lasts = texts.data[texts.starts + texts.lengths - 1] - np.uint8(ord("0"))
    are_whole = (texts.lengths > 0) & (lasts <= 9) & (end_in_point_zero(texts) == has_point)
    places, form = np.flatnonzero(are_whole), _WHOLE_WITH_POINT if has_point else _WHOLE
    are_whole[places] = [form.fullmatch(text) is not None for text in texts.take(places).tolist()]
    return are_whole


def are_inexact_texts(texts: Strings) -> NDArray[np.bool_]:
    """Return which strings [n] are floats of 2**53 and above, each of which stands for several whole numbers."""
    are_inexact, ends = (texts.lengths >= 5) & (texts.lengths <= 320), texts.starts + texts.lengths
    marks = [texts.data[ends - place] for place in (3, 4)]
    has_mark = np.any([np.isin(each, np.frombuffer(b"+eE", np.uint8)) for each in marks], axis=0)
    are_inexact &= has_mark | (end_in_point_zero(texts) & (texts.lengths >= 18))
    places = np.flatnonzero(are_inexact)
    found = texts.take(places).tolist()
    are_inexact[places] = [bool(_LARGE_FLOAT.fullmatch(text)) and abs(float(text)) >= 2.0**53 for text in found]
    return are_inexact


def with_whole_numbers(texts: Strings, has_point: bool) -> Strings:
    """Return strings [n] in which whole numbers are rewritten in the form 7.0 (with `has_point`) or 7 (without)."""
    changed = are_whole(texts, not has_point)
    if not has_point:
        return Strings(texts.data, texts.starts, texts.lengths - 2 * changed)
    if not changed.any():
        return texts
    return Strings.of([text + b".0" * change for text, change in zip(texts.tolist(), changed.tolist(), strict=True)])


def trim_blanks(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the start and end offsets of texts without the blanks at their beginning and end."""
    starts, ends = starts.copy(), ends.copy()
    for edges, step in ((starts, 1), (ends, -1)):
        at = 0 if step > 0 else -1
        while (blank := (ends > starts) & (data[np.minimum(edges + at, len(data) - 1)] == ord(" "))).any():
            edges[blank] += step
    return starts, ends
