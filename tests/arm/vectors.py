"""Save what the native parts compute from fixed inputs: python -m tests.arm.vectors OUTPUT"""

import sys

import numpy as np

from app.config.optimizer_settings import FtrlOptions
from app.tables.fields import TableField
from app.tables.interface import DEEP, WIDE, RowGradients, TablesSpec
from data_prep.kernels import native
from data_prep.kernels.strings import Strings
from tests.app.tables.tables_of_spec import DEEP_OPTIMIZERS, native_tables
from tests.data_prep.kernels.generated_logs import generate_log

NUM_LOGS = 30


def parsed():
    """Yield the columns of logs with every kind of cell, good and bad."""
    for seed in range(NUM_LOGS):
        log = generate_log(seed)
        for number, chunk in enumerate(log.chunks(100)):
            for name, cells in native.parse_chunk(chunk, log.log_format).rows.columns.items():
                texts = isinstance(cells.values, Strings)
                values = [text.hex() for text in cells.values.tolist()] if texts else cells.values
                yield f"parse.{seed}.{number}.{name}.values", np.array(values, "U" if texts else None)
                yield f"parse.{seed}.{number}.{name}.present", cells.present


def updated():
    """Yield the rows and states of tables after steps of every optimizer, in both dtypes."""
    fields = tuple(TableField(f"C{number}") for number in range(3))
    for number, deep in enumerate(DEEP_OPTIMIZERS):
        for dtype in ("float32", "bfloat16")[: 1 if deep.name == "ftrl" else 2]:
            spec = TablesSpec(300, 20, fields, 7, 0.01, 1e-3, FtrlOptions(), deep, ema_decay=0.9, dtype=dtype)
            tables, rng = native_tables(spec, 2), np.random.default_rng(3)
            for _ in range(6):
                ids = (rng.random((20, 3)) ** 3 * 300).astype(np.int32)
                gradients = rng.standard_normal((20, 60), np.float32), rng.standard_normal(20, np.float32)
                tables.update(tables.unique(ids), RowGradients(*gradients, 0.3))
            for table in (WIDE, DEEP):
                state = tables.state()[table]
                for name, values in {"ids": state.row_ids, **state.arrays}.items():
                    yield f"tables.{number}.{dtype}.{table}.{name}", values.view(f"u{values.itemsize}")


def computed():
    return dict([*parsed(), *updated()])


if __name__ == "__main__":
    np.savez(sys.argv[1], **computed())
