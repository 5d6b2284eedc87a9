"""The functions that most of the work is in, as NumPy (the definition) or native (the same, faster)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels import counts, lookup, native, parse, rows, texts
from data_prep.kernels.counts import CountedTexts
from data_prep.kernels.lookup import FieldLookup, TextLookup
from data_prep.options.log_format import LogFormat

Choice = Literal["auto", "native", "numpy"]


@dataclass(frozen=True)
class Kernels:
    """See the functions of the same names in parse, counts, log_profile, text_counts, text_lookup and lookup."""

    name: str
    parse_chunk: Callable[[rows.Chunk, LogFormat], rows.ParsedChunk]
    count_values: Callable[[NDArray[np.uint32], NDArray[np.bool_], NDArray[np.bool_]], tuple[NDArray[np.uint64], int]]
    count_bins: Callable[[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]], NDArray[np.int64]]
    count_texts: Callable[[texts.Texts], CountedTexts]
    find_texts: Callable[[TextLookup, texts.Texts, NDArray[np.bool_]], NDArray[np.int64]]
    encode_values: Callable[
        [Sequence[FieldLookup], NDArray[np.uint32], NDArray[np.bool_], str], NDArray[np.signedinteger]
    ]


@functools.cache
def choose_kernels(choice: Choice) -> Kernels:
    """The kernels asked for; "auto" takes the native ones where they are built.

    Raises OSError where "native" is asked for and not built.
    """
    if choice == "native":
        native.load()
    if choice == "native" or (choice == "auto" and native.is_available()):
        return Kernels(
            "native",
            native.parse_chunk,
            native.count_values,
            native.count_bins,
            native.count_texts,
            native.find_texts,
            native.encode_values,
        )
    return Kernels(
        "numpy",
        parse.parse_chunk,
        counts.count_values,
        counts.count_bins,
        counts.count_texts,
        lookup.find_texts,
        lookup.encode_values,
    )
