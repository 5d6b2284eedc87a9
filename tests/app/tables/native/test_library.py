"""Finding the library of the native tables, and the messages if it is missing."""

import _ctypes
import os

import pytest

from app.tables.native.library import LIBRARY

pytestmark = pytest.mark.usefixtures("native_library")


def test_a_missing_library_says_how_to_build_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HOST_TABLES_LIBRARY", str(tmp_path / "libhost_tables.so"))
    monkeypatch.setattr(LIBRARY, "_loaded", None)
    assert not LIBRARY.is_available()
    with pytest.raises(FileNotFoundError, match=r"libhost_tables.so is missing; run `make native`"):
        LIBRARY.load()


def test_a_broken_library_says_how_to_build_it(monkeypatch, tmp_path):
    (tmp_path / "libhost_tables.so").write_text("not a library")
    monkeypatch.setenv("HOST_TABLES_LIBRARY", str(tmp_path / "libhost_tables.so"))
    monkeypatch.setattr(LIBRARY, "_loaded", None)
    with pytest.raises(OSError, match=r"cannot be loaded: .*; run `make native`"):
        LIBRARY.load()


@pytest.mark.parametrize("name", ["libhost_tables.so", "build/libhost_tables.so"])
def test_a_relative_path_is_of_the_working_folder(monkeypatch, tmp_path, name):
    monkeypatch.delenv("HOST_TABLES_LIBRARY", raising=False)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(LIBRARY.path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOST_TABLES_LIBRARY", name)
    monkeypatch.setattr(LIBRARY, "_loaded", None)
    assert LIBRARY.load()
    assert LIBRARY.path == tmp_path / name


def test_a_library_of_another_version_says_how_to_build_it(monkeypatch):
    monkeypatch.setenv("HOST_TABLES_LIBRARY", _ctypes.__file__)
    monkeypatch.setattr(LIBRARY, "_loaded", None)
    with pytest.raises(OSError, match=r"cannot be loaded: .*undefined symbol: host_tables_.*; run `make native`"):
        LIBRARY.load()


def test_loading_the_library_leaves_the_environment_as_it_was(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(LIBRARY, "_loaded", None)
    LIBRARY.load()
    assert "OMP_WAIT_POLICY" not in os.environ
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setattr(LIBRARY, "_loaded", None)
    LIBRARY.load()
    assert os.environ["OMP_WAIT_POLICY"] == "active"
