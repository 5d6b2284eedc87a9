"""Columns of an Arrow stream: views of texts are checked before pyarrow follows them, and types by name."""

import numpy as np
import pyarrow as pa
import pytest

from app.serving.forms import arrow_stream
from app.serving.forms.form import RequestError
from app.serving.options import Limits
from data_prep.options.log_format import LogFormat
from tests.request_bodies import arrow_stream as stream_of

SIZES = np.array([40, 20])
SHORT, EMPTY = (12, 123, -1, -5), (0, 0, 0, 0)  # a short text fills its view
WHOLE, END = (40, 0, 0, 0), (15, 0, 1, 5)  # length, beginning of the text, buffer, place there


@pytest.mark.parametrize("view", [SHORT, EMPTY, WHOLE, END])
def test_views_inside_their_buffers_pass(view):
    views = np.array([view, END], np.int32)
    np.testing.assert_array_equal(arrow_stream.good_views(views, np.ones(2, np.bool_), SIZES), views)


@pytest.mark.parametrize(
    "view",
    [
        (-1, 0, 0, 0),
        (41, 0, 0, 0),
        (15, 0, 1, 6),
        (15, 0, 0, -1),
        (15, 0, -1, 0),
        (15, 0, 2, 0),
        (2**31 - 1, 0, 0, 2**31 - 1),
        (-(2**31), 0, 0, 0),
    ],
)
def test_only_present_views_may_be_refused(view):
    views = np.array([END, view], np.int32)
    with pytest.raises(RequestError, match="outside its buffer"):
        arrow_stream.good_views(views, np.array([True, True]), SIZES)
    assert arrow_stream.good_views(views, np.array([True, False]), SIZES).tolist() == [list(END), list(EMPTY)]


def test_cut_views_are_refused():
    with pytest.raises(RequestError, match="cut"):
        arrow_stream.good_views(np.array([END], np.int32), np.ones(2, np.bool_), SIZES)


def texts_with_a_hidden_one(of_type):
    """Return views of three texts, the second of which is missing although its view has a length."""
    _, views, texts = pa.array(["a" * 20, "b" * 30, "c"], of_type).buffers()
    return pa.Array.from_buffers(of_type, 3, [pa.py_buffer(b"\x05"), views, texts])


@pytest.mark.parametrize("of_type", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize(
    "nest",
    [
        lambda texts: texts,
        lambda texts: texts[1:],
        lambda texts: pa.ListArray.from_arrays(pa.array([0, None, 1, 3], pa.int32()), texts),
        lambda texts: pa.FixedSizeListArray.from_arrays(texts, 3),
        lambda texts: pa.DictionaryArray.from_arrays(pa.array([2, 0, None]), texts, ordered=True),
        lambda texts: pa.LargeListArray.from_arrays([0, 2], pa.DictionaryArray.from_arrays([2, 0], texts)),
        lambda texts: pa.ListArray.from_arrays([0, 1], pa.ListArray.from_arrays([0, 3], texts)),
    ],
)
def test_nested_views_are_guarded_too(nest, of_type):
    cells = nest(texts_with_a_hidden_one(of_type))
    guarded = arrow_stream._guarded(cells)
    guarded.validate(full=True)
    assert (guarded.type, guarded.to_pylist()) == (cells.type, cells.to_pylist())
    lengths = arrow_stream._view_lengths(arrow_stream._innermost(guarded)).tolist()
    assert lengths == [20, 0, 1][-len(lengths) :]


UNKNOWN = pa.array([0], pa.timestamp("us", "Mars/Phobos"))
INTERVAL = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
KINDS_OF_A_COLUMN = ["string", "hex32", "integer", "float", "timestamp", "boolean", "list"]


def coded(cells):
    return pa.DictionaryArray.from_arrays([0], cells)


def listed(cells):
    return pa.ListArray.from_arrays([0, 1], cells)


@pytest.mark.parametrize("kind", KINDS_OF_A_COLUMN)
@pytest.mark.parametrize("cells", [UNKNOWN, INTERVAL], ids=["zone", "interval"])
@pytest.mark.parametrize("nest", [lambda cells: cells, coded, listed])
def test_times_without_a_text_are_named(kind, cells, nest):
    body, log_format = stream_of(pa.table({"site": nest(cells)})), LogFormat({"label": "label", "site": kind})
    if kind == "timestamp" and cells is UNKNOWN and nest is not listed:  # The moment is known without the zone.
        assert arrow_stream.to_chunk(body, log_format, Limits()).lines == b"0\t0\n"
        return
    with pytest.raises(RequestError, match=r"column 'site' is of type .*; expected for kind .*strings") as refused:
        arrow_stream.to_chunk(body, log_format, Limits())
    assert (refused.value.status, str(cells.type) in str(refused.value)) == (400, True)
