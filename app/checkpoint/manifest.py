"""Read and write manifest.json, the description of a checkpoint.

The file is written after all others, and contains a checksum of its own content.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

import xxhash

from common.arrays.disk import write_file
from common.files import FileRecord, check_format_version, format_checksum, parse_json, record_of

FORMAT_VERSION = 4
# Format version of checkpoints that record which rows were removed, or when rows were last updated. Other checkpoints
# have FORMAT_VERSION.
EXPIRY_VERSION = 5
MANIFEST = "manifest.json"


class UnusableCheckpointError(ValueError):
    """A checkpoint cannot be used.

    The error's text says what is wrong (`what`), and then what the user can do (`advice`).
    """

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__("; ".join(filter(None, (what, advice))))
        self.what, self.advice = what, advice


def what_and_advice(error: Exception) -> tuple[str, str]:
    """Split the message of an error about a checkpoint into what is wrong and what the user can do. Return both texts.

    Only an UnusableCheckpointError has these two texts. For any other error, return its whole message and "".
    """
    return (error.what, error.advice) if isinstance(error, UnusableCheckpointError) else (str(error), "")


class ParentRecord(TypedDict):
    """Step and id of the checkpoint (the parent) on which a delta builds: the delta holds only the rows that changed
    since.
    """

    step: int
    id: str


@dataclass(frozen=True)
class Position:
    """The progress of a training: how many steps it has taken, and which batch of which epoch comes next."""

    step: int = 0  # Number of steps so far.
    epoch: int = 1  # Epoch of the next batch, counted from 1.
    epoch_step: int = 0  # Number of the next batch within its epoch, counted from 0.

    @property
    def last_epoch(self) -> int:
        """The epoch of the last step that the training has taken.

        Between two epochs, this is the finished epoch, while `epoch` is the one that comes next.
        """
        return self.epoch if self.epoch_step else self.epoch - 1

    def after_step(self) -> Position:
        """Return the position one step later in the same epoch."""
        return Position(self.step + 1, self.epoch, self.epoch_step + 1)


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json, which describes a checkpoint. `write_checkpoint` fills in `shards`, `files` and
    `id`.
    """

    step: int  # `step`, `epoch` and `epoch_step` say how far the training had come, as in `Position`.
    epoch: int
    epoch_step: int
    config: dict[str, Any]
    dataset: str  # Path that the prepared folder had when the checkpoint was written.
    data: dict[str, Any]  # Identity of the prepared folder.
    metrics: dict[str, float]  # Metrics on the split valid. Empty if the checkpoint was not evaluated.
    # `SelectionState`: the best evaluation so far, and the number of evaluations since the last improvement.
    selection: dict[str, Any] = field(default_factory=dict)
    # State of the learning-rate schedules: the result of `LearningRates.state`.
    schedules: dict[str, Any] = field(default_factory=dict)
    # Number of files over which each table's rows are spread, by table name.
    shards: dict[str, int] = field(default_factory=dict)
    files: dict[str, FileRecord] = field(default_factory=dict)  # Size and checksum of each file, by name.
    # Deltas only: step and id of an older checkpoint. The delta holds only the rows that changed since that checkpoint.
    # None for a full checkpoint.
    parent: ParentRecord | None = None
    # In online runs, the `Ledger`: the record of the parts of the log that the model was trained on.
    online: dict[str, Any] = field(default_factory=dict)
    # Identity of the state in the checkpoint. It stays the same if the state is written in another number of files, or
    # if a delta (changed rows only) is rewritten as a full checkpoint.
    id: str = ""
    format_version: int = FORMAT_VERSION

    @property
    def position(self) -> Position:
        return Position(self.step, self.epoch, self.epoch_step)

    @property
    def size_bytes(self) -> int:
        """The total size of the checkpoint's files, except the manifest, in bytes."""
        return sum(record["size_bytes"] for record in self.files.values())


def identify(manifest: Manifest) -> Manifest:
    """Return `manifest` with its field `id` filled in. An existing id stays. A new one is a checksum of the step, the
    parent and the records of the files.
    """
    if manifest.id:
        return manifest
    content = {"step": manifest.step, "files": manifest.files, "parent": manifest.parent}
    return replace(manifest, id=_checksum(content))


def write_manifest(checkpoint: Path, manifest: Manifest) -> None:
    """Write manifest.json into the folder of a checkpoint, and sync it to disk."""
    content = asdict(manifest)
    text = json.dumps({**content, "checksum": _checksum(content)}, indent=1) + "\n"
    write_file(checkpoint / MANIFEST, [text.encode()])


def read_manifest(checkpoint: Path) -> Manifest:
    """Return the manifest in the folder of a checkpoint.

    Raise FileNotFoundError if there is none, and ValueError if it is damaged or has an unknown format version.
    """
    path = checkpoint / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{checkpoint} is no whole checkpoint: it has no {MANIFEST}")
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        version = content["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnusableCheckpointError(f"{path} is damaged ({error!r})", use_an_older(checkpoint)) from error
    advice = "use the release that wrote the checkpoint, or train again"
    check_format_version(path, version, EXPIRY_VERSION, advice, FORMAT_VERSION)
    try:
        expected, actual = content.pop("checksum"), _checksum(content)
        if expected == actual:
            return record_of(content, Manifest)
    except (KeyError, TypeError, ValueError) as error:
        raise UnusableCheckpointError(f"{path} is damaged ({error!r})", use_an_older(checkpoint)) from error
    raise UnusableCheckpointError(
        f"{path} is damaged: checksum {actual}, expected {expected}", use_an_older(checkpoint)
    )


class ManifestReader:
    """A callable that returns a checkpoint's manifest, as `read_manifest` does, but keeps it in memory. It reads the
    file manifest.json again only if the file has changed since the last call.
    """

    def __init__(self) -> None:
        self._cache: dict[Path, tuple[tuple[int, int, int], Manifest]] = {}

    def __call__(self, checkpoint: Path) -> Manifest:
        try:
            status = (checkpoint / MANIFEST).stat()
        except OSError:
            return read_manifest(checkpoint)  # `read_manifest` raises an error that says why there is no manifest.
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        known_version, manifest = self._cache.get(checkpoint, (None, None))
        if manifest is None or known_version != version:
            manifest = read_manifest(checkpoint)
            self._cache[checkpoint] = (version, manifest)
        return manifest


def use_an_older(checkpoint: Path) -> str:
    """Return the advice for an error message: to remove the damaged `checkpoint`, so that an older one is used."""
    return f"remove {checkpoint}, and the one before it is used"


def _checksum(content: dict[str, Any]) -> str:
    """Return the xxh3 checksum of the content of a manifest. The order of keys and the layout of the file do not
    matter.
    """
    return format_checksum(xxhash.xxh3_64(json.dumps(content, sort_keys=True).encode()))
