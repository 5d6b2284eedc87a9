import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from common.native_library import Interface, NativeLibrary, address, output_address
from common.process import num_cores
from tests.programs import run_python

PROJECT = Path(__file__).parents[2]
VALUES = np.arange(12, dtype=np.int64).reshape(3, 4)


def test_the_address_is_that_of_the_first_value():
    assert address(VALUES, np.int64, 3, 4) == VALUES.__array_interface__["data"][0]
    assert address(VALUES[1], np.int64, 4) == address(VALUES, np.int64, 3, 4) + 4 * 8
    address(np.empty((0, 4), np.float32), np.float32, 0, 4)
    address(VALUES[:1].T.copy().T, np.int64, 1, 4)  # a single row is C order in any order
    halves = VALUES.astype(ml_dtypes.bfloat16)  # of which Python knows no buffer
    assert address(halves, ml_dtypes.bfloat16, 3, 4) == halves.__array_interface__["data"][0]


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


HEADERS = [
    header
    for folder in ("app/model/csrc", "app/tables/native/csrc", "data_prep/kernels/csrc")
    for header in sorted((PROJECT / folder).glob("*.h"))
    if "_API" in header.read_text()
]


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header.name)
def test_a_header_is_read_as_the_compiler_reads_it(header, tmp_path):
    """Sizes and places of all members, and numbers of all enumerations."""
    if shutil.which("g++") is None and "CI" not in os.environ:
        pytest.skip("there is no g++")
    interface = Interface()
    interface.read(header)
    expected = {f"sizeof({name})": ctypes.sizeof(struct) for name, struct in interface.structures.items()}
    for name, struct in interface.structures.items():
        for member, *_ in struct._fields_:
            expected[f"offsetof({name}, {member})"] = getattr(struct, member).offset
            expected[f"sizeof(static_cast<{name}*>(nullptr)->{member})"] = getattr(struct, member).size
    for members in interface.enums.values():
        expected |= {f"{header.stem}_{member}".upper(): number for member, number in members.items()}
    program = tmp_path / "program.cc"
    prints = "".join(f"  std::cout << ({expression}) << std::endl;\n" for expression in expected)
    program.write_text(f'#include <cstddef>\n#include <iostream>\n#include "{header}"\nint main() {{\n{prints}}}\n')
    subprocess.run(["g++", "-o", tmp_path / "program", program], check=True)
    printed = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True).stdout.split()
    assert dict(zip(expected, map(int, printed), strict=True)) == expected


def test_every_function_of_a_header_is_declared():
    for header in HEADERS:
        interface = Interface()
        interface.read(header)
        text = re.sub(r"^#(?:.*\\\n)*.*", "", header.read_text(), flags=re.MULTILINE)
        assert text.count("_API ") == len(interface.functions), header


def test_a_library_that_is_older_than_its_sources_is_not_loaded(tmp_path):
    """Its functions may take other arguments: calling them would crash, or worse. A bundle has no .cc."""
    source, built = tmp_path / "csrc" / "kernels" / "one.cc", tmp_path / "csrc" / "build" / "libnothing.so"
    for path in (source, built):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    os.utime(built, (10, 10))
    os.utime(source, (11, 11))
    library = NativeLibrary("nothing", str(tmp_path / "nothing.py"), [], "nothing is", "do without")
    with pytest.raises(OSError, match=r"was built before .*one\.cc changed; run `make native`"):
        library.load()
    assert not library.is_available()
    os.utime(source, (2**33, 2**33))  # of a clock that was ahead: make native alone would not help
    with pytest.raises(OSError, match=r"one\.cc changed; set .* clock right, .* or touch all sources; then run"):
        library.load()
    os.utime(source, (9, 9))
    with pytest.raises(OSError, match="cannot be loaded"):  # it is empty, and was looked at
        library.load()
    header = source.rename(source.with_suffix(".h"))  # as in a bundle, whose files may have any times
    os.utime(header, (11, 11))
    with pytest.raises(OSError, match="cannot be loaded"):
        library.load()


SECONDS_OF_IDLE_THREADS = """
import ctypes, sys, time
from common.native_library import let_idle_threads_sleep, loaded_library
from common.process import num_cores

assert loaded_library("libgomp.so.1") is None
libgomp = ctypes.CDLL("libgomp.so.1")
if sys.argv[1] == "sleeping":
    let_idle_threads_sleep()
start = time.process_time()
for _ in range(200):
    libgomp.GOMP_parallel(libgomp.omp_get_thread_num, None, num_cores(), 0)
    time.sleep(0.002)
print(time.process_time() - start)
"""


@pytest.mark.skipif(num_cores() == 1, reason="one core runs no idle threads")
def test_idle_threads_sleep_after_openmp_was_loaded():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    seconds = {
        how: float(run_python("-c", SECONDS_OF_IDLE_THREADS, how, env=environment).stdout)
        for how in ("spinning", "sleeping")
    }
    assert seconds["sleeping"] < seconds["spinning"] / 3
