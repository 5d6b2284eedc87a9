"""The version that must serve, by the rule, by the file, and by a model while the folder changes at random."""

import contextlib
import errno
import itertools
import json
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import hypothesis.strategies as st
import pytest

from app.scoring import bundle_folder, bundle_writer
from app.scoring.bundle_folder import BundleManifest, short
from app.serving import generations, statement
from app.serving.generations import LONGEST_PAUSE, Generations
from app.serving.options import ServerOptions
from app.serving.statement import MOST_BYTES, TRAINED_PARTS, read_trained_parts, write_trained_parts
from common.files import lock_folder
from tests.app.serving.conftest import Client
from tests.app.serving.life import Life, seeded
from tests.kills import Killed

NUMBERS = itertools.count()
CHECKPOINT = {"id": "xxh3:0", "step": 1}


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"pinned": 1}', "", '{"pinned": null}'.encode("utf-16"), b'{"pinned": "\xff"}']
)
def test_a_statement_that_is_damaged_is_an_error(tmp_path, text):
    written = statement.Statement(ServerOptions(tmp_path, "clicks"))
    assert written.read() is None
    written.path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ValueError, match=r"is damaged.*remove the file"):
        written.read()
    for pinned in ("abc", None):
        written.write(pinned)
        assert written.read() == pinned
    assert [path.name for path in tmp_path.iterdir()] == ["current.json"]


def write_bundle(folder, parent, beside):
    """Write a bundle of two small files, without a model, into `folder`: a delta of the bundle `parent`, or a whole
    bundle if that is None. Its serial number is above those in the folder `beside`.
    """
    manifest = BundleManifest({}, {}, {}, CHECKPOINT, {})
    if parent is not None:
        before = bundle_folder.read_manifest(parent)
        named = {"id": before.version, "name": parent.name}
        manifest = BundleManifest(
            {}, {}, {}, CHECKPOINT, {}, parent=named, generation=before.generation + 1, whole_serial=before.whole_serial
        )
    (folder / "lookup.bin").write_text(f"{next(NUMBERS)} " * 3)
    (folder / bundle_folder.TABLES).write_text("rows")
    bundle_writer.write_manifest(folder, bundle_writer.numbered(manifest, beside))


def fold(delta, output):
    manifest = bundle_folder.read_manifest(delta)
    bundle_folder.read_chain(delta)
    with bundle_writer.new_bundle(output, overwrite=False) as folder:
        (folder / "lookup.bin").write_bytes((delta / "lookup.bin").read_bytes())
        (folder / bundle_folder.TABLES).write_text("all rows")
        folded = BundleManifest({}, {}, {}, CHECKPOINT, {}, generation=manifest.generation, folded=manifest.version)
        numbers = {"whole_serial": manifest.whole_serial, "serial": manifest.serial}
        bundle_writer.write_manifest(folder, BundleManifest(**{**vars(folded), **numbers}))


class OpenBundle:
    """Replaces `Predictor`. It opens no model; its scores are the content of the bundle's file lookup.bin."""

    def __init__(self, chain, num_threads, tables=()):
        self.chain = tuple(chain)
        self.tables = (*tables, *("table" for _ in self.chain[len(tables) :]))
        assert len(self.tables) == len(self.chain)
        for (_, before), (_, after) in itertools.pairwise(self.chain):
            assert (after.parent["id"], after.generation) == (before.version, before.generation + 1)
        self.folder, self.manifest = self.chain[-1]
        self.scores = (self.folder / "lookup.bin").read_text()
        self.version, self.generation = self.manifest.version, self.manifest.generation
        self.changed_share = 0.06 * (len(self.chain) - 1)
        self.example = self.schema = self.log_format = None
        self.held_out_counts = {}

    def check_golden(self):
        return 1


class Folding:
    """Replaces the process that merges (folds) bundles. It runs until `end` is called. If it is killed, its unfinished
    output stays.
    """

    def __init__(self, command, **_):
        self.delta, self.output = map(Path, command[-2:])
        self.status = None
        self._work = self.output.with_name(f".{self.output.name}.partial")
        self._lock = lock_folder(self._work)

    def end(self, is_killed):
        self.status = 1
        if not is_killed:
            shutil.rmtree(self._work)
        self._lock.close()

    def poll(self):
        return self.status


OPERATIONS = {
    name: weight
    for names, weight in {
        ("export", "delta", "copy_by_file", "repair", "wait"): 4,
        ("roll_back", "meet", "pin", "unpin", "damage", "delete", "redeploy", "fold", "end_folding", "kill_worker"): 3,
        ("make_unreadable", "put_odd", "rename", "restart", "jump", "lock_statement", "spoil_statement"): 1,
    }.items()
    for name in names
}


class Machine(Life):
    """Two workers that watch a folder, both in this process, and random changes to the folder.

    `between` is called before and after each step of a worker (such as opening a bundle), to let something happen
    meanwhile.
    """

    def __init__(self, folder, monkeypatch):
        self.now, self.is_locked, self.is_spoilt = 0.0, False, False
        self.foldings = []
        # `actor`: index of the worker that acts now. `written`: for each write of current.json, the worker and the pin.
        self.between, self.actor, self.written = lambda: None, 0, []
        monkeypatch.setattr(generations, "Predictor", self._stepwise(OpenBundle))
        monkeypatch.setattr(generations, "bundles_in", self._stepwise(bundle_folder.bundles_in))
        synced = self._stepwise(lambda _: None)
        monkeypatch.setattr(statement, "sync_folder", lambda path: self._note_written() or synced(path))
        monkeypatch.setattr(statement, "os", SimpleNamespace(getpid=lambda: self.actor))
        monkeypatch.setattr(generations.subprocess, "Popen", self._start_folding)
        monkeypatch.setattr(bundle_writer, "time", SimpleNamespace(time_ns=lambda: self.clock_ms * 10**6))
        monkeypatch.setattr(bundle_writer, "sync_folder", lambda _: None)
        monkeypatch.setattr("common.files.os.fsync", lambda _: None)
        write_whole = statement.write_whole
        write = self._stepwise(lambda *given: self._check_lock() or write_whole(*given))
        monkeypatch.setattr(statement, "write_whole", write)
        (folder / "models").mkdir()
        super().__init__(folder / "models", write_bundle, self.look)
        self.options = ServerOptions(self.folder, "clicks", state=folder / "state")
        self.workers, self.serving = [None, None], [None, None]
        self.scores, self.log = {}, []
        self.export(seeded(0))
        self.start(0)
        self.start(1)

    def _start_folding(self, command, **_):
        assert not self.foldings, "a second fold beside one of this service or of the one before"
        assert not list(self.folder.glob(".*")), "what a fold left that was killed"
        self.foldings.append(Folding(command))
        return self.foldings[-1]

    def _stepwise(self, function):
        def step(*arguments):
            self.between()
            result = function(*arguments)
            self.between()
            return result

        return step

    def _note_written(self):
        self.written.append((self.actor, self.stated()))

    def stated(self):
        return statement.Statement(self.options).read()

    def _check_lock(self):
        if self.is_locked:
            raise OSError(errno.EROFS, "Read-only file system")

    def start(self, place):
        """Start the worker number `place`. It must fail if no version can be served or if current.json is damaged."""
        expected = self.model.must_serve(None)
        self.workers[place] = self.serving[place] = None
        if self.is_spoilt:
            with pytest.raises(ValueError, match="is damaged"):
                Generations(self.options, place == 0, lambda: self.now)
            return
        try:
            self.workers[place] = Generations(self.options, place == 0, lambda: self.now)
        except FileNotFoundError as error:
            assert expected is None, error
            return
        self.serving[place] = self.workers[place].current.version
        assert self.serving[place] == expected

    def look(self, is_settled=0):
        """Let each worker look at the folder. Check that it then serves the version that the model says, or another
        allowed one while it pauses before it tries a bundle again.
        """
        for place, worker in enumerate(self.workers):
            if worker is None:
                continue
            before, expected = self.serving[place], self.model.must_serve(self.serving[place])
            if self.is_spoilt:
                expected = before
            num_swaps, was_whole = worker.num_swaps, len(worker.current.chain) == 1
            worker.refresh_safely()
            found = worker.current.version
            is_pausing = not is_settled and any(self.now < bundle.next_try for bundle in worker._bundles.values())
            assert found == expected or (is_pausing and self._may_serve(found, before)), (
                place,
                before,
                found,
                expected,
            )
            num_changes = (found != before) + (was_whole < (len(worker.current.chain) == 1))
            assert worker.num_swaps - num_swaps <= num_changes or is_pausing
            self.serving[place] = found
            assert worker.current.scores == self.scores.setdefault(found, worker.current.scores)
            self.check_status(worker, found, is_settled)

    def _may_serve(self, found, before):
        if found == before:
            return True
        if self.model.pinned is not None or found not in self.model.available():
            return False
        return self.model.age(found) > self.model.age(before)

    def check_status(self, worker, serving, is_settled):
        status, model, there = worker.status(), self.model, self.model.available()
        assert bool(status["error"]) == self.is_spoilt
        if self.is_spoilt:
            return
        assert status["pinned"] == (model.pinned and short(model.pinned))
        folder = status["folder"]
        assert folder is None or model.copies[folder].version == serving
        for name, version in status["waiting"].items():
            assert short(model.copies[name].version) == version != short(serving)
        if not is_settled or model.pinned is not None:
            return
        assert self.odd_names <= status["refused"].keys()
        refused = status["refused"].keys() - self.odd_names
        wrong = {name for name, copy in model.copies.items() if copy.bad or copy.version not in there}
        assert refused <= wrong
        assert status["waiting"].keys() <= wrong  # Deltas wait if their parent is refused.
        newer = {name for name in wrong if model.age(model.copies[name].version) > model.age(serving)}
        newer = {name for name in newer if (self.folder / name / bundle_folder.MANIFEST).exists()}
        newer -= {name for name in newer if model.copies[name].version == serving}
        assert newer <= refused | status["waiting"].keys()
        assert not newer or refused
        known = {name for name in newer if bundle_folder.MANIFEST not in model.copies[name].bad}
        assert (status["newest_age_seconds"] > 0) == bool(known) or is_settled == 1

    def wait(self, draw):
        """Let time pass on the service's clock."""
        self.now += draw.choice([0.1, 1, 10, 100])

    def jump(self, draw):
        """Move the clock of the machine that exports bundles forward or back."""
        self.clock_ms += draw.choice([-1, 1]) * draw.randrange(1, 100)

    def kill_worker(self, draw):
        """Replace a worker by a new one, as if it had died."""
        self.start(draw.randrange(2))

    def restart(self, draw):
        """Replace all workers by new ones. Merges (folds) that run go on until `end_folding`."""
        for place in range(2):
            self.start(place)

    def lock_statement(self, draw):
        """Make the folder of current.json read-only, or writable again."""
        self.is_locked = not self.is_locked

    def spoil_statement(self, draw):
        """Damage current.json, let the workers look, and write a good file again, as a user would by hand."""
        path = self.options.state / "current.json"
        if path.exists():
            path.write_text("{")
            self.is_spoilt = True
            self.look()
            pinned = self.model.pinned and short(self.model.pinned)
            path.write_text(statement.json.dumps({"pinned": pinned}))
            self.is_spoilt = False

    def _ask(self, place, expected, change):
        """Let the worker number `place` make a `change` of the version that must serve. `expected` is the version that
        must then be pinned, "" for none, or None if the worker must refuse the change.
        """
        worker, before = self.workers[place], self.serving[place]
        if self.is_locked:
            expected = None
        try:
            change(worker)
        except ValueError as error:
            assert expected is None, error
            reasons = ("cannot be written", "older", "no version", "cannot be served", "not the current")
            assert not self.is_locked or any(reason in str(error) for reason in reasons)
        else:
            assert expected is not None
            self.model.pinned = expected or None
        self.serving[place] = worker.current.version
        if expected:
            assert self.serving[place] == expected
        elif expected is None:
            assert self._may_serve(self.serving[place], before) or self.serving[place] == self.model.must_serve(before)

    def roll_back(self, draw):
        """Roll back from the version that a worker serves or, in one case of ten, from a version that it may not serve,
        which must be refused.
        """
        place = draw.randrange(2)
        if self.workers[place] is None:
            return
        self.settle()
        serving = self.serving[place]
        older = self.model.older(serving)
        version = serving if draw.random() < 0.9 else draw.choice(sorted(self.model.versions))
        expected = older[0] if older and version == serving else None
        self._ask(place, expected, lambda worker: worker.roll_back(short(version)))

    def meet(self, draw):
        """Let a worker roll back, and let other things happen between its steps: a delta arrives, the other worker
        looks at the folder or rolls back too, or the worker is killed.
        """
        names, name, place = self.good(), self.name(draw), draw.randrange(2)
        if self.is_locked or None in self.workers or not names:
            return
        delta = self._export(self._aside / "bundle", self.folder / draw.choice(names))
        before, num_written = self.stated(), len(self.written)

        def come():
            if (self._aside / "bundle").exists():
                (self._aside / "bundle").rename(self.folder / name)
                self.model.copies[name] = delta

        def kill():
            raise Killed

        others = [come, self.workers[1 - place].refresh_safely, lambda: self._roll_back_meanwhile(1 - place), kill]

        def act():
            if draw.random() < 0.3:
                self.between = lambda: None
                draw.choice(others)()
                self.between = act

        self.between = act
        try:
            self._roll_back_meanwhile(place)
            is_killed = False
        except Killed:
            is_killed = True
        self.between = lambda: None
        come()
        pins = [before, *(pinned for _, pinned in self.written[num_written:])]
        assert self.stated() == pins[-1]  # Neither a kill nor another write has lost the last pin.
        self.model.pinned = next((version for version in self.model.versions if short(version) == pins[-1]), None)
        self.serving = [worker.current.version for worker in self.workers]
        if is_killed:
            self.start(place)
        self.settle()

    def _roll_back_meanwhile(self, place):
        worker, self.actor, outer = self.workers[place], place, self.actor
        version, num_written = worker.current.version, len(self.written)
        may_pin = self.model.older(version)[:1]
        try:
            worker.roll_back(short(version))
        except ValueError:
            assert place not in [actor for actor, _ in self.written[num_written:]], "refused, and written"
        else:
            may_pin += self.model.older(version)[:1]
            assert next(pin for actor, pin in self.written[num_written:] if actor == place) in map(short, may_pin)
            assert short(worker.current.version) == self.stated()  # the answer names it
        finally:
            self.actor = outer

    def pin(self, draw):
        """Pin any version that was ever exported. If it is not available, that must be refused."""
        place, version = draw.randrange(2), draw.choice(sorted(self.model.versions))
        if self.workers[place] is not None:
            expected = version if version in self.model.available() else None
            self._ask(place, expected, lambda worker: worker.pin(short(version)))

    def unpin(self, draw):
        """Remove the pin, so that the newest version serves."""
        place = draw.randrange(2)
        if self.workers[place] is not None:
            self._ask(place, "", lambda worker: worker.pin(None))

    def fold(self, draw, fold=fold):
        super().fold(draw, fold)

    def end_folding(self, draw):
        """End the processes that merge (fold) bundles: successfully, with an error, or by a kill."""
        foldings, self.foldings = self.foldings, []
        for folding in foldings:
            folding.end(is_killed=draw.random() < 0.3)
            name, output = folding.delta.name, folding.output.name
            if name in self.good() and not folding.output.exists() and draw.random() < 0.7:
                self.folded(name, output, fold)
                folding.status = 0

    def settle(self):
        self.now += LONGEST_PAUSE + 1
        self.look(is_settled=1)
        self.now += 0.5
        self.look(is_settled=2)

    def run(self, operations):
        for name, number in operations:
            self.log.append((name, number))
            draw = seeded(number)
            getattr(self, name)(draw)
            if draw.random() < 0.7:
                self.look()
            if draw.random() < 0.3:
                self.settle()
        self.settle()


operations = st.lists(
    st.tuples(
        st.sampled_from([name for name, weight in OPERATIONS.items() for _ in range(weight)]), st.integers(0, 999)
    ),
    min_size=50,
    max_size=50,
)


@contextlib.contextmanager
def machine():
    in_memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as folder,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        yield Machine(Path(folder), monkeypatch)


@hypothesis.settings(max_examples=40)
@hypothesis.given(operations)
def test_what_serves_is_what_must(operations):
    with machine() as life:
        life.run(operations)


GOOD = {"written": 1.0, "parts": [{"part": "part-1", "auc": 0.7}], "held": {"part-2": "cut"}, "waiting": ""}


def test_it_is_read_as_it_was_written_but_for_rows_of_the_log(tmp_path):
    assert read_trained_parts(tmp_path) is None
    held = {"part-2": "3 of its 9 lines are bad; the first: '1\\t7e5c2ff4'"}
    write_trained_parts(tmp_path, GOOD | {"held": held})
    assert read_trained_parts(tmp_path) == GOOD | {"held": {"part-2": "3 of its 9 lines are bad"}}


WRONG = [GOOD | {key: 7} for key in ("parts", "held")] + [GOOD | {"parts": [7]}, GOOD | {"written": None}, [], 7, {}]


@pytest.mark.parametrize("text", [b"", b"{", b"\xed\xa0\x80", *(json.dumps(wrong).encode() for wrong in WRONG)])
def test_a_damaged_file_is_an_error_and_no_exception(tmp_path, text):
    (tmp_path / TRAINED_PARTS).write_bytes(text)
    assert "damaged" in read_trained_parts(tmp_path)["error"]


def test_a_number_that_json_lacks_and_a_file_that_is_too_long_do_no_harm(tmp_path):
    (tmp_path / TRAINED_PARTS).write_text(json.dumps(GOOD | {"parts": [{"part": "a", "auc": float("nan")}]}))
    assert read_trained_parts(tmp_path)["parts"] == [{"part": "a", "auc": None}]
    (tmp_path / TRAINED_PARTS).write_text(json.dumps(GOOD | {"waiting": "x" * MOST_BYTES}))
    assert "damaged" in read_trained_parts(tmp_path)["error"]


def test_of_one_bundle_and_of_what_cannot_be_read_nothing_is_shown(tmp_path):
    file = tmp_path / "manifest.json"
    file.write_text("{}")
    assert read_trained_parts(file) is None  # its path is no folder
    (tmp_path / TRAINED_PARTS).mkdir()
    assert "cannot be read" in read_trained_parts(tmp_path)["error"]


def test_keys_of_a_later_or_an_earlier_trainer_are_passed_on(tmp_path):
    old = {"written": 1, "parts": [{"part": "a"}], "held": {}}
    (tmp_path / TRAINED_PARTS).write_text(json.dumps(old | {"new": 1}))
    assert read_trained_parts(tmp_path) == old | {"new": 1}


def test_a_service_of_a_folder_shows_it_and_serves_whatever_it_is(make_service, tiny_bundle, tmp_path):
    shutil.copytree(tiny_bundle, tmp_path / "step-1")
    client = Client(make_service(tmp_path))
    assert client.get("/v1/status").json()["trained"] is None
    write_trained_parts(tmp_path, GOOD)
    assert client.get("/v1/status").json()["trained"] == GOOD
    (tmp_path / TRAINED_PARTS).write_text("{")
    status = client.get("/v1/status").json()
    assert "damaged" in status["trained"]["error"] and not status["error"]
