"""Python for Arm (aarch64) under qemu's user-mode emulation, and the native parts compiled for it.

Python and its libraries are Debian's packages for arm64. They are unpacked into a folder and not installed. Python's
packages are the registry's wheels for Arm, in the versions of requirements.lock.
"""

import os
import re
import shutil
import sys

import pytest

from tests.programs import run_program

TOOLS = ("qemu-aarch64-static", "aarch64-linux-gnu-g++", "apt-get", "dpkg", "make")
DEBIAN = ("python3.11", "libgomp1", "libstdc++6")
PLATFORMS = ["manylinux2014", *(f"manylinux_2_{minor}" for minor in (17, 24, 26, 27, 28, 31, 34, 35, 36))]
# qemu emulates this processor. Programs such as onnxruntime read its name from /proc/cpuinfo.
PROCESSOR = "neoverse-n1"
CPU_INFO = "processor: {}\nFeatures: fp asimd\nCPU implementer: 0x41\nCPU architecture: 8\nCPU part: 0xd0c\n\n"


class ArmPython:
    def __init__(self, folder, project):
        """Unpack Debian's Python for arm64 into `folder`. Skip the test if a tool or the packages are missing."""
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            pytest.skip(f"{', '.join(missing)} missing: apt-get install qemu-user-static g++-aarch64-linux-gnu")
        self.folder, self.project, self.root, self.packages = folder, project, folder / "root", folder / "packages"
        # This state is private to the test: the list of packages that are installed on this machine does not change.
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        (folder / "status").touch()
        options = ["APT::Architecture=arm64", "APT::Architectures::=arm64", f"Dir::State={folder}"]
        options += [f"Dir::State::status={folder / 'status'}", f"Dir::Cache={folder / 'cache'}"]
        apt = ["apt-get", "-qq", *(f"-o{option}" for option in options)]
        for words in (["update"], ["install", "-y", "--no-install-recommends", "--download-only", *DEBIAN]):
            done = run_program(*apt, *words, status=None)
            if done.returncode:
                pytest.skip(f"no packages of Python 3.11 for arm64: {done.stderr.strip()[-300:]}")
        for package in (folder / "cache" / "archives").glob("*.deb"):
            run_program("dpkg", "-x", package, self.root)
        (self.root / "proc").mkdir()  # qemu opens a file in its root in place of the machine's file
        (self.root / "proc" / "cpuinfo").write_text("".join(map(CPU_INFO.format, range(os.cpu_count()))))

    def pip(self, *words, packages):
        """Run pip with `words` for the wheels for Arm of `packages`, and check their checksums."""
        locked = re.split(r"\n(?=[a-z0-9])", (self.project / "requirements.lock").read_text())
        chosen = [entry for entry in locked if entry.partition("==")[0] in packages]
        assert len(chosen) == len(packages), {*packages} - {entry.partition("==")[0] for entry in chosen}
        lock = self.folder / "requirements.lock"
        lock.write_text("\n".join(chosen) + "\n")
        options = "--quiet --no-deps --require-hashes --only-binary=:all: --python-version=3.11 --implementation=cp"
        options += "".join(f" --abi={abi}" for abi in ("cp311", "abi3", "none"))
        options += "".join(f" --platform={name}_aarch64" for name in PLATFORMS)
        run_program(sys.executable, "-m", "pip", *words, *options.split(), "--requirement", lock)

    def install(self, *packages):
        self.pip("install", "--no-compile", f"--target={self.packages}", packages=packages)

    def native(self, part, *words):
        """Compile a native part for Arm. Return the environment variable that names the library, with its path."""
        folder = self.project / part / "csrc"
        run_program("make", "-s", "-C", folder, f"PYTHON={sys.executable}", *words, "arm")
        (library,) = (folder / "build" / "arm").glob("lib*.so")
        return {f"{library.stem.removeprefix('lib').upper()}_LIBRARY": str(library)}

    def run(self, *words, path, environment, **options):
        """Run Python with `words` under emulation. `path` is a folder of modules."""
        variables = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "QEMU_CPU": PROCESSOR, **environment}
        variables["PYTHONPATH"] = f"{path}{os.pathsep}{self.packages}"
        qemu = ["qemu-aarch64-static", "-L", self.root, self.root / "usr" / "bin" / "python3.11", "-B"]
        return run_program(*qemu, *words, env=variables, **options)
