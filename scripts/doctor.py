"""Print what this machine offers to the project (such as processor, memory and compiler), and what of it the project
will use. `make doctor` runs this script.

The exit status is 1 if a native part is missing or outdated, or if MindSpore cannot be used.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from app.config import device
from app.config.device import DeviceOptions
from app.config.optimizer_settings import FtrlOptions, LazyAdamOptions
from app.distributed.mpirun import find_mpirun
from app.distributed.process_group import load_mpi
from app.model import native_tower
from app.run.folder import processor_name
from app.tables.fields import TableField
from app.tables.interface import TablesSpec
from app.tables.native import library as tables_library
from common import RELEASE
from common.native_library import NativeLibrary
from common.process import cpu_quota, memory_limits, num_cores
from data_prep.kernels import native as log_library

FEATURES = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")
NUMA_NODES = Path("/sys/devices/system/node")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# The native parts by name. Beside each library stands what the project uses if the library is missing.
PARTS: dict[str, tuple[NativeLibrary, str]] = {
    "host tables": (tables_library.LIBRARY, "the slower tables of MindSpore or NumPy"),
    "dense layer": (native_tower.LIBRARY, "MindSpore's operators"),
    "log kernels": (log_library.LIBRARY, "NumPy, several times slower"),
}
Line = tuple[str, str]  # Two texts about a part of the machine: what was found, and what will be used.


def system() -> Line:
    """Return two texts: the system and its kind of processor, and what is known about this project there.

    Raise OSError if MindSpore has no package for the system. pip installs its package for Arm Linux on any system
    without a package of its own, where its libraries cannot be loaded.
    """
    found = f"{platform.system()} {platform.machine()} {platform.libc_ver()[0]}".strip()
    if found == "Linux x86_64 glibc":
        return found, f"release {RELEASE}, tested on such systems"
    if found == "Linux aarch64 glibc":
        return found, f"release {RELEASE}, never run on an Arm machine: docs/compatibility.md says what was tried"
    raise OSError(
        f"{found}: MindSpore has packages for Linux with glibc on x86-64 and Arm only. Here pip installs the one for "
        "Arm Linux, which does not load; use a container or a virtual machine with such a system"
    )


def processor() -> Line:
    """Return two texts: the processor's name and instruction sets, and which of these the tables' kernels and the
    computation in bfloat16 will use.
    """
    flags = device.cpu_flags()
    has = ", ".join(name for name in FEATURES if name in flags) or "none of the features that are made use of"
    bfloat16 = "in hardware" if flags & device.BFLOAT16_FLAGS else "without hardware for it, so slower than float32"
    return f"{processor_name()}: {has}", f"{instruction_set()}; device.precision=bfloat16 runs {bfloat16}"


def instruction_set() -> str:
    """Return a sentence that names the instruction set that the kernels of the tables have chosen on this machine."""
    from app.tables.native.tables import NativeTables

    try:
        spec = TablesSpec(1, 1, (TableField("a"),), 1, 0.0, 0.0, FtrlOptions(), LazyAdamOptions())
        rates = dict.fromkeys(spec.tables, lambda step: 0.0)
        return f"kernels of the tables for {NativeTables(spec, rates, 1).instruction_set}"
    except (OSError, ValueError) as error:
        return f"no kernels for the tables ({error})"


def cores() -> Line:
    """Return two texts: how many cores this process may use, and the default that the setting device.threads has
    because of that.
    """
    usable = num_cores()
    return f"{usable} of {os.cpu_count()} may be used{cpu_quota()[1]}", f"{usable} host threads (device.threads)"


def memory() -> Line:
    """Return two texts: the memory that is free under this process's tightest limit, and how large tables may get."""
    tightest = min(memory_limits(), key=lambda limit: limit.free)
    free = f"{tightest.free / 2**30:,.1f} GiB"
    return f"{free} free of {tightest.limit / 2**30:,.1f} GiB ({tightest.name})", f"tables may grow to {free}"


def sockets() -> Line:
    """Return two texts: the number of NUMA nodes (sockets with memory of their own), and how to start a training on
    several of them.
    """
    count = len(list(NUMA_NODES.glob("node[0-9]*"))) or 1
    if count == 1:
        return "1 NUMA node", "all memory is equally near to all cores"
    return (
        f"{count} NUMA nodes",
        f"start one rank on each (--ranks {count}), or one process with 'numactl --interleave=all python -m app train'",
    )


def huge_pages() -> Line:
    """Return two texts: the system's setting for transparent huge pages (memory pages of 2 MiB), and whether the
    embedding tables will use them.
    """
    words = HUGE_PAGES.read_text(encoding="utf-8") if HUGE_PAGES.is_file() else "[never]"
    if "[never]" in words:
        return "off", f"small pages: lookups in large tables are slower; 'echo madvise > {HUGE_PAGES}' as root mends it"
    return words.strip(), "huge pages for the tables"


def compiler() -> Line:
    """Return two texts: the compiler that builds the C++ libraries, and what it is used for.

    If there is no compiler, the texts say so, and how to use the project without one or install one.
    """
    name = os.environ.get("CXX", "g++")
    missing = [tool for tool in (name, "make") if shutil.which(tool) is None]
    if missing:
        return (
            f"{' and '.join(missing)} missing",
            "the native parts as they are; install it for make native",
        )
    return str(shutil.which(name)), "make native builds the native parts with it"


def native_part(name: str) -> Line:
    """Return two texts: where the native part `name` was built, and that its kernels are used.

    Raise OSError, with advice, if the part is missing, outdated or built for another machine.
    """
    library, instead = PARTS[name]
    try:
        library.load()
    except OSError as error:
        raise OSError(f"{error}. Until then: {instead}") from error
    return f"built from these sources: {library.path}", "native kernels"


def mindspore() -> Line:
    """Return two texts: MindSpore's version, and the device on which it will run the tower."""
    device.prepare_environment(DeviceOptions())
    return version("mindspore"), f"the tower runs on {device.select_device(DeviceOptions())} (device.target=auto)"


def mpi() -> Line:
    """Return two texts: which mpirun starts several ranks, or why there is none, and whether a training can therefore
    run on several ranks.
    """
    try:
        mpirun = find_mpirun()
        load_mpi()
    except OSError as error:
        return str(error), "one process; --ranks above 1 is refused"
    return mpirun, "several ranks (--ranks N)"


def browser() -> Line:
    """Return two texts: the browser in which tests render pages, and whether these tests run."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    return found or "none", "the tests of pages run" if found else "reports are written; the tests of pages are skipped"


CHECKS: dict[str, Callable[[], Line]] = {
    "system": system,
    "processor": processor,
    "cores": cores,
    "memory": memory,
    "sockets": sockets,
    "huge pages": huge_pages,
    "compiler": compiler,
    **{name: functools.partial(native_part, name) for name in PARTS},
    "MindSpore": mindspore,
    "MPI": mpi,
    "browser": browser,
}


def main() -> int:
    """Print for each part of the machine what was found and what will be used. Return the exit status."""
    failed = False
    for name, check in CHECKS.items():
        try:
            found, used = check()
            print(f"{name:12} {found}\n{'':12} -> {used}")
        except (OSError, ValueError, ImportError) as error:
            failed = True
            print(f"{name:12} error: {error}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
