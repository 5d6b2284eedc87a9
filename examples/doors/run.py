"""Make the environments of the doors (`make door`), and try the doors (`make doors`). See docs/integrations.md.

A door is an example that connects the project to another tool. Its folder here contains its programs,
`requirements.txt` with the exact versions of its packages, and `test_door.py`, which runs the commands of
docs/integrations.md and reads back what they have written. The pins of two tools may exclude each other, so each door
has an environment of its own in `.venv-doors/NAME`. A door without requirements.txt uses the project's `.venv`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
ENVIRONMENTS = PROJECT / ".venv-doors"
PAGE = "docs/integrations.md"
# Logs, a trained model and a bundle, which the tests of all doors start from.
MATERIAL = PROJECT / "build" / "doors"


@dataclass(frozen=True)
class Door:
    """How a door is installed and tried.

    - trains: The door trains, so its environment sees the packages of the project's `.venv` too. If both have a
      package, the door's version is used. The environments of other doors see nothing but their own requirements.
    - quick: CI tries the door, because it takes less than a minute.
    - programs: Programs that the door needs and pip does not install. The page says which package has them.
    """

    trains: bool = False
    quick: bool = True
    programs: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """Those of `programs` that are not installed."""
        return [program for program in self.programs if shutil.which(program) is None]


DOORS: dict[str, Door] = {
    "cron": Door(trains=True),
    "kafka": Door(),
    "mlflow": Door(trains=True),
    "mlflow_registry": Door(quick=False),  # It takes 520 MB.
    "optuna": Door(trains=True),
    "trackio": Door(trains=True),
    "onnx": Door(),
    "mindir": Door(trains=True),
    "triton": Door(),
    "spark": Door(quick=False, programs=("java",)),
    "ray": Door(quick=False),
    "prometheus": Door(programs=("promtool", "prometheus")),
    "wandb": Door(trains=True),
    "scoring_container": Door(),
}


class DoorError(Exception):
    """A door that cannot be installed, or whose tests fail."""


def python_of(name: str) -> Path:
    """Return the Python of a door's environment."""
    own = (HERE / name / "requirements.txt").exists()
    return ENVIRONMENTS / name / "bin" / "python" if own else Path(sys.executable)


def install(name: str) -> None:
    """Make the environment of a door, unless it is there with the same requirements. Raise DoorError if that fails."""
    requirements, folder = HERE / name / "requirements.txt", ENVIRONMENTS / name
    if not requirements.exists():
        return
    packages = [] if DOORS[name].trains else [f"pytest=={version('pytest')}"]
    stamp, content = folder / ".installed", "\n".join([requirements.read_text(), *packages])
    if stamp.exists() and stamp.read_text() == content:
        return
    print(f"== installing {requirements.relative_to(PROJECT)} into {folder.relative_to(PROJECT)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)  # noqa: S603
    if DOORS[name].trains:
        packages_of_door = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        (packages_of_door / "project.pth").write_text(line)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python_of(name), "--disable-pip-version-check"]
    if subprocess.run([*pip, "install", "-q", "-r", requirements, *packages]).returncode:  # noqa: S603
        raise DoorError(
            f"the environment of the door {name} cannot be installed: see pip's message above. Without a network, "
            f"only environments that are complete in {ENVIRONMENTS.name}/ can be used"
        )
    stamp.write_text(content)


def make_material() -> None:
    """Write a synthetic log, train a small model on it, and export a bundle."""
    shutil.rmtree(MATERIAL, ignore_errors=True)
    MATERIAL.mkdir(parents=True)
    config = PROJECT / "configs" / "tiny.yaml"
    print(f"== a log, a model and a bundle in {MATERIAL.relative_to(PROJECT)}", flush=True)
    for words in (
        "data_prep synthesize log.txt --rows 20000 --seed 1",
        "data_prep synthesize new.txt --rows 2000 --seed 2",
        f"data_prep prepare log.txt prepared --config {config}",
        f"app train --config {config} --dataset prepared train.epochs=2",
        "app export device_0 bundle --onnx-ids --mindir",
    ):
        command = [sys.executable, "-m", *words.split()]
        with (MATERIAL / "material.log").open("a") as log:
            if subprocess.run(command, cwd=MATERIAL, stdout=log, stderr=log).returncode:  # noqa: S603
                raise DoorError(f"python -m {words} failed: see {log.name}")


def test(name: str) -> None:
    """Run the tests of a door in its environment. Raise DoorError if one fails."""
    print(f"== {name}", flush=True)
    if missing := DOORS[name].missing:
        raise DoorError(f"the door {name} needs {' and '.join(missing)}, which pip does not install: see {PAGE}")
    environment = {**os.environ, "DOORS_MATERIAL": str(MATERIAL), "PYTHONDONTWRITEBYTECODE": "1"}
    words: list[str | Path] = ["-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / name]
    if subprocess.run([python_of(name), *words], cwd=PROJECT, env=environment).returncode:  # noqa: S603
        raise DoorError(f"the tests of the door {name} fail: see above")


def main() -> int:
    """Run the command line. Return 1 if a door failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="DOOR", help=f"all, quick, or some of {', '.join(DOORS)}")
    parser.add_argument("--install-only", action="store_true", help="make the environments, and try nothing")
    options = parser.parse_args()
    quick = [name for name, door in DOORS.items() if door.quick]
    if "quick" in options.names:
        for name in quick:
            for program in DOORS[name].missing:
                print(f"warning: the door {name} is not tried, because {program} is not installed", flush=True)
    groups = {"all": list(DOORS), "quick": [name for name in quick if not DOORS[name].missing]}
    names = [name for word in options.names or ["all"] for name in groups.get(word, [word])]
    if unknown := [name for name in names if name not in DOORS]:
        parser.error(f"no door is called {', '.join(unknown)}; there are {', '.join(DOORS)}")
    failed: list[str] = []
    results: list[str] = []
    if not options.install_only:
        subprocess.run([sys.executable, "-m", "pytest", "-q", HERE / "test_doors.py"], cwd=PROJECT, check=True)  # noqa: S603
        make_material()
    for name in names:
        begin = time.monotonic()
        installed = begin
        try:
            install(name)
            installed = time.monotonic()
            if not options.install_only:
                test(name)
        except DoorError as error:
            failed.append(name)
            print(f"error: {error}", file=sys.stderr, flush=True)
        spent = f"{installed - begin:6.1f} s to install, {time.monotonic() - installed:6.1f} s to try"
        results.append(f"{name:16} {'FAILED' if name in failed else 'ok':6} {spent}")
    print("\n".join(results))
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DoorError as failure:
        sys.exit(f"error: {failure}")
