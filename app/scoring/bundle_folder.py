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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from app.scoring.bundle_tables import TABLES
from common.files import DamagedFileError, FileRecord, check_format_version, check_size, checksum, parse_json, record_of

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
        within = read_manifests(folder) if folder.is_dir() else {}
        newest = max(chains(within).values(), key=rank, default=())
        advice = f"the newest one in it is {newest[-1][0]}" if newest else "make one: python -m app export RUN BUNDLE"
        raise FileNotFoundError(f"{folder} is no bundle: it has no {MANIFEST}; {advice}")
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        kind, version, expected = content["format"], content["format_version"], content.pop("checksum")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged or no bundle's ({error!r}); {reexport_advice(folder)}") from error
    if expected != checksum_of(content):
        raise ValueError(
            f"{path} is damaged: checksum {checksum_of(content)}, expected {expected}; {reexport_advice(folder)}"
        )
    if kind != FORMAT:
        raise ValueError(f"{path} is of {kind!r}, this program reads {FORMAT!r}; give the folder of a bundle")
    advice = f"score with {folder}/code, the bundle's own, or export again"
    check_format_version(path, version, BFLOAT16_VERSION, advice, FORMAT_VERSION)
    try:
        manifest = record_of(content, Manifest)
        if manifest.parent is not None and not {"id", "name"} <= manifest.parent.keys():
            raise ValueError("key 'parent' lacks 'id' or 'name'")
        if (type(manifest.checkpoint.get("id")), type(manifest.checkpoint.get("step"))) != (str, int):
            raise ValueError("key 'checkpoint' lacks a text 'id' or a whole number 'step'")
    except ValueError as error:
        raise ValueError(f"{path} is damaged or of another release: {error}; {reexport_advice(folder)}") from None
    return manifest


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


def chains(manifests: Mapping[Path, Manifest]) -> dict[str, Chain]:
    """Return the chain of each short version that has all its bundles here: a whole bundle, if there is one.

    Of two copies the first name counts.
    """
    chains_by_version: dict[str, Chain] = {}
    for folder, manifest in sorted(
        manifests.items(), key=lambda link: (bool(link[1].parent), link[1].generation, link[0].name)
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
def opening(folder: Path) -> Iterator[None]:
    """Let whatever goes wrong with the content of a bundle's files be a ValueError that names the bundle.

    Files with the right checksums may still hold what no release of this program writes.
    """
    try:
        yield
    except (OSError, MemoryError, ImportError):
        raise
    except Exception as error:  # Numpy, pyarrow and onnxruntime have many kinds.
        if isinstance(error, ValueError) and str(folder.parent) in str(error):
            raise
        advice = reexport_advice(folder)
        raise ValueError(f"the bundle {folder} is damaged or of another version ({error!r}); {advice}") from error


def reexport_advice(folder: Path) -> str:
    """Advice for a bundle that cannot be used."""
    return f"copy {folder} again from where it was made, or export it again"


def checksum_of(content: dict[str, Any]) -> str:
    """Return the checksum of a manifest's content."""
    return f"xxh3:{xxhash.xxh3_64_hexdigest(json.dumps(content, sort_keys=True).encode())}"
