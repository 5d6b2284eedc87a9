"""Vectors that are no vectors of numbers are rejected, in whatever form the rows come."""

import json

import numpy as np
import pytest

from data_prep.encoding.from_values import mappings_to_chunk
from data_prep.kernels import native, numpy_kernels
from data_prep.kernels.parsed import Chunk
from data_prep.options.log_format import LogFormat, VectorForm
from data_prep.raw_log.json_lines import JsonChunk
from data_prep.raw_log.storage import FileState, LogFile

FORMAT = LogFormat({"click": "label", "v": "vector"}, vectors={"v": VectorForm(2)}, separator=",", quotes=True)


def of_json(rows):
    lines = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    return JsonChunk(
        Chunk(0, len(rows), lines), FORMAT, LogFile("log.jsonl", "log.jsonl", FileState(len(lines), 0))
    ).load()


@pytest.mark.parametrize("kernels", [native, numpy_kernels])
@pytest.mark.parametrize("to_chunk", [of_json, lambda rows: mappings_to_chunk(rows, FORMAT)], ids=["JSON", "mappings"])
@pytest.mark.parametrize("good", [[1, 0.5], [0.5, 1.5], "0.5 1", []])
@pytest.mark.parametrize(
    "bad", [[True, 0.5], [0.5, True], [True, 1], [1, False], [True, False], [None, 0.5], [[1], 2], ["x", 1], [{}, ","]]
)
def test_lists_of_other_values_are_bad_vectors(kernels, to_chunk, good, bad):
    parsed = kernels.parse_chunk(to_chunk([{"click": 1, "v": good}, {"click": 0, "v": bad}]), FORMAT)
    assert parsed.rejects_by_reason == {"vector": 1}
    values, present = parsed.rows.columns["v"]
    assert present.tolist() == [good != []]
    assert np.array_equal(values, [[0.5, 1.0] if good == "0.5 1" else good or [0, 0]])
