"""The checksum of the program that decides whether an interrupted preparation is resumed."""

import pytest

from common.process import checksum_of_sources
from data_prep.pipeline import prepare

PACKAGES = ("common", "data_prep")
FILES = ("common/settings.py", "data_prep/__main__.py", "data_prep/kernels/parse.py", "data_prep/kernels/csrc/parse.cc")


def checksum_of(folder, changed=None):
    for name in FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("another" if name == changed else "text")
    return checksum_of_sources(folder, PACKAGES)


@pytest.mark.parametrize("changed", FILES)
def test_a_change_anywhere_makes_another_program(tmp_path, changed):
    assert checksum_of(tmp_path) != checksum_of(tmp_path, changed)


def test_it_is_the_checksum_of_this_project(project):
    assert prepare._program() == checksum_of_sources(project, PACKAGES)


def test_what_is_built_or_cached_does_not_count(tmp_path):
    before = checksum_of(tmp_path)
    (tmp_path / "data_prep" / "kernels" / "csrc" / "build").mkdir()
    (tmp_path / "data_prep" / "kernels" / "csrc" / "build" / "liblog_kernels.so").write_text("built")
    (tmp_path / "data_prep" / "__pycache__").mkdir()
    (tmp_path / "data_prep" / "__pycache__" / "parse.pyc").write_text("cached")
    assert checksum_of_sources(tmp_path, PACKAGES) == before
