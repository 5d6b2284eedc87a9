"""The folder of a bundle: what is in it, and its manifest, which is written last with a checksum of its own content.

    manifest.json      model, rows, vocabulary, checkpoint, versions; size and checksum of every other file
    schema.json        fields, their transforms and how a log is written, as in a prepared folder
    tower.onnx         rows of the tables and numbers to a logit (tower.onnx.data beside it where that is large)
    tables.safetensors, checksums.safetensors   rows.py; of a delta, the rows that changed
    lookup.bin                      the vocabulary as it is searched; of a delta, the values that were added
    golden.parquet     made rows, their logits and scores, and how far a logit may be off, for a consumer's own check
    code/, MLmodel, python_env.yaml, requirements.txt, README.md

Opening checks every file but the tables as a whole; of the tables headers and sizes. `verify` reads every byte.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from app.checkpoint.disk import DamagedFileError, FileRecord, check_size
from app.scoring.rows import TABLES
from common.files import check_format_version, checksum, sync_folder, write_whole

FORMAT = "wide-deep-bundle"
FORMAT_VERSION = 3
MANIFEST = "manifest.json"
GOLDEN = "golden.parquet"
# Of a logit, between processors, where no more is to be expected of its terms; on one machine the bits are the same.
GOLDEN_TOLERANCE = 1e-5
TOLERANCE = "tolerance"  # column of golden.parquet


@dataclass(frozen=True)
class Manifest:
    """Content of manifest.json."""

    model: dict[str, Any]  # hidden_widths, activation …: of the settings of the run
    rows: dict[str, Any]  # rows.RowsSpec
    vocabulary: dict[str, Any]  # data_prep.encoding.encoder.write_lookup
    checkpoint: dict[str, Any]  # step, epoch and id of what was exported
    versions: dict[str, str]  # of the packages that the core needs
    files: dict[str, FileRecord] = field(default_factory=dict)
    parent: dict[str, str] | None = None  # of a delta: `id` and `name` (of its folder) of what it holds changes of
    generation: int = 0  # a delta's is one above its parent's
    folded: str = ""  # the id of the newest delta that was folded into this whole bundle
    id: str = ""
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    @property
    def version(self) -> str:
        """Name of what scores: a folded bundle has that of the deltas it was made of."""
        return self.folded or self.id


Link = tuple[Path, Manifest]  # a folder of a chain


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
    if kind != FORMAT:
        raise ValueError(f"{path} is of {kind!r}, this program reads {FORMAT!r}; give the folder of a bundle")
    check_format_version(path, version, FORMAT_VERSION, f"score with {folder}/code, the bundle's own, or export again")
    return Manifest(**content)


def read_chain(folder: Path) -> list[Link]:
    """Return a bundle and, of a delta, those that it holds changes of, which lie beside it; oldest first.

    Raises as `read_manifest`, and ValueError where a parent is not there.
    """
    chain = [(folder, read_manifest(folder))]
    while (parent := chain[0][1].parent) is not None:
        child, manifest = chain[0]
        found = _find_beside(child, parent)
        check_parent(child, manifest, found[1])
        chain.insert(0, found)
    return chain


def _find_beside(child: Path, parent: dict[str, str]) -> Link:
    for path in sorted(child.absolute().parent.glob(f"*/{MANIFEST}"), key=lambda p: p.parent.name != parent["name"]):
        try:
            manifest = read_manifest(path.parent)
        except ValueError:
            if path.parent.name == parent["name"]:
                raise
            continue
        if manifest.version == parent["id"]:
            return path.parent, manifest
    raise ValueError(
        f"the delta {child} holds changes of {parent['name']} with id {parent['id']}, which is not beside it; copy "
        "that there, too"
    )


def check_parent(folder: Path, manifest: Manifest, parent: Manifest) -> None:
    """Raise ValueError where the bundle in `folder` is no delta of `parent`."""
    if manifest.parent is None:
        raise ValueError(f"{folder} is a whole bundle and no delta; open it by itself")
    if manifest.parent["id"] != parent.version or manifest.generation != parent.generation + 1:
        raise ValueError(
            f"the delta {folder} (generation {manifest.generation}) holds changes of {manifest.parent['name']} with id "
            f"{manifest.parent['id']}, and what is open has generation {parent.generation} and id {parent.version}; "
            "apply every delta once, in order"
        )


def check_files(folder: Path, manifest: Manifest, every_byte: bool) -> None:
    """Raise ValueError, naming the file, where one is missing or differs from the manifest.

    Without `every_byte` the tables' size is compared only, but for those of a delta; all other files are read.
    """
    every_byte = every_byte or manifest.parent is not None
    for name, record in manifest.files.items():
        try:
            check_size(folder / name, record)
            found = record["checksum"] if name == TABLES and not every_byte else checksum(folder / name)
            if found != record["checksum"]:
                raise DamagedFileError(f"is damaged: checksum {found}, expected {record['checksum']}")
        except DamagedFileError as error:
            raise ValueError(f"the bundle's file {folder / name} {error}; {again(folder)}") from None


@contextmanager
def new_bundle(output: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a folder that becomes `output` at the end of the block, in place of a bundle that may be there.

    Raises FileExistsError where `output` is there and is no bundle, or is not to be overwritten.
    """
    if output.exists() and (not (output / MANIFEST).is_file() or FORMAT not in (output / MANIFEST).read_text()):
        raise FileExistsError(f"{output} is there and is no bundle; give another output")
    if output.exists() and not overwrite:
        raise FileExistsError(f"{output} is there; replace it with --overwrite or give another output")
    partial, replaced = (output.with_name(f"{output.name}.{os.getpid()}.{end}") for end in ("partial", "replaced"))
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in [*partial.rglob("*"), partial]:
            sync_folder(path)  # or file: a bundle that has its name is whole after a power cut, too
        if output.exists():
            output.rename(replaced)
        partial.rename(output)
        sync_folder(output.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def again(folder: Path) -> str:
    """Advice for a bundle that cannot be used."""
    return f"copy {folder} again from where it was made, or export it again"


def _checksum(content: dict[str, Any]) -> str:
    return f"xxh3:{xxhash.xxh3_64_hexdigest(json.dumps(content, sort_keys=True).encode())}"
