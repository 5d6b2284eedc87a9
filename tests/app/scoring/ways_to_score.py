"""Score rows as the service does that gets them in a request, and as the command `predict` does that reads a file."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from app.scoring.batch_prediction import predict
from app.serving.decoding import decode_tensors
from app.serving.forms import FORMS
from app.serving.options import Limits


def served_scores(predictor, content_type, body):
    """Return the scores of a request to /v1/score. The test fails if a row is rejected."""
    return _chunk_scores(predictor, FORMS[content_type].to_chunk(body, predictor.log_format, Limits()))


def tensor_scores(predictor, body, length=None):
    """Return the scores of a V2 request. `length` is the header with the length of its JSON, if binary data follow."""
    return _chunk_scores(predictor, decode_tensors(length, predictor.log_format, Limits(), body)[0])


def _chunk_scores(predictor, chunk):
    scored = predictor.score_chunk(chunk)
    assert not scored.rejected, scored.rejected
    return (1 / (1 + np.exp(-scored.logits.astype(np.float64)))).astype(np.float32)


def file_scores(bundle, path, **expected):
    """Return the scores of a log's file, none of whose lines may be bad. The summary must have the `expected` items."""
    output = Path(f"{path}.scores.parquet")
    summary = predict(bundle, [str(path)], str(output), num_workers=1, overwrite=True)
    table = pq.read_table(output)
    assert summary["bad_lines"] == 0, table["reason"].to_pylist()
    assert expected.items() <= summary.items()
    return table["score"].to_numpy()
