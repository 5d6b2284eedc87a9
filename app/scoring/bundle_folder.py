"""Read a bundle's folder and its manifest. The manifest is written last and contains a checksum of its own content.

    manifest.json      model, rows, vocabulary, checkpoint, versions, size and checksum of every other file
    schema.json        fields, their transforms and the form of a log, as in a prepared folder
    tower.onnx         the tower: table rows, numbers and vectors to a logit (weights in tower.onnx.data if large)
    tables.safetensors, checksums.safetensors   see bundle_tables.py. A delta holds only the changed rows
    lookup.bin         the vocabulary in a form that can be searched. A delta holds only the added values
    expired.npy        deltas only: [g] int64, ascending ids whose values are out of vocabulary now
    ids.onnx           with --onnx-ids: the tables and the tower as one model of ids, with its tables in ids.onnx.data
    tower.mindir       with --mindir: the function of tower.onnx for MindSpore
    golden.parquet     made-up rows with logits, scores and tolerances, so that users can check their installation
    code/, MLmodel, python_env.yaml, requirements.txt, README.md

Opening a bundle compares every file with its checksum, except the tables of a whole bundle, of which only the headers
and the size are checked, and ids.onnx.data, of which only the size is checked. `Predictor.verify` reads every byte.
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
from common.packages import python_command

FORMAT = "wide-deep-bundle"
FORMAT_VERSION = 3
EXPIRED_VERSION = 4  # Format version of a delta (a bundle with changed rows only) that lists expired values.
# Format version of a bundle whose initial rows (the embedding rows before training) are rounded to bfloat16.
BFLOAT16_VERSION = 5
VECTOR_VERSION = 6  # Format version of a bundle whose model has vectors, which are a further input of its tower.
SERVED_VERSION = 7  # Format version of a bundle that gives a field the same value in all rows (`serve_as`).
MANIFEST = "manifest.json"
GOLDEN = "golden.parquet"
ID_MODEL, ID_TABLE = "ids.onnx", "ids.onnx.data"
TOLERANCE = "tolerance"  # Column of golden.parquet.


@dataclass(frozen=True)
class BundleManifest:
    """The content of a bundle's file manifest.json."""

    # Description of the model: settings such as hidden_widths and activation, weights of the numeric columns, widths of
    # the vectors if there are any, and calibration.
    model: dict[str, Any]
    rows: dict[str, Any]  # Fields of `bundle_tables.BundleTablesSpec`.
    vocabulary: dict[str, Any]  # Record returned by `data_prep.encoding.prepared_vocabulary.write_lookup`.
    # Step, epoch and id of the exported checkpoint, and the numbers of rows and clicks that the model was trained on.
    checkpoint: dict[str, Any]
    versions: dict[str, str]  # Version of each package that scoring with the bundle needs, by name.
    files: dict[str, FileRecord] = field(default_factory=dict)
    # Only for deltas (bundles with changed rows only): id and folder name of the parent, the bundle whose rows have
    # changed.
    parent: dict[str, str] | None = None
    # 0 for a whole bundle that was exported. A delta (a bundle with changed rows only) has the generation of its parent
    # plus one.
    generation: int = 0
    # Version of the newest delta that `fold` has merged into this whole bundle. "" for a bundle that `fold` has not
    # made.
    folded: str = ""
    whole_serial: int = 0  # Serial number of the whole bundle on which this bundle's chain of deltas builds.
    # Serial number of this bundle, higher than those of all bundles that were in the same folder when this bundle was
    # written.
    serial: int = 0
    id: str = ""
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    @property
    def version(self) -> str:
        """Version of the model, a checksum such as xxh3:0123456789abcdef. A bundle that `fold` made by merging deltas
        has the version of the newest delta.
        """
        return self.folded or self.id


# Folder and manifest of one bundle in a chain (a whole bundle and its deltas).
ChainEntry = tuple[Path, BundleManifest]
# A whole bundle, followed by its deltas (bundles that hold only the rows that changed), oldest first.
Chain = tuple[ChainEntry, ...]


def bundles_in(folder: Path) -> list[Path]:
    """Return the paths in `folder` that may be bundles, sorted by name. Names that begin with a dot are left out.

    Paths that end in .partial or .replaced are left out, too: earlier releases wrote unfinished bundles, with a
    manifest, under such names.
    """
    paths = sorted(folder.iterdir())
    return [path for path in paths if not path.name.startswith(".") and path.suffix not in (".partial", ".replaced")]


def read_manifest(folder: Path) -> BundleManifest:
    """Return the manifest of the bundle in `folder`. Raise FileNotFoundError if the folder has no manifest, ValueError
    if the manifest is damaged or has another format version.
    """
    path = folder / MANIFEST
    if not path.is_file():
        within = read_manifests(folder) if folder.is_dir() else {}
        newest = max(chains(within).values(), key=rank, default=())
        make_one = f"make one: {python_command('app export RUN BUNDLE')}"
        advice = f"the newest one in it is {newest[-1][0]}" if newest else make_one
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
    check_format_version(path, version, SERVED_VERSION, advice, FORMAT_VERSION)
    try:
        manifest = record_of(content, BundleManifest)
        if manifest.parent is not None and not {"id", "name"} <= manifest.parent.keys():
            raise ValueError("key 'parent' lacks 'id' or 'name'")
        if (type(manifest.checkpoint.get("id")), type(manifest.checkpoint.get("step"))) != (str, int):
            raise ValueError("key 'checkpoint' lacks a text 'id' or a whole number 'step'")
    except ValueError as error:
        raise ValueError(f"{path} is damaged or of another release: {error}; {reexport_advice(folder)}") from None
    return manifest


def read_chain(folder: Path) -> Chain:
    """Return the chain of the bundle in `folder`. For a whole bundle it is the bundle alone. For a delta it starts with
    the whole bundle, followed by all deltas up to this one.

    Parents are searched beside the bundle, in the folder that contains `folder`. Raise FileNotFoundError if `folder`
    has no manifest, and ValueError if a manifest is damaged or if a parent (the bundle to which a delta applies) is
    missing.
    """
    manifest = read_manifest(folder)
    if manifest.parent is None:
        return ((folder, manifest),)
    beside = folder.absolute().parent
    before = chains(read_manifests(beside)).get(short(manifest.parent["id"]))
    if before is None:
        with suppress(FileNotFoundError):
            # If the parent's folder exists but its manifest is damaged, `read_manifest` raises ValueError for the
            # manifest.
            read_manifest(beside / manifest.parent["name"])
        raise ValueError(
            f"the delta {folder} holds changes of {manifest.parent['name']} with id {manifest.parent['id']}, which is "
            "not beside it, or not with all the bundles that it needs; copy that there, too"
        )
    check_parent(folder, manifest, before[-1][1])
    return (*before, (folder, manifest))


def read_manifests(folder: Path) -> dict[Path, BundleManifest]:
    """Return the manifests of the bundles in `folder`, by the bundles' paths. Bundles whose manifest cannot be read are
    left out.
    """
    manifests = {}
    for path in bundles_in(folder):
        with suppress(ValueError, OSError):
            manifests[path] = read_manifest(path)
    return manifests


def short(version: str) -> str:
    """Return a version (such as xxh3:0123456789abcdef) without the prefix that ends in a colon, for use in a URL."""
    return version.rpartition(":")[2]


def chains(manifests: Mapping[Path, BundleManifest]) -> dict[str, Chain]:
    """Return, for each version of a model, its chain: a whole bundle and the deltas (bundles with changed rows only)
    from which the version is opened. The keys are the versions without their prefix (see `short`).

    A version is left out if a bundle of its chain is not in `manifests`.

    If a version exists both as a whole bundle and as a chain of deltas, the whole bundle is returned. If several
    folders contain copies of a version, the folder whose name sorts first is used.
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
    """Return a key that sorts chains from old to new: by the serial number of the chain's whole bundle, then by the
    generation and the serial number of the chain's last bundle. A later export has a higher serial number. The
    generation is the number of deltas since the first exported whole bundle.
    """
    newest = chain[-1][1]
    return newest.whole_serial, newest.generation, newest.serial, newest.version


def check_parent(folder: Path, manifest: BundleManifest, parent: BundleManifest) -> None:
    """Raise ValueError unless the bundle in `folder` (with the manifest `manifest`) is a delta (changed rows only) of
    exactly the bundle whose manifest is `parent`.
    """
    if manifest.parent is None:
        raise ValueError(f"{folder} is a whole bundle and no delta; open it by itself")
    if manifest.parent["id"] != parent.version or manifest.generation != parent.generation + 1:
        raise ValueError(
            f"the delta {folder} (generation {manifest.generation}) holds changes of {manifest.parent['name']} with id "
            f"{manifest.parent['id']}, and what is open has generation {parent.generation} and id {parent.version}; "
            "apply every delta once, in order"
        )


def check_files(folder: Path, manifest: BundleManifest, every_byte: bool) -> None:
    """Compare a bundle's files with its manifest. Raise ValueError, naming the file, if one is missing or has another
    size or checksum.

    Without `every_byte`, only the sizes of files with tables are compared, because reading them takes long.
    """
    for name, record in manifest.files.items():
        try:
            check_size(folder / name, record)
            actual = record["checksum"] if name in (TABLES, ID_TABLE) and not every_byte else checksum(folder / name)
            if actual != record["checksum"]:
                raise DamagedFileError(f"is damaged: checksum {actual}, expected {record['checksum']}")
        except DamagedFileError as error:
            raise ValueError(f"the bundle's file {folder / name} {error}; {reexport_advice(folder)}") from None


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """Inside the `with` block, convert errors about the content of the bundle's files to a ValueError that names the
    bundle.

    Such errors are possible even if all checksums are right, because another program may have written the files.
    OSError, MemoryError and ImportError pass through.
    """
    try:
        yield
    except (OSError, MemoryError, ImportError):
        raise
    # NumPy, pyarrow and onnxruntime raise errors of many classes for wrong content.
    except Exception as error:
        if isinstance(error, ValueError) and str(folder.parent) in str(error):
            raise
        advice = reexport_advice(folder)
        raise ValueError(f"the bundle {folder} is damaged or of another version ({error!r}); {advice}") from error


def reexport_advice(folder: Path) -> str:
    """Return the end of an error message about a damaged bundle: copy it again, or export it again."""
    return f"copy {folder} again from where it was made, or export it again"


def checksum_of(content: dict[str, Any]) -> str:
    """Return the checksum of a manifest's content as text, such as xxh3:0123456789abcdef. It does not depend on the
    order of the keys.
    """
    return f"xxh3:{xxhash.xxh3_64_hexdigest(json.dumps(content, sort_keys=True).encode())}"
