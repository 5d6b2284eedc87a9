"""Arrays of byte strings, processed many at a time.

A string's key is a 64-bit hash of it, to find it quickly. Equality is decided by comparing bytes, so different
strings with the same key stay different. Such strings are easy to write on purpose, so they must not take longer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.hashing import GOLDEN, mix64

_WORD_BYTES = 8
PADDING_BYTES = _WORD_BYTES  # after the last string
_PADDING = np.zeros(PADDING_BYTES, np.uint8)
# Whole floats as pandas, C and Java write large ones. A point or a sign tells them from hex digits such as 12e7.
_LARGE_FLOAT = re.compile(rb"-?(?:[0-9]{16,}\.0|[0-9](?:\.[0-9]+)?[eE]\+[0-9]{2,3}|[0-9]\.[0-9]+[eE][0-9]{2,3})")
_WHOLE, _WHOLE_WITH_POINT = re.compile(rb"-?[0-9]{1,15}"), re.compile(rb"-?[0-9]{1,15}\.0")
# Masks that clear the bytes after a string's end in its last word, by the number of its own bytes there, 0-8.
_OWN_MASKS = np.array([2 ** (8 * n) - 1 for n in range(_WORD_BYTES + 1)], np.uint64)


@dataclass(frozen=True)
class Strings:
    """Strings by their positions in `data`, which has at least seven more bytes after the last of them."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]  # [n]
    lengths: NDArray[np.int64]  # [n]

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
        """Return the strings that a mask, an index or a slice chooses, in the same memory."""
        return Strings(self.data, self.starts[selection], self.lengths[selection])

    def compact(self) -> Strings:
        """Return the same strings end to end in memory of their own."""
        starts = np.cumsum(self.lengths) - self.lengths
        positions = np.arange(int(self.lengths.sum())) + np.repeat(self.starts - starts, self.lengths)
        return Strings(np.concatenate([self.data[positions], _PADDING]), starts, self.lengths.copy())

    def keys(self) -> NDArray[np.uint64]:
        """Return a hash of each string [n]. Strings of the same length of up to eight bytes have different hashes."""
        keys = self.lengths.astype(np.uint64) * GOLDEN
        for number in range(-(-int(self.lengths.max(initial=0)) // _WORD_BYTES)):
            longer = np.flatnonzero(self.lengths > number * _WORD_BYTES)
            mixed = (keys[longer] ^ self._words(number, longer)) * np.uint64(0xD6E8FEB86659FD93)
            keys[longer] = mixed ^ mixed >> np.uint64(32)
        return mix64(keys)

    def equal(self, others: Strings) -> NDArray[np.bool_]:
        """Return where each string equals the one at the same index of `others` [n]."""
        same = self.lengths == others.lengths
        for number in range(-(-int(self.lengths.max(initial=0, where=same)) // _WORD_BYTES)):
            longer = np.flatnonzero(same & (self.lengths > number * _WORD_BYTES))
            same[longer] = self._words(number, longer) == others._words(number, longer)
        return same

    def are_ascii(self) -> NDArray[np.bool_]:
        """Return which strings [n] have no byte above 127."""
        ascii_only = np.ones(len(self), np.bool_)
        for number in range(-(-int(self.lengths.max(initial=0)) // _WORD_BYTES)):
            longer = np.flatnonzero(self.lengths > number * _WORD_BYTES)
            ascii_only[longer] &= self._words(number, longer) & np.uint64(0x8080808080808080) == 0
        return ascii_only

    def one_of(self, strings: Iterable[str]) -> NDArray[np.bool_]:
        """Return which strings [n] are among a few others."""
        is_among = np.zeros(len(self), np.bool_)
        for string in strings:
            one = Strings.of([string.encode()])
            is_among |= self.equal(one.take(np.zeros(len(self), np.int64)))
        return is_among

    def _words(self, number: int, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return bytes 8 * number to 8 * number + 7 of each chosen string, 0 after its end, as one word."""
        words: NDArray[np.uint64] = np.ndarray((len(self.data) - _WORD_BYTES + 1,), "<u8", self.data, strides=(1,))
        num_bytes = np.clip(self.lengths[places] - number * _WORD_BYTES, 0, _WORD_BYTES)
        return words[self.starts[places] + number * _WORD_BYTES] & _OWN_MASKS[num_bytes]


def end_in_point_zero(texts: Strings) -> NDArray[np.bool_]:
    """Return which strings [n] are .0 after something else."""
    ends = texts.starts + texts.lengths
    return (texts.lengths > 2) & (texts.data[ends - 2] == ord(".")) & (texts.data[ends - 1] == ord("0"))


def are_whole(texts: Strings, has_point: bool) -> NDArray[np.bool_]:
    """Return which strings [n] are whole numbers of up to 15 digits, written as 7.0 (`has_point`) or as 7.

    A longer one may have lost digits on its way through a float.
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
    """Return strings [n] with whole numbers written as 7.0 (`has_point`) or as 7."""
    changed = are_whole(texts, not has_point)
    if not has_point:
        return Strings(texts.data, texts.starts, texts.lengths - 2 * changed)
    if not changed.any():
        return texts
    return Strings.of([text + b".0" * change for text, change in zip(texts.tolist(), changed.tolist(), strict=True)])


def trim_blanks(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return starts and ends of texts without the blanks before and after them."""
    starts, ends = starts.copy(), ends.copy()
    for edges, step in ((starts, 1), (ends, -1)):
        at = 0 if step > 0 else -1
        while (blank := (ends > starts) & (data[np.minimum(edges + at, len(data) - 1)] == ord(" "))).any():
            edges[blank] += step
    return starts, ends
