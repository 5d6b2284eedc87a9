import os
import re
from pathlib import Path

import numpy as np
import pytest

from common.native_library import NativeLibrary, address, output_address

PROJECT = Path(__file__).parents[2]
VALUES = np.arange(12, dtype=np.int64).reshape(3, 4)


def test_the_address_is_that_of_the_first_value():
    assert address(VALUES, np.int64, 3, 4) == VALUES.__array_interface__["data"][0]
    assert address(VALUES[1], np.int64, 4) == address(VALUES, np.int64, 3, 4) + 4 * 8
    address(np.empty((0, 4), np.float32), np.float32, 0, 4)
    address(VALUES[:1].T.copy().T, np.int64, 1, 4)  # a single row is C order in any order


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(VALUES),
        VALUES[:, ::-1],
        np.repeat(VALUES, 2, axis=1)[:, ::2],
        VALUES[:, :3],
        VALUES[:2],
        VALUES.reshape(-1),
        VALUES.astype(">i8"),
        VALUES.astype(np.uint64),
        VALUES.astype(np.int32),
        np.broadcast_to(np.int64(1), (3, 4)),
        np.frombuffer(b"\0" * 97, np.int64, 12, offset=1).reshape(3, 4),
    ],
)
def test_another_layout_is_refused(array):
    with pytest.raises(TypeError, match=r"needs int64 \[3, 4\] in C order, found"):
        address(array, np.int64, 3, 4)


def test_what_is_read_only_is_not_written_to():
    values = VALUES.copy()
    assert output_address(values) == address(values, np.int64, 3, 4)
    with pytest.raises(TypeError, match="in C order"):
        output_address(values.T)
    values.flags.writeable = False
    address(values, np.int64, 3, 4)
    with pytest.raises(TypeError, match=r"writes to this int64 \[3, 4\], which is read-only"):
        output_address(values)


def test_no_other_code_takes_an_address():
    pattern = re.compile(r"\.ctypes\b(?!\s+import)|data_as\(|__array_interface__|\.from_buffer\(")
    sources = [path for package in ("app", "common", "data_prep") for path in (PROJECT / package).rglob("*.py")]
    found = {path.relative_to(PROJECT).as_posix() for path in sources if pattern.search(path.read_text())}
    assert found == {"common/native_library.py"}


def test_a_library_that_is_older_than_its_sources_is_not_loaded(tmp_path):
    """Its functions may take other arguments: calling them would crash, or worse."""
    source, built = tmp_path / "csrc" / "kernels" / "one.h", tmp_path / "csrc" / "build" / "libnothing.so"
    for path in (source, built):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    os.utime(source, (built.stat().st_mtime + 1,) * 2)
    library = NativeLibrary("nothing", str(tmp_path / "nothing.py"), {}, "nothing is", "do without")
    with pytest.raises(OSError, match=r"was built before .*one\.h changed; run `make native`"):
        library.load()
    assert not library.is_available()
    os.utime(source, (built.stat().st_mtime - 1,) * 2)
    with pytest.raises(OSError, match="cannot be loaded"):  # it is empty, and was looked at
        library.load()
