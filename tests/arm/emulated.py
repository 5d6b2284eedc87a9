"""Python for Arm (aarch64) under qemu's user-mode emulation, and the native parts compiled for it.

Python and its libraries come from Debian's packages for arm64, which are unpacked into a folder and not installed.
Python's packages are the registry's wheels for Arm, in the versions of requirements.lock.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.programs import run_program

TOOLS = ("qemu-aarch64-static", "aarch64-linux-gnu-g++", "apt-get", "dpkg", "make")
NATIVE = {"LOG_KERNELS_LIBRARY": "data_prep/kernels", "HOST_TABLES_LIBRARY": "app/tables/native"}
DEBIAN = ("python3.11", "libgomp1", "libstdc++6")
GLIBC = (17, 24, 26, 27, 28, 31, 34, 35, 36)  # minor versions for which wheels are tagged, up to Debian 12's


def skip_without_tools():
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"{', '.join(missing)} missing: apt-get install qemu-user-static g++-aarch64-linux-gnu")


def cross_compile(project):
    """Compile the native parts for Arm. Return the environment variables that name the libraries."""
    for folder in NATIVE.values():
        run_program("make", "-s", "-C", project / folder / "csrc", f"PYTHON={sys.executable}", "arm")
    names = {name: f"lib{name.removesuffix('_LIBRARY').lower()}.so" for name in NATIVE}
    return {name: str(project / NATIVE[name] / "csrc" / "build" / "arm" / names[name]) for name in NATIVE}


def unpack_python(folder):
    """Unpack Debian's Python for arm64 into `folder`. The state of this machine's packages does not change."""
    state = folder / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    for words in (["update"], ["install", "-y", "--no-install-recommends", "--download-only", *DEBIAN]):
        done = run_program(*apt, *words, status=None)
        if done.returncode:
            pytest.skip(f"no packages of Python 3.11 for arm64: {done.stderr.strip()[-300:]}")
    for package in sorted((state / "cache" / "archives").glob("*.deb")):
        run_program("dpkg", "-x", package, folder / "root")
    return folder / "root"


def install_wheels(project, names, folder):
    """Install the locked versions of packages for Arm into `folder`, with their checksums checked."""
    locked = re.split(r"\n(?=[a-z0-9])", (project / "requirements.lock").read_text())
    chosen = [entry for entry in locked if entry.partition("==")[0] in names]
    assert len(chosen) == len(names), {*names} - {entry.partition("==")[0] for entry in chosen}
    lock = folder.with_suffix(".lock")
    lock.write_text("\n".join(chosen) + "\n")
    tags = ["manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in GLIBC)]
    words = ["--quiet", "--no-deps", "--no-compile", "--require-hashes", "--only-binary=:all:", "--target", folder]
    words += [word for tag in tags for word in ("--platform", tag)]
    abis = [word for abi in ("cp311", "abi3", "none") for word in ("--abi", abi)]
    versions = ["--python-version", "3.11", "--implementation", "cp", *abis]
    done = run_program(sys.executable, "-m", "pip", "install", *words, *versions, "-r", lock, status=None)
    if done.returncode:
        pytest.skip(f"no wheels for Arm: {done.stderr.strip()[-300:]}")


def run_on_arm(root, *words, path, environment=None, **options):
    """Run Python with `words` under emulation. `path` are the folders of its modules."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **(environment or {})}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
    python = Path(root) / "usr" / "bin" / "python3.11"
    return run_program("qemu-aarch64-static", "-L", root, python, "-B", *words, env=environment, **options)
