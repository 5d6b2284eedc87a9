"""Compare the bundle of a trained model with the training code on the same rows."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from app.evaluation.measure import Scorer, intervals_of
from app.evaluation.metrics import MetricStream, NothingToMeasureError
from app.evaluation.results import Measurement
from app.scoring.bundle_model import are_apart, golden_rows
from app.scoring.distribution import Distribution
from app.scoring.predictor import Predictor
from app.scoring.trained import card
from app.scoring.trained.made_rows import make_rows
from app.scoring.trained.trained_model import Trained
from app.scoring.trained.write_bundle import logit_tolerances
from common.console import progress_bar
from data_prep.encoding.encoder import RowEncoder
from data_prep.encoding.from_table import table_to_chunk
from data_prep.encoding.prepared_vocabulary import open_encoder, open_vocabulary
from data_prep.prepared.batches import Batch, read_batches, written_order

SELF_TEST_ROWS = 1000


@dataclass(frozen=True)
class Comparison:
    """Scores rows with an opened bundle (`predictor`) and with the training code (`scorer`)."""

    trained: Trained
    predictor: Predictor
    scorer: Scorer
    # An open encoder of the prepared folder. If it is given, the golden rows are compared with it. Otherwise newly made
    # rows are compared, and the encoder is opened for them.
    encoder: RowEncoder | None = None

    def check_made_rows(self, dense: dict[str, np.ndarray]) -> None:
        """Raise ValueError if logits of made rows differ by more than rounding explains. Valid for bundles with float32
        rows.

        `dense` are the dense arrays that the bundle's tower was made from.
        """
        size = self.trained.batch_size
        table, encoder = self._rows_and_encoder()
        # The training code encodes the same raw values itself.
        _, encoded = encoder.encode(table_to_chunk(table, encoder.log_format))
        batches = [slice(start, start + size) for start in range(0, len(table), size)]
        expected = np.concatenate([self._expected(encoded.ids[batch], encoded.numeric[batch]) for batch in batches])
        logits = self.predictor.logits(table)
        tolerances = logit_tolerances(self.predictor, dense, encoded.ids, encoded.numeric)
        bad = np.flatnonzero(are_apart(logits, expected, tolerances))
        if bad.size:
            row = bad[0]
            raise ValueError(
                f"the self-test failed: of {len(table)} made rows, {bad.size} have another logit in the bundle "
                f"than by the training code, first row {row}: {logits[row]} and {expected[row]}; rounding explains a "
                f"difference of {tolerances[row]:.0e}"
            )

    def _rows_and_encoder(self) -> tuple[pa.Table, RowEncoder]:
        if self.encoder is not None:
            return golden_rows(self.predictor), self.encoder.without_label()
        folder, schema = self.trained.folder, self.trained.schema
        _, options, vocabulary = open_vocabulary(folder, schema)
        return make_rows(vocabulary, options.data, SELF_TEST_ROWS, seed=2), open_encoder(folder, False, schema)

    def evaluate(self) -> card.Evaluated | None:
        """Evaluate the bundle and the training code on the test split, or on valid if test has no labelled rows.

        Return None if neither split has labelled rows.
        """
        for split in ("test", "valid"):
            if self.trained.schema.splits[split].rows:
                with contextlib.suppress(NothingToMeasureError):
                    return self._evaluate_split(split)
        return None

    def _evaluate_split(self, split: str) -> card.Evaluated:
        folder, schema = self.trained.folder, self.trained.schema
        of_bundle, of_training, held_out = MetricStream(), MetricStream(), Distribution(schema)
        largest = 0.0
        batches = read_batches(folder, schema, split, written_order(schema, split), self.trained.batch_size)
        with progress_bar(total=schema.splits[split].rows, desc=f"compare {split}", unit="row", unit_scale=True) as bar:
            for batch in batches:
                logits = self.predictor.logits_of_ids(batch.ids, batch.numeric)
                expected = self._expected(batch.ids, batch.numeric)
                largest = max(largest, float(np.abs(logits - expected).max()))
                held_out.add(batch.ids, batch.numeric, logits)
                of_bundle.add(logits, batch.labels, batch.weights)
                of_training.add(expected, batch.labels, batch.weights)
                bar.update(batch.num_rows)
        held_out.write(self.predictor.folder)
        measured = Measurement(*of_bundle.result_and_bins())
        intervals = intervals_of(measured, self.trained.config)
        return card.Evaluated(split, measured.metrics, intervals, of_training.result(), largest)

    def _expected(self, ids: np.ndarray, numeric: np.ndarray) -> np.ndarray:
        """Return the training code's logits, float32 [n], of `ids` [n, C] and `numeric` [n, N]."""
        batch = Batch(ids, numeric, np.zeros(len(ids), np.float32))
        return self.scorer.score(batch, self.scorer.prepare(batch))
