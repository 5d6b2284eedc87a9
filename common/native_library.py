"""Load the C++ libraries of the project, which `make native` builds, and pass NumPy arrays to them.

The C headers are the only definition of a library's interface: this module parses functions, structures and
enumerations from them. It also makes idle OpenMP threads sleep, whichever library of the process loads OpenMP first.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from common.packages import make_command
from common.process import held

_COMMENT_OR_DIRECTIVE = re.compile(r"//.*|^#(?:.*\\\n)*.*", re.MULTILINE)
_ENUM = re.compile(r"typedef enum \{([^}]*)\} (\w+);")
_STRUCTURE = re.compile(r"typedef struct \{([^}]*)\} (\w+);")
_FUNCTION = re.compile(r"^\w+_API ([\w ]+[ *]+)(\w+)\(([^)]*)\);", re.MULTILINE)


@dataclass
class Interface:
    """The functions, structures and enumerations that a library's C headers declare, as ctypes types.

    Headers are parsed with regular expressions, so they must be written like those of this project.
    """

    # Name of an enumeration -> name of a member -> its number. Names of members are in lower case, without their
    # prefix, which is the name of the header.
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    structures: dict[str, type[ctypes.Structure]] = field(default_factory=dict)
    # Name of a function -> type of its result, and types of its arguments.
    functions: dict[str, tuple[Any, list[Any]]] = field(default_factory=dict)

    def read(self, header: Path) -> None:
        """Add the functions, structures and enumerations that a header file declares to this interface."""
        text = _COMMENT_OR_DIRECTIVE.sub("", header.read_text(encoding="utf-8"))
        for members, name in _ENUM.findall(text):
            pairs = (member.lower().split("=") for member in members.split(","))
            self.enums[name] = {member.strip().removeprefix(f"{header.stem}_"): int(value) for member, value in pairs}
        for declarations, name in _STRUCTURE.findall(text):
            fields = [
                (field_name, self._type(declaration))
                for declaration in declarations.split(";")
                for field_name in re.findall(r"\w+(?=,|$)", declaration.strip())
            ]
            self.structures[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
        for result, name, arguments in _FUNCTION.findall(text):
            self.functions[name] = self._type(result), [self._type(argument) for argument in arguments.split(",")]

    def _type(self, declaration: str) -> Any:
        """Return the ctypes type of the values that a C declaration, such as `const int64_t* values` or `float l1, l2`,
        declares.

        Return None for void.
        """
        name = declaration.replace("const ", "").split()[0].rstrip("*")
        if "*" in declaration:
            structure = self.structures.get(name)
            return ctypes.POINTER(structure) if structure else ctypes.c_char_p if name == "char" else ctypes.c_void_p
        if name == "void":
            return None
        if name in self.enums:
            return ctypes.c_int
        return self.structures.get(name) or getattr(ctypes, f"c_{name.removesuffix('_t')}")


# By default, idle OpenMP threads spin for milliseconds on cores that other threads need, such as MindSpore's threads.
# Training on two cores then takes up to fourteen times as long. The environment variable OMP_WAIT_POLICY lets idle
# OpenMP threads sleep, but GCC's OpenMP library (libgomp) reads the variable only once, when a process loads libgomp,
# and LightGBM, PyTorch and MindSpore may have loaded libgomp before this module does.
WAIT_POLICY, SLEEP = "OMP_WAIT_POLICY", "passive"
_LIBGOMP = "libgomp.so.1"


def loaded_library(name: str) -> ctypes.CDLL | None:
    """Return the shared library with the soname `name` if this process has loaded it, and None otherwise.

    Never load it.
    """
    try:
        return ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
    except OSError:
        return None


def let_idle_threads_sleep() -> None:
    """If this process has loaded OpenMP without a wait policy, let OpenMP's idle threads sleep soon: they spin (wait in
    a busy loop) only for a short time.

    Do nothing if OpenMP is not loaded, or if the user has set a policy (OMP_WAIT_POLICY).
    """
    if WAIT_POLICY not in os.environ and loaded_library(_LIBGOMP) is not None:
        _start_surplus_threads()


@functools.cache
def _start_surplus_threads() -> None:
    """Start one OpenMP thread more than there are cores, and keep these threads asleep until the process ends.

    If GCC's OpenMP library (libgomp) manages more threads than there are cores, each idle thread spins for 100 rounds
    instead of 300,000 before it sleeps (GOMP_SPINCOUNT in its manual). libgomp keeps the threads of a parallel region
    as long as the thread that started the region lives.
    """
    libgomp, has_started = ctypes.CDLL(_LIBGOMP), threading.Event()

    def start_and_stay() -> None:
        # A parallel region of OpenMP needs a function that its threads call. omp_get_thread_num will do, because it
        # ignores its argument. libgomp takes the number of cores from the affinity mask, so a CPU quota does not count
        # here.
        libgomp.GOMP_parallel(libgomp.omp_get_thread_num, None, len(os.sched_getaffinity(0)) + 1, 0)
        has_started.set()
        threading.Event().wait()

    with held():  # The OpenMP threads must not receive SIGTERM and SIGINT, which only the main thread can handle.
        threading.Thread(target=start_and_stay, name="openmp-surplus", daemon=True).start()
        has_started.wait()


class NativeLibrary:
    """The C++ library csrc/build/lib`name`.so, where the folder csrc is beside the Python file `beside`.

    If the environment variable `NAME`_LIBRARY is set before the first load, it names the file to load instead.
    `headers` are the files in csrc that declare the library's functions. `what` and `otherwise` complete the error
    message "the native {what} not built … or {otherwise}".
    """

    def __init__(self, name: str, beside: str, headers: Sequence[str], what: str, otherwise: str) -> None:
        self._file = Path(beside).parent / "csrc" / "build" / f"lib{name}.so"
        self._variable = f"{name.upper()}_LIBRARY"
        self._what, self._otherwise = what, otherwise
        self._loaded: ctypes.CDLL | None = None
        self.interface = Interface()
        for header in headers:
            self.interface.read(Path(beside).parent / "csrc" / header)

    @property
    def path(self) -> Path:
        """The path of the library file. There may be no such file yet."""
        return Path(os.environ.get(self._variable, self._file)).absolute()

    def is_available(self) -> bool:
        """Return True if the library is built and can be loaded."""
        try:
            self.load()
        except OSError:
            return False
        return True

    def load(self) -> ctypes.CDLL:
        """Load the library (only at the first call), declare the argument and result types of its functions, and return
        it.

        Raise OSError if the file is missing, older than its sources, or cannot be loaded. The message says how to build
        the library.
        """
        if self._loaded is None:
            self._loaded = self._load(self.path)
        return self._loaded

    def _load(self, path: Path) -> ctypes.CDLL:
        if not path.is_file():
            raise FileNotFoundError(
                f"the native {self._what} not built: {path} is missing; run `{make_command('native')}` (it needs "
                f"g++ and make), or {self._otherwise}"
            )
        csrc = path.parents[1]
        # A library that was built from other sources may expect other arguments and crash, so its sources must not be
        # newer than the library. In an exported model (bundle) this cannot be checked, because it contains no C++
        # sources.
        if path == self._file and any(csrc.rglob("*.cc")):
            build_time = path.stat().st_mtime
            sources = (source for ending in ("*.h", "*.cc") for source in csrc.rglob(ending))
            if newer := next((source for source in sources if source.stat().st_mtime > build_time), None):
                # If the modification time of the source is in the future, building the library again does not help,
                # because the source stays newer than the library.
                is_ahead = newer.stat().st_mtime > time.time()
                advice = "set this machine's clock right, which is behind, or touch all sources; then " * is_ahead
                build = make_command("native")
                raise OSError(f"{path} was built before {newer} changed; {advice}run `{build}` to build it again")
        # On two cores, one of them busy, looking up the embedding rows of a batch took 32 ms with idle threads that
        # spin, and 14 ms with idle threads that sleep.
        let_idle_threads_sleep()
        is_added = WAIT_POLICY not in os.environ
        os.environ.setdefault(WAIT_POLICY, SLEEP)
        try:
            library = ctypes.CDLL(str(path))
            for name, (result, arguments) in self.interface.functions.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        # The file is no library, or it lacks functions, because it was built from the sources of another release.
        except (OSError, AttributeError) as error:
            raise OSError(
                f"{path} cannot be loaded: {error}; run `{make_command('native')}` to build it for this machine"
            ) from error
        finally:
            if is_added:
                del os.environ[WAIT_POLICY]
        return library


_NO_BYTES = ctypes.c_char * 0


def address(array: NDArray[Any], dtype: DTypeLike, *shape: int) -> int:
    """Return the address of an array's values. The address is valid as long as the array exists.

    C knows neither dtype nor shape, so every array that is passed to C goes through this function. Raise TypeError
    unless the array has the given dtype and shape, is aligned and is in C order.
    """
    flags = array.flags
    if array.dtype != dtype or array.shape != shape or not (flags.c_contiguous and flags.aligned):
        raise TypeError(
            f"a native kernel needs {np.dtype(dtype)} {list(shape)} in C order, found {array.dtype} "
            f"{list(array.shape)}, {array.strides} bytes apart"
        )
    if flags.writeable and array.dtype.isbuiltin == 1:  # bfloat16 arrays do not support the buffer protocol.
        # `from_buffer` takes a fifth of the time of `array.ctypes.data`. A training step needs sixty addresses.
        return ctypes.addressof(_NO_BYTES.from_buffer(array))  # type: ignore[arg-type] # stubs: from Python 3.12 on
    return int(array.ctypes.data)


def output_address(array: NDArray[Any]) -> int:
    """Return the address of an array that C writes to.

    Raise TypeError if the array is read-only or not in C order.
    """
    if not array.flags.writeable:
        raise TypeError(f"a native kernel writes to this {array.dtype} {list(array.shape)}, which is read-only")
    return address(array, array.dtype, *array.shape)
