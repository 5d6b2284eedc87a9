"""`native` beside `stock` over many steps, with a control: a start one rounding away comes out another."""

import os

import numpy as np
import pytest

from app.model.dense_state import write_parameter
from app.tables.native import library

pytestmark = pytest.mark.slow
STEPS = 200
BATCH = 200
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def losses(make_parts, make_schema, random_batch):
    """Wide losses [STEPS] of native, of stock, and of native from a start that is one rounding away."""
    if not library.LIBRARY.is_available() and not os.environ.get("CI"):
        pytest.skip("the native host tables are not built; run `make native`")
    # With vectors the tower learns so fast that a start one rounding away comes out 1e-5 apart.
    schema = make_schema(vocabulary_size=2_000, vector_widths=())
    rng = np.random.default_rng(1)
    batches = [random_batch(schema, BATCH, rng) for _ in range(STEPS)]

    def train(backend, nudged=False):
        parts = make_parts(backend, schema, f"train.batch_size={BATCH}")
        if nudged:
            nudge(parts.model.named_parameters()["tower.matrix_0"])
        return np.array([parts.step(batch, parts.step.prepare(batch)).wide_loss for batch in batches])

    return train("native"), train("stock"), train("native", nudged=True)


def nudge(parameter):
    """Move every value to the next float32."""
    write_parameter(parameter, np.nextafter(parameter.asnumpy(), np.float32(np.inf)))


def test_every_step_is_stock_s(losses):
    """200 steps came out 1.2e-7 apart, two roundings of a loss near 0.7; 1e-6 leaves room for other machines' sums.

    A start one rounding away parts as little, so these steps do not multiply roundings beyond that.
    """
    ours, stock, nudged = losses
    np.testing.assert_allclose(stock, ours, rtol=0, atol=TOLERANCE)
    assert 0 < np.abs(nudged - ours).max() < TOLERANCE
