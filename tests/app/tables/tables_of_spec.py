"""Tables whose learning rates are those that their optimizers' options name, unless a test gives others."""

from app.tables.interface import DEEP, WIDE
from app.tables.native.tables import NativeTables
from app.tables.reference import ReferenceTables


def constant_rates(spec):
    return {WIDE: lambda step: spec.wide_optimizer.learning_rate, DEEP: lambda step: spec.deep_optimizer.learning_rate}


def native_tables(spec, num_threads=None, **rates):
    """`rates` by table: `native_tables(spec, deep=lambda step: 0.1 / step)`."""
    return NativeTables(spec, constant_rates(spec) | rates, num_threads)


def reference_tables(spec, **rates):
    return ReferenceTables(spec, constant_rates(spec) | rates)
