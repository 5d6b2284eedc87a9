"""manifest.json describes a checkpoint. It is written last, with a checksum of its own content."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

import xxhash

from app.checkpoint.disk import write_file
from common.files import FileRecord, check_format_version, format_checksum

FORMAT_VERSION = 4
EXPIRY_VERSION = 5  # of a checkpoint that says which rows are gone, or when they were touched
MANIFEST = "manifest.json"


class UnusableCheckpointError(ValueError):
    """A checkpoint cannot be used. The text is what is wrong and, at its end, what to do."""

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__("; ".join(filter(None, (what, advice))))
        self.what, self.advice = what, advice


def what_and_advice(error: Exception) -> tuple[str, str]:
    """Return what is wrong with a checkpoint and, if the error says it apart, what to do."""
    return (error.what, error.advice) if isinstance(error, UnusableCheckpointError) else (str(error), "")


class ParentRecord(TypedDict):
    """The checkpoint that a delta holds the changes since."""

    step: int
    id: str


@dataclass(frozen=True)
class Position:
    """A moment of a training, between two steps."""

    step: int = 0  # steps so far
    epoch: int = 1  # of the next batch, from 1 on
    epoch_step: int = 0  # number of the next batch in its epoch, from 0 on

    @property
    def last_epoch(self) -> int:
        """The epoch of the last step taken: at an epoch's end `epoch` is the next one already."""
        return self.epoch if self.epoch_step else self.epoch - 1

    def after_step(self) -> Position:
        """Return the position one step later in the same epoch."""
        return Position(self.step + 1, self.epoch, self.epoch_step + 1)


@dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint. `write_checkpoint` fills in `shards`, `files` and `id`."""

    step: int  # this and the next two: see `Position`
    epoch: int
    epoch_step: int
    config: dict[str, Any]
    dataset: str  # path of the prepared folder at that time
    data: dict[str, Any]  # identifies the prepared folder
    metrics: dict[str, float]  # of `valid`, if the state was evaluated
    selection: dict[str, Any] = field(default_factory=dict)  # `SelectionState` of the evaluations so far
    schedules: dict[str, Any] = field(default_factory=dict)  # `LearningRates.state`
    shards: dict[str, int] = field(default_factory=dict)  # by table
    files: dict[str, FileRecord] = field(default_factory=dict)  # by name
    parent: ParentRecord | None = None  # None in a full checkpoint
    online: dict[str, Any] = field(default_factory=dict)  # `Ledger` of the parts that an online run has trained on
    id: str = ""  # of the state: the same with other shards, and if a delta is rewritten as a full checkpoint
    format_version: int = FORMAT_VERSION

    @property
    def position(self) -> Position:
        return Position(self.step, self.epoch, self.epoch_step)

    @property
    def size_bytes(self) -> int:
        """The size of all files but the manifest."""
        return sum(record["size_bytes"] for record in self.files.values())


def identify(manifest: Manifest) -> Manifest:
    """Return the manifest with an id, made from the checksums of its files if it has none yet."""
    if manifest.id:
        return manifest
    content = {"step": manifest.step, "files": manifest.files, "parent": manifest.parent}
    return replace(manifest, id=_checksum(content))


def write_manifest(checkpoint: Path, manifest: Manifest) -> None:
    """Write and sync the manifest of a checkpoint's folder."""
    content = asdict(manifest)
    text = json.dumps({**content, "checksum": _checksum(content)}, indent=1) + "\n"
    write_file(checkpoint / MANIFEST, [text.encode()])


def read_manifest(checkpoint: Path) -> Manifest:
    """Read the manifest of a checkpoint's folder.

    Raises FileNotFoundError if there is none, ValueError if it is damaged or of another version.
    """
    path = checkpoint / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{checkpoint} is no whole checkpoint: it has no {MANIFEST}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnusableCheckpointError(f"{path} is damaged ({error!r})", use_an_older(checkpoint)) from error
    advice = "use the release that wrote the checkpoint, or train again"
    check_format_version(path, version, EXPIRY_VERSION, advice, FORMAT_VERSION)
    try:
        expected, actual = content.pop("checksum"), _checksum(content)
        if expected == actual:
            return Manifest(**content)
    except (KeyError, TypeError) as error:
        raise UnusableCheckpointError(f"{path} is damaged ({error!r})", use_an_older(checkpoint)) from error
    raise UnusableCheckpointError(
        f"{path} is damaged: checksum {actual}, expected {expected}", use_an_older(checkpoint)
    )


class ManifestReader:
    """`read_manifest` for repeated use: a manifest is read again only if its file has changed since."""

    def __init__(self) -> None:
        self._cache: dict[Path, tuple[tuple[int, int, int], Manifest]] = {}

    def __call__(self, checkpoint: Path) -> Manifest:
        try:
            status = (checkpoint / MANIFEST).stat()
        except OSError:
            return read_manifest(checkpoint)  # raises what is wrong
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
    """Return the xxh3 of the content, independent of the JSON's layout."""
    return format_checksum(xxhash.xxh3_64(json.dumps(content, sort_keys=True).encode()))
