"""docs/licences.md has each package of the lock, whose files have checksums."""

import re

from scripts.licences import LOCK, licence, locked


def test_each_locked_package_is_listed_with_its_licence(project):
    page = (project / "docs" / "licences.md").read_text()
    listed = dict(re.findall(r"^\| (.+) \| (.+) \|$", page, re.MULTILINE))
    assert listed.pop("licence") == "packages"
    packages = [package for of_licence in listed.values() for package in of_licence.split(", ")]
    assert sorted(packages) == sorted(f"{name} {version}" for name, version in locked().items())
    assert "not stated" not in listed
    assert {licence(name) for name in ("numpy", "pytest")} <= listed.keys()


def test_every_package_of_the_lock_has_checksums_and_no_index_is_named():
    text = LOCK.read_text()
    blocks = re.findall(r"^\S+==\S+ \\\n(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", text, re.MULTILINE)
    assert len(blocks) == len(locked()) > 100
    assert not re.search(r"://|index-url|find-links", text)


def test_the_lock_has_what_pyproject_pins(project):
    text = (project / "pyproject.toml").read_text().split("bench = ")[0]
    pins = dict(re.findall(r'"([\w.-]+)(?:\[\w+\])?==([^"]+)"', text))
    locked_names = {name.lower().replace("_", "-"): version for name, version in locked().items()}
    assert {name.lower().replace("_", "-"): version for name, version in pins.items()}.items() <= locked_names.items()
