"""The tables' learning rates after a warm start with another run's moments."""

from dataclasses import replace

import numpy as np
import pytest

from app.config.optimizer_settings import AdagradOptions, AdamOptions, FtrlOptions, LazyAdamOptions
from app.tables.fields import TableField
from app.tables.interface import DEEP, WIDE, RowGradients, TablesSpec
from app.tables.optimizers import LAST_STEP
from app.tables.reference import ReferenceTables
from app.training.learning_rates import LearningRates


@pytest.fixture
def make_tables():
    def make(deep, steps_before):
        rates = LearningRates({WIDE: FtrlOptions(learning_rate=0.01), DEEP: replace(deep, learning_rate=0.01)})
        rates.load_state({"steps_before": steps_before})
        assert rates.state() == ({"steps_before": steps_before} if steps_before else {})
        spec = TablesSpec(
            50, 5, (TableField("a"), TableField("b"), TableField("c")), 7, 0.01, 1e-3, FtrlOptions(), deep
        )
        return ReferenceTables(spec, rates.of_tables())

    return make


@pytest.mark.parametrize("deep", [LazyAdamOptions(), AdamOptions(), AdagradOptions()], ids=lambda options: options.name)
def test_the_next_steps_are_those_that_would_have_come(make_tables, deep):
    trained, warm, rng = make_tables(deep, 0), make_tables(deep, 2), np.random.default_rng(0)
    ids = rng.integers(0, 50, (20, 3)).astype(np.int32)

    def take_step(*tables):
        gradients = RowGradients(rng.standard_normal((20, 15), np.float32), rng.standard_normal(20, np.float32))
        for each in tables:
            each.update(each.unique(ids), gradients)

    for _ in range(2):
        take_step(trained)
    saved = trained.state()[DEEP]
    with warm.loading(step=0) as place:
        for name, values in saved.arrays.items():
            if name != LAST_STEP:
                place(DEEP, saved.row_ids)(name, values)
    for _ in range(3):
        take_step(trained, warm)
        expected, found = (each.lookup(each.unique(ids)).deep for each in (trained, warm))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)  # the rate's float32 rounding
