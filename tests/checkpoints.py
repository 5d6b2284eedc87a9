"""Checkpoints read into memory, for tests that compare states."""

from app.checkpoint.read import Checkpoint
from app.checkpoint.write import ModelState
from app.tables.interface import TableState


def load(path):
    """Return manifest and state of the checkpoint at `path`, verified."""
    checkpoint = Checkpoint.open(path)
    checkpoint.verify()
    state = checkpoint.state()
    tables = {
        table: TableState(rows.row_ids, {name: rows.read(name, slice(None)) for name in rows.layout})
        for table, rows in state.tables.items()
    }
    return checkpoint.manifest, ModelState(state.dense, tables)
