"""Compare a new bundle with the model that it was exported from: score the same rows with the bundle and with the
training code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from app.evaluation.measure import Scorer, intervals_of
from app.evaluation.metrics import MetricStream, NothingToMeasureError
from app.evaluation.results import Measurement
from app.scoring.bundle_model import are_apart, golden_rows
from app.scoring.distribution import Distribution
from app.scoring.predictor import Predictor
from app.scoring.trained.card import Evaluated
from app.scoring.trained.made_rows import make_rows
from app.scoring.trained.trained_model import Trained
from app.scoring.trained.write_bundle import logit_tolerances
from common.console import progress_bar
from data_prep.encoding.encoder import RowEncoder
from data_prep.encoding.prepared_vocabulary import open_encoder, open_vocabulary
from data_prep.encoding.rows_to_score import table_to_chunk
from data_prep.prepared.batches import batches_of, read_batches, written_order

SELF_TEST_ROWS = 1000


def check_made_rows(
    predictor: Predictor,
    trained: Trained,
    scorer: Scorer,
    dense: Mapping[str, np.ndarray],
    encoder: RowEncoder | None = None,
) -> None:
    """Raise ValueError if the bundle's and the training code's logits of made-up rows differ by more than rounding
    explains.

    `predictor` is the opened bundle, with float32 rows, and `scorer` runs the training code. `dense` holds the
    checkpoint's tower arrays that the bundle's ONNX tower was built from. With `encoder`, an open encoder of the
    prepared folder, the bundle's golden rows are compared. Without it, SELF_TEST_ROWS new rows are made up and
    compared.
    """
    if encoder is not None:
        table, encoder = golden_rows(predictor), replace(encoder, options=encoder.options.without_label())
    else:
        _, options, vocabulary = open_vocabulary(trained.folder, trained.schema)
        table = make_rows(vocabulary, options.data, SELF_TEST_ROWS, seed=2)
        encoder = open_encoder(trained.folder, False, trained.schema)
    # Encode the same raw values with the prepared folder's vocabulary, not with the bundle's.
    _, encoded = encoder.encode(table_to_chunk(table, encoder.log_format))
    batches = batches_of(encoded, trained.batch_size)
    expected = np.concatenate([scorer.score(batch, scorer.prepare(batch)) for batch in batches])
    logits = predictor.logits(table)
    tolerances = logit_tolerances(predictor, dense, encoded)
    bad = np.flatnonzero(are_apart(logits, expected, tolerances))
    if bad.size:
        row = bad[0]
        raise ValueError(
            f"the self-test failed: of {len(table)} made rows, {bad.size} have another logit in the bundle than by the "
            f"training code, first row {row}: {logits[row]} and {expected[row]}; rounding explains a difference of "
            f"{tolerances[row]:.0e}"
        )


def evaluate_both(predictor: Predictor, trained: Trained, scorer: Scorer) -> Evaluated | None:
    """Evaluate the bundle and the training code on the test split, or on valid if test has no labelled rows.

    Return None if neither split has labelled rows.
    """
    for split in ("test", "valid"):
        if trained.schema.splits[split].rows:
            with contextlib.suppress(NothingToMeasureError):
                return _evaluate_split(predictor, trained, scorer, split)
    return None


def _evaluate_split(predictor: Predictor, trained: Trained, scorer: Scorer, split: str) -> Evaluated:
    """Evaluate the bundle and the training code on a split, and return the metrics of both. Write the counts of the
    split's rows (see `Distribution`) into the bundle as distribution.json.
    """
    schema, largest = trained.schema, 0.0
    of_bundle, of_training, held_out = MetricStream(), MetricStream(), Distribution(schema)
    batches = read_batches(trained.folder, schema, split, written_order(schema, split), trained.batch_size)
    with progress_bar(total=schema.splits[split].rows, desc=f"compare {split}", unit="row", unit_scale=True) as bar:
        for batch in batches:
            logits = predictor.logits_of_encoded(batch)
            expected = scorer.score(batch, scorer.prepare(batch))
            largest = max(largest, float(np.abs(logits - expected).max()))
            held_out.add(batch, logits)
            of_bundle.add(logits, batch.labels, batch.weights)
            of_training.add(expected, batch.labels, batch.weights)
            bar.update(batch.num_rows)
    held_out.write(predictor.folder)
    measured = Measurement(*of_bundle.result_and_bins())
    return Evaluated(split, measured.metrics, intervals_of(measured, trained.config), of_training.result(), largest)
