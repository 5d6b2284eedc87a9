"""Run the loop of an online run: for each part of the log, score it, train on each of its rows once, save a checkpoint,
and publish the model as a bundle.
"""

from __future__ import annotations

import json
import logging
import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from app.checkpoint.manifest import Position
from app.checkpoint.read import Checkpoint
from app.evaluation.measure import Scorer, intervals_of
from app.evaluation.metrics import MetricStream
from app.evaluation.results import Measurement, interval_ends
from app.online.expiry import IN_SECONDS, Expiry
from app.online.log_parts import Ledger, Part, open_source, read_part, why_miscalibrated, why_suspicious, why_useless
from app.online.online_options import OnlineOptions
from app.online.progress import Progress
from app.online.publish import LAST_PARTS, Publisher, Samples, scores_shift, served_logits, why_worse
from app.online.state import (
    HELD_ASIDE,
    PREPARED,
    RELEASED,
    STATUS,
    VALUE_COUNTS,
    load_counts,
    remove_old_bundles,
    remove_old_folders,
    save_counts,
)
from app.run.stop_signals import Stopped
from app.scoring.distribution import SCORE_BINS, count_scores
from app.scoring.predictor import Predictor
from app.tables.backends import fields_of_model
from app.tables.fields import columns_of
from app.tables.interface import HostTables, UniqueIds
from app.training.context import RunContext
from app.training.loop import Trainer
from app.training.step.step import HostTablesStep
from app.training.warm_start.source import find_source
from common.arrays.pages import give_back_freed_memory
from common.files import write_whole
from common.text import natural_order, shortened
from data_prep.encoding.growing import GrowingVocabulary, open_to_grow
from data_prep.prepared.batches import Batch, batches_of
from data_prep.prepared.data_files import out_of_vocabulary
from data_prep.prepared.examples import Examples
from data_prep.prepared.prefetch import Prefetcher
from data_prep.prepared.schema import NO_ID
from data_prep.prepared.truth import best_possible, truth_path
from data_prep.raw_log.storage import LogFile

log = logging.getLogger("app")

SAMPLES = "samples"  # Name of the folder in the run's folder that contains rows of the last parts (files of the log).
POLL_SECONDS = 0.5
# Of this number of consecutive checkpoints, one is full. The others are deltas, which hold only the embedding rows that
# changed since the checkpoint before.
FULL_EVERY = 24
# Minimum pause between two searches for new files (parts) in the folder of the log, as a multiple of the time that the
# last search took. Searching a folder with many files takes long.
REST = 20
# Number of bins into which the logits of a part (file of the log) are counted for confidence intervals. With 8 times as
# many, the intervals take 0.5 s of CPU time instead of 0.1 s, and change no more than with another random seed.
INTERVAL_BINS = 2000
# The time of a part's file may be ahead of this machine's clock by at most this share of --expire-after, the age at
# which values lose their ids.
MOST_AHEAD = 0.1


class OnlineTrainer(Trainer):
    """Trains on the parts (files) of a growing log as they come. Each part counts as an epoch."""

    def __init__(self, context: RunContext, backend: str, options: OnlineOptions) -> None:
        saved, prepared = context.run.plan.checkpoint, context.run.path / PREPARED
        moment = None if saved is None else saved.manifest.data
        if saved is not None:
            prepared = context.run.path / Path(saved.manifest.dataset).name
        is_own = context.dataset.resolve().parent == context.run.path.resolve()
        schema = open_to_grow(prepared if is_own else context.dataset, prepared, moment)
        super().__init__(replace(context, dataset=prepared, schema=schema), backend)
        self.checkpoints.full_every = FULL_EVERY
        self.options = options
        self.source = open_source(options.source, self.run.path / RELEASED, options.delay_seconds, schema.source)
        self.ledger = Ledger(**saved.manifest.online) if saved is not None else self._ledger_of_source()
        self.expiry = self._open_expiry()
        self.vocabulary = GrowingVocabulary(prepared, options.admission_mib << 20)
        # Step at which the counts of values without ids were last saved, or None if all counts, not only the changes
        # since, must be saved next.
        self._counted_at: int | None = None
        if options.admission_mib and saved is not None:
            counts = load_counts(self.run.path / VALUE_COUNTS, saved.manifest.step)
            self.vocabulary.load_counts(counts)
            self._counted_at = saved.manifest.step if counts else None
        self.samples = Samples(self.run.path / SAMPLES)
        scorer = Scorer(self.training.step.prepare, self.training.step.score)
        self.publisher = Publisher(options.serve, self.config, self.vocabulary, scorer)
        self.frozen = self._open_frozen(options.frozen) if options.frozen else None
        self._last: dict[str, Any] = {}  # Measurements of the last part (file of the log), by name.
        self._status, self._is_shown = "", False
        self.progress = Progress(self.run.path, options.serve, self.position.step)
        # The model may have been trained on a sample of the negatives with larger weights (prepare.keep_negatives). A
        # part has all its rows, so correct the click rate and the mean weight.
        self._click_rate = self.schema.splits["train"].click_rate * self.schema.sampled_share
        self.mean_weight *= self.schema.sampled_share

    def train(self) -> None:
        """Train on the parts (files of the log) as they come, without end. Raise Stopped after SIGINT or SIGTERM, or
        with the option `once` when no part is left.

        Raise FloatingPointError and NotSavedError like `Trainer.train`, and OSError if a bundle cannot be written.
        """
        try:
            self._save_and_publish()
            while True:
                self.context.stop.check()
                start = time.monotonic()
                if (part_and_checksum := self.source.next_part(self.ledger)) is not None:
                    self._take_part(*part_and_checksum)
                    give_back_freed_memory()  # Let the system reuse the memory of the part's rows.
                    continue
                self._write_status(is_idle=True)
                if self.options.once:
                    raise Stopped("no part is left", HELD_ASIDE if self.source.held or self.ledger.withheld else 0)
                time.sleep(max(POLL_SECONDS, REST * (time.monotonic() - start)))
        finally:
            self.checkpoints.close()
            self.publisher.close()

    def _take_part(self, file: LogFile, checksum: str) -> None:
        """Read the part in `file`, score it, train on it, save a checkpoint and publish the model. If the part cannot
        be read or is suspicious, hold it aside instead.
        """
        start = time.perf_counter()
        try:
            part = self.source.read(
                file, lambda: read_part(file, checksum, self.vocabulary.encoder, self.source.data_files())
            )
        except ValueError as error:
            self.source.hold(file, str(error))
            return
        if part is None:
            return
        if reason := why_useless(part):
            self.source.hold(file, reason)
            return
        missing, unknown = self.vocabulary.shares(part.parsed, part.rows.ids)
        part = replace(part, missing=missing, unknown=unknown)
        bounds, is_released = self.options.bounds, self.source.is_released(file.name, checksum)
        reason = why_suspicious(part, self.ledger, self._click_rate, bounds, self.vocabulary.columns)
        reason = reason or self._why_ahead(file)
        if reason and not is_released:
            self.source.hold(file, reason, checksum)
            return
        line: dict[str, Any] = {"part": file.name, "rows": len(part.rows), "rejected": part.num_lines - len(part.rows)}
        values, scores = self._measure_part(part)
        line |= values | scores_shift(scores, self.ledger.recent)
        line |= self.samples.shift(self.ledger.samples, part.rows, self.schema, self.vocabulary.encoder.log_format)
        part = replace(part, calibration=line.get("calibration"), scores=scores.tolist())
        if (reason := why_miscalibrated(part, self.ledger, bounds)) and not is_released:
            self.source.hold(file, reason, checksum)
            return
        try:
            line["new_values"], rows = self.vocabulary.add_values_of(part.parsed, part.rows)
        except ValueError as error:
            self.source.hold(file, str(error))
            return
        part = replace(part, rows=rows)
        if line["new_values"]:
            self._take_new_ids()
        line["pending_values"] = self.vocabulary.num_pending
        line |= self._train_part(part)
        self.ledger = self.ledger.after(part, self.source.names(), self.options.keep)
        self.position = Position(self.position.step, self.position.epoch + 1, 0)
        self._judge(part)
        line["expired_values"] = self._expire(part) if self.expiry is not None else 0
        self._last = line | {"ids_in_use": self.vocabulary.num_in_use}
        self._note({"epoch": self.position.last_epoch, **self._last})
        bundle = self._save_and_publish()
        published = bundle.name if bundle else "not published"
        log.info("%s; %s after %.1f s", _described(self._last), published, time.perf_counter() - start)
        self._write_status(is_idle=False)

    def _why_ahead(self, file: LogFile) -> str | None:
        """Return the reason why a part must be held aside (not trained on) because its file's time is ahead of this
        machine's clock, otherwise None.

        With --expire-after as a time, such a file makes the values that it does not contain look older than they are,
        so that too many of them would expire.
        """
        ahead, after = file.state.modified_ns / 1e9 - time.time(), self.options.expiry.after
        if not after or self.options.expiry.ages_in != IN_SECONDS or ahead <= MOST_AHEAD * after:
            return None
        return (
            f"the time of its file is {ahead:,.0f} s ahead of this machine's clock, and by it values that it does not "
            f"have would lose their ids (--expire-after); set it right: touch {shlex.quote(file.location)}"
        )

    def _note(self, values: dict[str, Any]) -> None:
        """Append a line with `values`, measurements of the last part (file of the log), and the current step to
        metrics.jsonl. Add the same line to the run's HTML page.
        """
        line = {"step": self.position.step, **values}
        self.run.write_metrics(line)
        self.progress.add(line)

    def _ledger_of_source(self) -> Ledger:
        """Return the ledger (the record of the log's parts that the model was trained on) for a new online run. If the
        run begins with a model that was trained online, the ledger contains the parts of that training, so that they
        are not trained on again.
        """
        source = find_source(Path(self.config.train.init_from))
        known = source.manifest.online.get("trained", {}) if isinstance(source, Checkpoint) else {}
        if there := sorted(self.source.names() & known.keys(), key=natural_order):
            names = shortened(there, 5)
            log.info("passed over, as %s was trained on them: %s", self.config.train.init_from, names)
        return Ledger(trained=dict(known))

    def _judge(self, part: Part) -> None:
        """Decide whether the model after `part` is published, and record the decision in the ledger (the record of
        trained parts, which checkpoints store).

        Before that, store a sample of the rows of `part`, a part of the growing log. The model is withheld if it scores
        the samples of the last LAST_PARTS parts worse than the newest published model, see
        `why_worse`.
        """
        names = [*self.ledger.samples, self.samples.add(self.position.step, part.rows, self.options.keep)][-LAST_PARTS:]
        rows, served, reason = self.samples.read(names), self.publisher.served(), ""
        if len(expired := self.vocabulary.expired):
            rows = replace(rows, ids=out_of_vocabulary(self.schema, expired).astype(rows.ids.dtype)[rows.ids])
        there = None if served is None else served_logits(served, rows, self.schema)
        if there is not None:
            candidate = np.concatenate([self._score(*each) for each in self._batches(rows)])
            reason = why_worse(candidate, there, rows, self.options.most_worse)
        self.ledger = replace(self.ledger, samples=names, withheld=reason)

    def _open_expiry(self) -> Expiry | None:
        """Return the record of when embedding rows were last updated, or None if no value of this run expires or has
        expired. Set the unit of ages in the ledger, and let checkpoints store the record.

        Raise ValueError if --expire-after is given in another unit (rows or seconds) than before.
        """
        saved, options = self.run.plan.checkpoint, self.options.expiry
        expiry = Expiry(self.schema.vocabulary_size, saved)
        if expiry.is_new and not options.is_wanted:
            return None
        if options.after and not expiry.is_new and self.ledger.ages_in not in ("", options.ages_in):
            raise ValueError(
                f"--expire-after counts in {options.ages_in}, and this run has the ages of its values in "
                f"{self.ledger.ages_in}; give it in {self.ledger.ages_in}"
            )
        ages_in = options.ages_in if expiry.is_new or options.after else self.ledger.ages_in
        self.ledger = replace(self.ledger, ages_in=ages_in)
        self.checkpoints.expiry, self.checkpoints.wants_full = expiry.arrays, expiry.is_new
        return expiry

    def _expire(self, part: Part) -> int:
        """Record which embedding rows the training on `part` has updated. Then expire categorical values whose
        embedding rows were not updated for long: remove their ids from the vocabulary and their rows from the tables.
        Return the number of expired values.

        If the next checkpoint is a full one (no delta), also give new ids to all values that have not expired.
        """
        expiry, rows = self.expiry, part.rows
        assert expiry is not None
        moment = expiry.moment + len(rows)
        if self.ledger.ages_in == IN_SECONDS:
            moment = part.file.state.modified_ns // 10**9
        ids = rows.ids if rows.weights is None else rows.ids[rows.weights > 0]
        expiry.touch(ids[:, self._seen_positions()], self.schema.vocabulary_size, moment)
        can, most_ids = self.vocabulary.can_expire(), self.options.expiry.most_ids
        touched = np.zeros(len(can), np.bool_)
        touched[ids[ids >= 0]] = True
        if most_ids and (num_touched := np.count_nonzero(touched & can)) > most_ids:
            log.warning(
                "warning: the rows of %s have %s values, and --most-ids %s may have ids: many lose theirs before their "
                "next row; give several times as many",
                *(part.file.name, f"{num_touched:,}", f"{most_ids:,}"),
            )
        expired = expiry.expire(can, self.vocabulary.counts_of_ids(), self.options.expiry)
        if len(expired):
            self.vocabulary.expire(expired)
            self.schema = self.checkpoints.schema = self.vocabulary.schema
            self._tables().remove(expired)
        if self.schema.num_expired and not self.ledger.withheld and self.checkpoints.is_full(self.position.step):
            self._renumber()
        return len(expired)

    def _seen_positions(self) -> list[int]:
        """Return the ascending indices of those columns of `Examples.ids` whose fields the model uses.

        Fields that the model does not use have no rows in the embedding tables.
        """
        fields = fields_of_model(self.schema, self.config.model)
        return sorted({*columns_of(fields, "wide"), *columns_of(fields, "deep")})

    def _renumber(self) -> None:
        """Give new ids without gaps to all categorical values that have not expired. Change the ids in the vocabulary
        (in a new prepared folder), the tables, the kept rows of the last parts and the record of ages.
        """
        counts, expired = self.vocabulary.counts(), self.vocabulary.expired
        folder = self.run.path / f"{PREPARED}-{self.position.step:08d}"
        new_ids = self.vocabulary.renumbered(folder)
        self.vocabulary = GrowingVocabulary(folder, self.options.admission_mib << 20)
        self.vocabulary.load_counts([counts] if counts else [])
        of_samples = np.append(new_ids, NO_ID)[out_of_vocabulary(self.schema, expired)]
        samples = self.samples.renumber(self.ledger.samples, of_samples, self.position.step)
        self.ledger = replace(self.ledger, samples=samples)
        schema = self.schema = self.checkpoints.schema = self.vocabulary.schema
        self._tables().renumber(new_ids, schema.vocabulary_size)
        assert self.expiry is not None
        self.expiry.renumber(new_ids, schema.vocabulary_size)
        self.checkpoints.dataset, self.publisher.vocabulary = folder, self.vocabulary
        log.info("ids are given anew, in %s: %s of %s are left", folder, schema.vocabulary_size, len(new_ids))

    def _save_counts(self) -> None:
        """Write how often each value without an id has occurred to a file: all counts if the next checkpoint is a full
        one or nothing was saved before, otherwise only the changes since the last call.
        """
        step, since = self.position.step, self._counted_at
        if since is None or self.checkpoints.is_full(step):
            save_counts(self.run.path / VALUE_COUNTS, step, self.vocabulary.counts())
        else:
            save_counts(self.run.path / VALUE_COUNTS, step, self.vocabulary.added_counts(), since)
        self._counted_at = step

    def _tables(self) -> HostTables:
        step = self.training.step
        assert isinstance(step, HostTablesStep)  # `plan_online` accepts only backends that have this step.
        return step.tables

    def _save_and_publish(self) -> Path | None:
        """Save a checkpoint of the current state, unless the checkpoint exists already, and publish its bundle, unless
        the bundle exists already. Return the bundle's folder. Remove old prepared folders and bundles.

        If the model is withheld because it is worse than the served model, publish nothing and return None.
        """
        if self.options.admission_mib and self.checkpoints.saved != self.position:
            self._save_counts()
        self.checkpoints.online = asdict(self.ledger)
        self.checkpoints.finish(self.position, None)
        newest = self.checkpoints.newest
        assert newest is not None
        remove_old_folders(self.run.path, self.vocabulary.folder)
        if self.ledger.withheld:
            log.warning("warning: %s is not published: %s", newest.path.name, self.ledger.withheld)
            return None
        bundle = self.publisher.publish(newest)
        if self.progress.awaits_publishing(self.position.step):
            closed = list(self.ledger.trained.values())[-1]["state"]["modified_ns"] / 1e9
            # If the clock was set back since the part's file was written, the lag is negative. Record 0 in this case.
            self._note({"lag_seconds": max(0.0, round(time.time() - closed, 3))})
        try:
            remove_old_bundles(self.options.serve, self.options.keep)
        except (OSError, ValueError) as error:  # Continue the run, because old bundles that stay do no harm.
            log.warning("warning: old bundles stay: %s", error)
        return bundle

    def _take_new_ids(self) -> None:
        """Add embedding rows to the tables for the ids that the vocabulary got since the last call. Checkpoints and
        bundles that are written from now on store the new schema.
        """
        schema = self.schema = self.checkpoints.schema = self.vocabulary.schema
        self._tables().grow(schema.vocabulary_size)

    def _batches(self, rows: Examples) -> Iterator[tuple[Batch, UniqueIds]]:
        for batch in batches_of(rows, self.config.train.batch_size):
            counting = batch.rows_that_count(self.mean_weight)
            if counting.num_rows:
                yield counting, self.training.step.prepare(counting, will_change=True)

    def _measure_part(self, part: Part) -> tuple[dict[str, Any], np.ndarray]:
        """Score a part (file of the log) that the model was not trained on yet. Return metrics by name, and the number
        of rows in each bin of the score (see `count_scores`). Undefined metrics are left out, such as the AUC of rows
        with equal labels.

        The metrics include those of the bundle of the option --frozen, which serves for comparison, with the prefix
        frozen_, and those of the true click probabilities of a synthetic log, with the prefix best_, if there are any.
        """
        stream, scores = MetricStream(), np.zeros(SCORE_BINS, np.int64)
        with Prefetcher(self._batches(part.rows)) as batches:
            for batch, unique in batches:
                logits = self._score(batch, unique)
                stream.add(logits, batch.labels, batch.weights)
                scores += count_scores(logits)
        values = self._values(stream)
        if self.frozen is not None:
            of_frozen = MetricStream()
            logits = np.concatenate([self.frozen.logits_of_parsed(rows) for rows in part.parsed])
            of_frozen.add(logits, part.rows.labels, part.rows.weights)
            values |= {f"frozen_{name}": value for name, value in self._values(of_frozen).items()}
        if (truth := truth_path(Path(part.file.location))).is_file():
            best = best_possible(truth, part.row_numbers)
            values |= {"best_auc": best.auc, "best_log_loss": best.log_loss}
        return {name: value for name, value in values.items() if np.isfinite(value)}, scores

    def _values(self, stream: MetricStream) -> dict[str, Any]:
        """Return, by name, the metrics of the rows that were added to `stream`, and the ends of the metrics' confidence
        intervals. Undefined metrics are NaN.
        """
        metrics, bins = stream.result_and_bins()
        measured = Measurement(metrics, bins.coarsened(INTERVAL_BINS))
        return asdict(metrics) | interval_ends(intervals_of(measured, self.config))

    def _train_part(self, part: Part) -> dict[str, float]:
        """Train on each row of a part (file of the log) once, in order. Return the steps' mean `wide_loss` and
        `deep_loss`.
        """
        losses = []
        with Prefetcher(self._batches(part.rows)) as batches:
            for batch, unique in batches:
                # Raise Stopped if SIGINT or SIGTERM has arrived. The steps so far on this part (file of the log) are
                # then lost, and a restarted process trains on the whole part.
                self.context.stop.check()
                losses.append(self._take_step(batch, unique))
        return {name: float(np.mean([getattr(each, name) for each in losses])) for name in ("wide_loss", "deep_loss")}

    def _open_frozen(self, bundle: Path) -> Predictor:
        """Open and return the bundle of the option --frozen, with which the model in training is compared. Raise
        ValueError if this bundle scores rows with other columns than the log has.
        """
        frozen = Predictor.open(bundle, self.config.device.num_threads)
        if frozen.schema.log_format.fields != self.schema.log_format.fields:
            raise ValueError(f"--frozen {bundle} is for a log with other columns than this run's; leave it out")
        return frozen

    def _write_status(self, is_idle: bool) -> None:
        """Write status.json if its content has changed. Draw the run's HTML page again if status.json was written after
        the last drawing.
        """
        content = {
            "step": self.position.step,
            "parts": len(self.ledger.trained),
            "last": self._last,
            "held": self.source.held,
            "can_be_released": self.source.can_be_released,
            "waiting": self.source.waiting,
            "withheld": self.ledger.withheld,
        }
        text = json.dumps(content, indent=1) + "\n"
        if text != self._status:
            write_whole(self.run.path / STATUS, text)
            self._status, self._is_shown = text, False
        if not self._is_shown:
            self._is_shown = self.progress.show(content, is_idle)


def _described(values: dict[str, Any]) -> str:
    """Return a text for the training log with the name and the measurements of a part (file of the log): number of
    rows, AUC, log loss and calibration. It says so if the AUC or the calibration is undefined.
    """
    beside = [f"{of} {values[f'{of}_auc']:.4f}" for of in ("frozen", "best") if f"{of}_auc" in values]
    between = f" ({', '.join(beside)})" if beside else ""
    auc = f"AUC {values['auc']:.4f}" if "auc" in values else "no AUC as all labels are equal"
    calibration = f"calibration {values['calibration']:.3f}" if "calibration" in values else "no clicks"
    loss = f"log loss {values['log_loss']:.4f}"
    return f"{values['part']}: {values['rows']:,} rows, {auc}{between}, {loss}, {calibration}"
