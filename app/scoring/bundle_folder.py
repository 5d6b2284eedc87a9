"""The folder of a bundle: what is in it, and its manifest, which is written last with a checksum of its own content.

    manifest.json      model, rows, vocabulary, checkpoint, versions, size and checksum of every other file
    schema.json        fields, their transforms and how a log is written, as in a prepared folder
    tower.onnx         rows of the tables and numbers to a logit (tower.onnx.data beside it if that is large)
    tables.safetensors, checksums.safetensors   bundle_tables.py. A delta has the rows that changed
    lookup.bin                      the vocabulary as it is searched. A delta has the values that were added
    expired.npy                     of a delta alone, [g] int64 ascending: ids of values that are out of vocabulary now
    golden.parquet     made rows, their logits and scores, and how far a logit may be off, for a consumer's own check
    code/, MLmodel, python_env.yaml, requirements.txt, README.md

Opening checks every file but the tables as a whole, and of the tables headers and sizes. `verify` reads every byte.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import xxhash

from app.checkpoint.disk import DamagedFileError, FileRecord, check_size
from app.scoring.bundle_tables import TABLES
from common.files import check_format_version, checksum, lock_folder, replace_folder, room_for, sync_folder, write_whole

FORMAT = "wide-deep-bundle"
FORMAT_VERSION = 3
EXPIRED_VERSION = 4  # of a delta that names values as gone
BFLOAT16_VERSION = 5  # of a bundle whose initial rows are rounded
MANIFEST = "manifest.json"
GOLDEN = "golden.parquet"
TOLERANCE = "tolerance"  # column of golden.parquet


@dataclass(frozen=True)
class Manifest:
    """Content of manifest.json."""

    model: dict[str, Any]  # hidden_widths, activation …: of the settings of the run
    rows: dict[str, Any]  # rows.BundleTablesSpec
    vocabulary: dict[str, Any]  # data_prep.encoding.encoder.write_lookup
    checkpoint: dict[str, Any]  # step, epoch and id of what was exported
    versions: dict[str, str]  # of the packages that the core needs
    files: dict[str, FileRecord] = field(default_factory=dict)
    parent: dict[str, str] | None = None  # of a delta: `id` and `name` (of its folder) of what it holds changes of
    generation: int = 0  # a delta's is one above its parent's
    folded: str = ""  # the id of the newest delta that was folded into this whole bundle
    whole_serial: int = 0  # the serial number of the whole bundle that this one is, or began with
    serial: int = 0  # of the export: above those beside it
    id: str = ""
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    @property
    def version(self) -> str:
        """Name of what scores: a folded bundle has that of the deltas it was made of."""
        return self.folded or self.id


ChainEntry = tuple[Path, Manifest]  # a folder of a chain
Chain = tuple[ChainEntry, ...]  # a whole bundle, or one and its deltas, oldest first


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


def numbered(manifest: Manifest, beside: Path) -> Manifest:
    """Return a new bundle's manifest with a serial number above those of the bundles in the folder `beside`.

    It is the time in milliseconds, so that bundles which are exported elsewhere have an order as well. A clock that was
    set back does not lower it.
    """
    serials = [other.serial for other in read_manifests(beside).values()]
    serial = max(time.time_ns() // 1_000_000, 1 + max(serials, default=0))
    return replace(manifest, serial=serial, whole_serial=manifest.whole_serial if manifest.parent else serial)


def bundles_in(folder: Path) -> list[Path]:
    """Return the folders in `folder` that may be bundles: none of a hidden name, none that an export has not finished.

    Earlier releases wrote NAME.PID.partial beside the bundles, with a manifest.
    """
    paths = sorted(folder.iterdir())
    return [path for path in paths if not path.name.startswith(".") and path.suffix not in (".partial", ".replaced")]


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a bundle.

    Raises FileNotFoundError if there is none, ValueError if it is damaged or of another version.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} is no bundle: it has no {MANIFEST}; make one: python -m app export RUN BUNDLE"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kind, version, expected = content["format"], content["format_version"], content.pop("checksum")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged or no bundle's ({error!r}); {reexport_advice(folder)}") from error
    if expected != _checksum(content):
        raise ValueError(
            f"{path} is damaged: checksum {_checksum(content)}, expected {expected}; {reexport_advice(folder)}"
        )
    if kind != FORMAT:
        raise ValueError(f"{path} is of {kind!r}, this program reads {FORMAT!r}; give the folder of a bundle")
    advice = f"score with {folder}/code, the bundle's own, or export again"
    check_format_version(path, version, BFLOAT16_VERSION, advice, FORMAT_VERSION)
    return Manifest(**content)


def version_of(rows: dict[str, Any], expired: bool = False) -> int:
    """Return the format version of a bundle of these tables, which may name values as gone."""
    if "initial_dtype" in rows:
        return BFLOAT16_VERSION
    return EXPIRED_VERSION if expired else FORMAT_VERSION


def read_chain(folder: Path) -> Chain:
    """Return a bundle, after those beside it that it holds changes of if it is a delta. The oldest comes first.

    Raises as `read_manifest`, and ValueError if a parent is not there.
    """
    manifest = read_manifest(folder)
    if manifest.parent is None:
        return ((folder, manifest),)
    beside = folder.absolute().parent
    before = chains(read_manifests(beside)).get(short(manifest.parent["id"]))
    if before is None:
        with suppress(FileNotFoundError):
            read_manifest(beside / manifest.parent["name"])  # if that is damaged, it is the reason
        raise ValueError(
            f"the delta {folder} holds changes of {manifest.parent['name']} with id {manifest.parent['id']}, which is "
            "not beside it, or not with all the bundles that it needs; copy that there, too"
        )
    check_parent(folder, manifest, before[-1][1])
    return (*before, (folder, manifest))


def read_manifests(folder: Path) -> dict[Path, Manifest]:
    """Return the manifests of the bundles in `folder`, but for those that cannot be read."""
    manifests = {}
    for path in bundles_in(folder):
        with suppress(ValueError, OSError):
            manifests[path] = read_manifest(path)
    return manifests


def short(version: str) -> str:
    """Return a version as a name that can stand in an address."""
    return version.rpartition(":")[2]


def chains(seen: Mapping[Path, Manifest]) -> dict[str, Chain]:
    """Return the chain of each short version that has all its bundles here: a whole bundle, if there is one.

    Of two copies the first name counts.
    """
    chains_by_version: dict[str, Chain] = {}
    for folder, manifest in sorted(
        seen.items(), key=lambda link: (bool(link[1].parent), link[1].generation, link[0].name)
    ):
        before: Chain = ()
        if manifest.parent is not None:
            before = chains_by_version.get(short(manifest.parent["id"]), ())
            if not before or before[-1][1].generation + 1 != manifest.generation:
                continue
        chains_by_version.setdefault(short(manifest.version), (*before, (folder, manifest)))
    return chains_by_version


def rank(chain: Chain) -> tuple[int, int, int, str]:
    """Return a sort key of age: whole bundle, generation, serial number."""
    newest = chain[-1][1]
    return newest.whole_serial, newest.generation, newest.serial, newest.version


def check_parent(folder: Path, manifest: Manifest, parent: Manifest) -> None:
    """Raise ValueError if the bundle in `folder` is no delta of `parent`."""
    if manifest.parent is None:
        raise ValueError(f"{folder} is a whole bundle and no delta; open it by itself")
    if manifest.parent["id"] != parent.version or manifest.generation != parent.generation + 1:
        raise ValueError(
            f"the delta {folder} (generation {manifest.generation}) holds changes of {manifest.parent['name']} with id "
            f"{manifest.parent['id']}, and what is open has generation {parent.generation} and id {parent.version}; "
            "apply every delta once, in order"
        )


def check_files(folder: Path, manifest: Manifest, every_byte: bool) -> None:
    """Raise ValueError, naming the file, if one is missing or differs from the manifest.

    Reads every file but the tables, of which it compares the size. With `every_byte` it reads the tables, too.
    """
    for name, record in manifest.files.items():
        try:
            check_size(folder / name, record)
            actual = record["checksum"] if name == TABLES and not every_byte else checksum(folder / name)
            if actual != record["checksum"]:
                raise DamagedFileError(f"is damaged: checksum {actual}, expected {record['checksum']}")
        except DamagedFileError as error:
            raise ValueError(f"the bundle's file {folder / name} {error}; {reexport_advice(folder)}") from None


@contextmanager
def new_bundle(output: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a folder that becomes `output` at the end of the block, in place of a bundle that may be there.

    Raises FileExistsError if `output` is there and is no bundle, or is not to be overwritten, and FolderInUse, a
    ValueError, while another process writes it.
    """
    # Two folders down, a manifest is seen by no service, of an earlier release neither.
    work = output.with_name(f".{output.name}.partial")
    partial, replaced = work / "new", work / "replaced"
    with lock_folder(work):
        try:
            if replaced.exists() and not output.exists():  # a process was killed between two names
                replaced.rename(output)
            shutil.rmtree(partial, ignore_errors=True)
            _check_output(output, overwrite)
            partial.mkdir()
            with room_for(output):
                yield partial
                for path in [*partial.rglob("*"), partial]:
                    sync_folder(path)  # or file: a bundle that has its name is whole after a power cut, too
            replace_folder(partial, output, replaced)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _check_output(output: Path, overwrite: bool) -> None:
    if output.exists() and (not (output / MANIFEST).is_file() or FORMAT not in (output / MANIFEST).read_text()):
        raise FileExistsError(f"{output} is there and is no bundle; give another output")
    if output.exists() and not overwrite:
        raise FileExistsError(f"{output} is there; replace it with --overwrite or give another output")


def reexport_advice(folder: Path) -> str:
    """Advice for a bundle that cannot be used."""
    return f"copy {folder} again from where it was made, or export it again"


def _checksum(content: dict[str, Any]) -> str:
    return f"xxh3:{xxhash.xxh3_64_hexdigest(json.dumps(content, sort_keys=True).encode())}"
