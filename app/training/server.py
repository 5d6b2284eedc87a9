"""Run a server: a rank that owns rows of both tables with their optimizers, but does not train or import MindSpore.

It takes part in every exchange of the training ranks, and carries out their requests: load and save rows, adopt
learning rates that an evaluation has lowered, and end.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.checkpoint.read import Checkpoint
from app.checkpoint.write import write_shards
from app.config.config import Config
from app.distributed.process_group import MpiGroup
from app.distributed.sharded_tables import Operation, make_sharded_tables
from app.run.claim import server_folder
from app.run.stop_signals import FORWARDED_SIGNALS
from app.tables.backends import table_spec
from app.tables.interface import Snapshot
from app.training.auto.memory import with_storage
from app.training.learning_rates import LearningRates
from app.training.saving import table_statistics
from app.training.warm_start.source import open_source
from app.training.warm_start.take_over import take_rows
from common.files import FileRecord
from common.process import peak_memory
from data_prep.prepared.schema import Schema

log = logging.getLogger(__name__)

LOG = "server{0}.log"


def serve(config: Config, schema: Schema, backend: str, group: MpiGroup, run: Path) -> int:
    """Run a server: look up and update the table rows that it owns, until the training ranks end it. Return the exit
    status 0.

    The log is written into the server's own folder beside `run`, the folder of the run.
    """
    server = group.world.rank
    folder = server_folder(run, server)
    folder.mkdir(exist_ok=True)
    log_file = logging.FileHandler(folder / LOG.format(server), encoding="utf-8")
    log_file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.getLogger().addHandler(log_file)
    for number in (signal.SIGINT, *FORWARDED_SIGNALS):
        # A server ignores the signals to stop, because the training ranks still need its table rows to finish their
        # step. The training ranks then end the server.
        signal.signal(number, signal.SIG_IGN)
    log.info("server %d of %d: the tables are %s", server, group.num_servers, backend)
    ParameterServer(config, schema, backend, group, folder).run()
    log.info("the ranks that train have ended")
    return 0


class ParameterServer:
    """A server (rank that owns table rows but does not train): its rows, and the functions that training ranks may
    call.
    """

    def __init__(self, config: Config, schema: Schema, backend: str, group: MpiGroup, folder: Path) -> None:
        self._group = group
        spec = with_storage(table_spec(config, schema), config, schema, backend, group, folder)
        self._rates = LearningRates(config.optimizers)
        self._tables, self._shards = make_sharded_tables(
            backend, spec, self._rates.of_tables(), group.world, group.num_owners, config.device.num_threads
        )
        self._config, self._schema = config, schema
        self._snapshot: Snapshot | None = None
        self._calls: dict[str, Callable[..., Any]] = {
            "load": self._load,
            "write_shards": self._write_shards,
            "release": self._release,
            "statistics": self._statistics,
            "peak_memory": peak_memory,
            "learning_rates": self._rates.load_state,
            "warm_start": self._warm_start,
        }

    def run(self) -> None:
        """Take part in the training ranks' lookups and updates, and run the functions that the training ranks call by
        name (`_calls`). Return once they send the call that ends this server.
        """
        while True:
            header = self._shards[0].exchange.start(Operation.NONE)
            if header.operation != Operation.RPC:
                self._shards[header.shard].serve(header)
            elif not self._group.serve_rpc(self._calls):
                return

    def _load(self, checkpoint: Checkpoint) -> None:
        self._rates.load_state(checkpoint.manifest.schedules)
        with self._tables.loading(checkpoint.manifest.step) as place:
            checkpoint.read_once(self._tables.spec, place)

    def _warm_start(self, dataset: Path, init_from: str) -> None:
        """Load the rows that this server owns from the trained model at `init_from`.

        The training ranks pass `init_from`, because its path may have changed since this server read `train.init_from`.
        """
        config = replace(self._config, train=replace(self._config.train, init_from=init_from))
        source = open_source(config, self._schema, dataset)
        take_rows(self._tables.loading, self._tables.spec, self._rates, config, self._schema, source)

    def _write_shards(self, partial: Path, changed_only: bool) -> dict[str, FileRecord]:
        self._snapshot = self._tables.snapshot(changed_only)
        return write_shards(partial, self._snapshot.tables, self._group.world.rank, self._group.num_owners)

    def _release(self, saved: bool) -> None:
        if self._snapshot is not None:
            self._snapshot.release(saved)
        self._snapshot = None

    def _statistics(self) -> dict[str, float]:
        snapshot = self._tables.snapshot(changed_only=False)
        try:
            return table_statistics(snapshot.tables, self._schema.vocabulary_size)
        finally:
            snapshot.release(saved=False)
