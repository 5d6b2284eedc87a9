"""Read and write manifest.json, the description of a checkpoint.

It is written last, and contains a checksum of its own content.
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
EXPIRY_VERSION = 5  # Version of checkpoints that record which rows were removed, or when rows were touched.
MANIFEST = "manifest.json"


class UnusableCheckpointError(ValueError):
    """A checkpoint cannot be used.

    The text is `what` is wrong, followed by `advice` on what to do.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__("; ".join(filter(None, (what, advice))))
        self.what, self.advice = what, advice


def what_and_advice(error: Exception) -> tuple[str, str]:
    """Return what is wrong with a checkpoint, and the advice on what to do.

    The advice is "" if the error does not store it separately.
    """
    return (error.what, error.advice) if isinstance(error, UnusableCheckpointError) else (str(error), "")


class ParentRecord(TypedDict):
    """The parent of a delta. The delta holds the changes since then."""

    step: int
    id: str


@dataclass(frozen=True)
class Position:
    """A moment of a training, between two steps."""

    step: int = 0  # number of steps so far
    epoch: int = 1  # epoch of the next batch, from 1 on
    epoch_step: int = 0  # number of the next batch within its epoch, from 0 on

    @property
    def last_epoch(self) -> int:
        """The epoch of the last step taken.

        At the end of an epoch, `epoch` is already the next one.
        """
        return self.epoch if self.epoch_step else self.epoch - 1

    def after_step(self) -> Position:
        """Return the position one step later in the same epoch."""
        return Position(self.step + 1, self.epoch, self.epoch_step + 1)


@dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint. `write_checkpoint` fills in `shards`, `files` and `id`."""

    step: int  # `step`, `epoch` and `epoch_step` are the fields of `Position`.
    epoch: int
    epoch_step: int
    config: dict[str, Any]
    dataset: str  # Path of the prepared folder when the checkpoint was written.
    data: dict[str, Any]  # Identity of the prepared folder.
    metrics: dict[str, float]  # Metrics of the split valid, if the state was evaluated.
    selection: dict[str, Any] = field(default_factory=dict)  # `SelectionState` of the evaluations so far.
    schedules: dict[str, Any] = field(default_factory=dict)  # Result of `LearningRates.state`.
    shards: dict[str, int] = field(default_factory=dict)  # Number of shards, by table.
    files: dict[str, FileRecord] = field(default_factory=dict)  # Records of the files, by name.
    parent: ParentRecord | None = None  # Parent of a delta. None for a full checkpoint.
    online: dict[str, Any] = field(default_factory=dict)  # `Ledger` of the log parts that an online run has trained on.
    # Identity of the state. It stays the same with other shards, and if a delta is rewritten as a full checkpoint.
    id: str = ""
    format_version: int = FORMAT_VERSION

    @property
    def position(self) -> Position:
        return Position(self.step, self.epoch, self.epoch_step)

    @property
    def size_bytes(self) -> int:
        """The size of all files except the manifest."""
        return sum(record["size_bytes"] for record in self.files.values())


def identify(manifest: Manifest) -> Manifest:
    """Return the manifest with an id. If it has none, the id is made from the checksums of its files."""
    if manifest.id:
        return manifest
    content = {"step": manifest.step, "files": manifest.files, "parent": manifest.parent}
    return replace(manifest, id=_checksum(content))


def write_manifest(checkpoint: Path, manifest: Manifest) -> None:
    """Write and sync the manifest in a checkpoint's folder."""
    content = asdict(manifest)
    text = json.dumps({**content, "checksum": _checksum(content)}, indent=1) + "\n"
    write_file(checkpoint / MANIFEST, [text.encode()])


def read_manifest(checkpoint: Path) -> Manifest:
    """Read the manifest in a checkpoint's folder.

    Raise FileNotFoundError if there is none, and ValueError if it is damaged or has an unknown version.
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
    """`read_manifest` with a cache. A manifest is only read again if its file has changed."""

    def __init__(self) -> None:
        self._cache: dict[Path, tuple[tuple[int, int, int], Manifest]] = {}

    def __call__(self, checkpoint: Path) -> Manifest:
        try:
            status = (checkpoint / MANIFEST).stat()
        except OSError:
            return read_manifest(checkpoint)  # Let `read_manifest` raise the error that says what is wrong.
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        known_version, manifest = self._cache.get(checkpoint, (None, None))
        if manifest is None or known_version != version:
            manifest = read_manifest(checkpoint)
            self._cache[checkpoint] = (version, manifest)
        return manifest


def use_an_older(checkpoint: Path) -> str:
    """Return the advice at the end of an error about a damaged checkpoint."""
    return f"remove {checkpoint}, and the one before it is used"


def _checksum(content: dict[str, Any]) -> str:
    """Return the xxh3 checksum of the content. It does not depend on the layout of the JSON text."""
    return format_checksum(xxhash.xxh3_64(json.dumps(content, sort_keys=True).encode()))
