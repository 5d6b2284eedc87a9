"""Arrays in a file of the safetensors form: 8 bytes with the header's length, a JSON header, the arrays' bytes.

The form is https://github.com/huggingface/safetensors#format. The library reads; it does not write here, as its writer
takes no checksum on the way, does not sync, and says no OSError where the disk is full.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from app.disk import FileRecord, Progress, ignore, write_file

DTYPE_NAMES = {"float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64"}
ALIGNMENT = 8  # of the arrays' first byte


def write_arrays(path: Path, arrays: dict[str, np.ndarray], progress: Progress = ignore) -> FileRecord:
    """Write and sync a file of `arrays`, each of a dtype of `DTYPE_NAMES`."""
    return write_file(path, _parts(arrays), progress)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a file. Raises ValueError where it has another form."""
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error


def _parts(arrays: dict[str, np.ndarray]) -> Iterator[memoryview | bytes]:
    header: dict[str, object] = {}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {
            "dtype": DTYPE_NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    yield len(text).to_bytes(8, "little") + text
    for array in arrays.values():
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
