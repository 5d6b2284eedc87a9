"""The folder of a bundle: what is in it, and its manifest, which is written last with a checksum of its own content.

    manifest.json      model, rows, vocabulary, checkpoint, versions; size and checksum of every other file
    schema.json        fields, their transforms and how a log is written, as in a prepared folder
    tower.onnx         rows of the tables and numbers to a logit (tower.onnx.data beside it where that is large)
    tables.safetensors, checksums.safetensors   rows.py
    lookup.bin                      the vocabulary as it is searched
    golden.parquet     made rows and their logits, for a consumer's own check
    code/, MLmodel, python_env.yaml, requirements.txt, README.md

Opening checks every file but the tables as a whole; of the tables headers and sizes. `verify` reads every byte.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from app.checkpoint.disk import DamagedFileError, FileRecord, check_size
from app.scoring.rows import TABLES
from common.files import checksum, write_whole

FORMAT = "wide-deep-bundle"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
GOLDEN = "golden.parquet"
GOLDEN_TOLERANCE = 1e-5  # of a logit, between processors; on one machine the bits are the same


@dataclass(frozen=True)
class Manifest:
    """Content of manifest.json."""

    model: dict[str, Any]  # hidden_widths, activation …: of the settings of the run
    rows: dict[str, Any]  # rows.RowsSpec
    vocabulary: dict[str, Any]  # data_prep.encoding.encoder.write_lookup
    checkpoint: dict[str, Any]  # step, epoch and id of what was exported
    versions: dict[str, str]  # of the packages that the core needs
    files: dict[str, FileRecord] = field(default_factory=dict)
    parent: dict[str, Any] | None = None  # the bundle that this one holds changes of; so far always whole
    id: str = ""
    format: str = FORMAT
    format_version: int = FORMAT_VERSION


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Note every file of `folder` in the manifest and write that."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {
        str(path.relative_to(folder)): FileRecord(size_bytes=path.stat().st_size, checksum=checksum(path))
        for path in paths
    }
    content = asdict(manifest) | {"files": files}
    content["id"] = _checksum(content)
    write_whole(folder / MANIFEST, json.dumps({**content, "checksum": _checksum(content)}, indent=1) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a bundle.

    Raises FileNotFoundError where there is none, ValueError where it is damaged or of another version.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} is no bundle: it has no {MANIFEST}; make one: python -m app export RUN BUNDLE"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kind, version, said = content["format"], content["format_version"], content.pop("checksum")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged or no bundle's ({error!r}); {again(folder)}") from error
    if said != _checksum(content):
        raise ValueError(f"{path} is damaged: checksum {_checksum(content)}, expected {said}; {again(folder)}")
    if kind != FORMAT or version != FORMAT_VERSION:
        raise ValueError(
            f"{path} is of {kind!r}, format version {version}; this program reads {FORMAT!r}, version "
            f"{FORMAT_VERSION}. Use the code of that release, which lies in the bundle's folder code, or export again"
        )
    return Manifest(**content)


def check_files(folder: Path, manifest: Manifest, every_byte: bool) -> None:
    """Raise ValueError, naming the file, where one is missing or differs from the manifest.

    Without `every_byte` the tables' size is compared only; all other files are read.
    """
    for name, record in manifest.files.items():
        try:
            check_size(folder / name, record)
            found = record["checksum"] if name == TABLES and not every_byte else checksum(folder / name)
            if found != record["checksum"]:
                raise DamagedFileError(f"is damaged: checksum {found}, expected {record['checksum']}")
        except DamagedFileError as error:
            raise ValueError(f"the bundle's file {folder / name} {error}; {again(folder)}") from None


def again(folder: Path) -> str:
    """Advice for a bundle that cannot be used."""
    return f"copy {folder} again from where it was made, or export it again"


def _checksum(content: dict[str, Any]) -> str:
    return f"xxh3:{xxhash.xxh3_64_hexdigest(json.dumps(content, sort_keys=True).encode())}"
