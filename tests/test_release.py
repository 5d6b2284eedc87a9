"""The files of a release agree on its version, its licence and its date."""

import re
import tomllib

import yaml

from common import RELEASE


def test_version_and_licence_are_the_same_everywhere(project):
    package = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((project / "CITATION.cff").read_text())
    newest = re.findall(r"^## (\d\S+)", (project / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert package["version"] == citation["version"] == newest == RELEASE
    assert package["license"] == citation["license"] == "Apache-2.0"
    assert {"cff-version", "message", "title", "authors", "date-released"} <= citation.keys()


def test_the_licence_is_whole(project):
    text = (project / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
    assert [number for number in range(1, 10) if not re.search(rf"^ *{number}\. [A-Z]", text, re.MULTILINE)] == []
