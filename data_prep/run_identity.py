"""What a preparation is made from and how: an ended run is gone on with only where all of it is the same."""

from __future__ import annotations

import functools
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import xxhash

from common.files import checksum
from data_prep.given_vocabulary import GivenVocabulary
from data_prep.log_files import LogFile
from data_prep.options import PREPARE_SECTION, PrepareOptions
from data_prep.prepared.schema import SCHEMA_FILE
from data_prep.storage import is_uri

_LIBRARIES = ("numpy", "pyarrow", "mindspore")


def run_identity(
    files: Sequence[LogFile], options: PrepareOptions, given: GivenVocabulary | None, file_rows: int
) -> dict[str, Any]:
    """All that decides a byte of the result, by names to show; plain values."""
    return {
        **{f"{PREPARE_SECTION}.{name}": value for name, value in options.decisive().items()},
        "input": [file.location if is_uri(file.location) else str(Path(file.location).resolve()) for file in files],
        **{f"size of {file.name}": file.state.size for file in files},
        **{f"time of {file.name} in ns": file.state.modified_ns for file in files},
        "--vocabulary": str(given.folder.resolve()) if given else None,
        "--extend": given.extends if given else False,
        "--vocabulary's checksum": checksum(given.folder / SCHEMA_FILE) if given else None,
        "rows of a file": file_rows,
        "program": _program(),
        "python": platform.python_version(),
        **{name: version(name) for name in _LIBRARIES},
    }


@functools.cache
def _program() -> str:
    return program_checksum(Path(__file__).parents[1])


def program_checksum(project: Path) -> str:
    """Return a checksum of the preparation's code: pieces of work are objects of its classes, another version's differ.

    It covers all folders of data_prep/ and common/, the C++ included.
    """
    files = [path for top in ("common", "data_prep") for path in (project / top).rglob("*")]
    digest = xxhash.xxh3_64()
    for path in sorted(path for path in files if path.suffix in (".py", ".cc", ".h")):
        digest.update(str(path.relative_to(project)).encode())
        digest.update(path.read_bytes())
    return f"xxh3:{digest.hexdigest()}"
