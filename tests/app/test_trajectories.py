"""`native` beside `stock` over many steps, with a control: what a start one rounding away does."""

import os

import numpy as np
import pytest

from app.parameters import write
from app.tables import native_library

STEPS = 200
CLOSE_STEPS = 20
BATCH = 200


@pytest.fixture(scope="module")
def losses(make_parts, make_schema, random_batch):
    """Wide losses [STEPS] of native, of stock, and of native from a start that is one rounding away."""
    if not native_library.is_available() and not os.environ.get("CI"):
        pytest.skip("the native host tables are not built; run `make native`")
    schema = make_schema(vocabulary_size=2_000)
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
    write(parameter, np.nextafter(parameter.asnumpy(), np.float32(np.inf)))


def test_the_first_steps_are_stock_s(losses):
    ours, stock, _ = losses
    np.testing.assert_allclose(ours[:CLOSE_STEPS], stock[:CLOSE_STEPS], rtol=0, atol=1e-5)


def test_later_steps_part_no_further_than_ten_roundings_do(losses):
    """Training multiplies any rounding, so that a fixed tolerance would say nothing of step 200."""
    ours, stock, nudged = losses
    control = np.maximum.accumulate(np.abs(nudged - ours))
    assert control[-1] > 0
    apart = np.abs(stock - ours)
    assert (apart[CLOSE_STEPS:] <= np.maximum(10 * control[CLOSE_STEPS:], 1e-6)).all()
