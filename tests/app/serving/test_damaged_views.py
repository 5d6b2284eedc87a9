"""Streams of Arrow whose views of texts are damaged are refused, before pyarrow follows the views."""

import random

import pyarrow as pa
import pytest

from app.serving.forms import arrow_stream
from app.serving.forms.form import RequestError
from app.serving.options import Limits
from data_prep.options.log_format import LogFormat

FORMAT = LogFormat({"label": "label", "site": "string"})


@pytest.mark.parametrize("seed", range(20))
def test_damaged_views_are_refused_or_read(seed):
    random_, sink = random.Random(seed), pa.BufferOutputStream()
    table = pa.table({"site": pa.array(["a" * 20, "b" * 30, None], pa.string_view())})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream, statuses = sink.getvalue().to_pybytes(), set()
    for _ in range(100):
        damaged = bytearray(stream)
        damaged[random_.randrange(len(stream))] = random_.choice([0, 1, 127, 128, 255])
        try:
            statuses.add(arrow_stream.to_chunk(bytes(damaged), FORMAT, Limits()).num_lines)
        except RequestError as error:
            statuses.add(error.status)
    assert statuses <= {1, 2, 3, 400, 413}
