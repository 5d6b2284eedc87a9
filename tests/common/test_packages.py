import sys

import pytest

from common.packages import require
from data_prep.__main__ import main
from tests.programs import run_python


@pytest.mark.parametrize("package", ["app", "data_prep"])
def test_a_python_without_the_packages_gives_advice(project, package):
    """The system's Python has none of them."""
    program = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1));"
    program += f" sys.argv[0] = {package!r}; runpy.run_module({package!r}, run_name='__main__')"
    done = run_python("-I", "-S", "-c", program, project, status=2)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"error: {sys.executable} (Python 3.11) has no ")
    assert "numpy" in done.stderr and done.stderr.endswith("; run make setup, then use .venv/bin/python\n")


def test_an_older_python_is_reported(monkeypatch, capsys):
    require("sys", "json")
    monkeypatch.setattr("common.packages._PYTHON", (4, 0))
    with pytest.raises(SystemExit, match="2"):
        require("sys")
    assert "is older than 4.0; run make setup" in capsys.readouterr().err


def test_a_package_that_one_command_needs(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow.compute", None)
    monkeypatch.delitem(sys.modules, "data_prep.checks.inspect", raising=False)
    assert main(["inspect", str(tmp_path)]) == 2
    assert " has no pyarrow; run make setup" in capsys.readouterr().err


def test_a_peer_that_a_benchmark_compares_with_has_a_set_up_of_its_own(capsys, monkeypatch):
    monkeypatch.setattr("common.packages.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        require("lightgbm", "torch")
    advice = "; run make .venv/.bench-installed, then use .venv/bin/python\n"
    assert capsys.readouterr().err.endswith(f" has no lightgbm, torch{advice}")


def test_commands_do_without_pandas(project):
    """pyarrow still converts data frames if pandas is imported later."""
    code = (
        "import sys; from common.packages import keep_pandas_out; keep_pandas_out(); import pyarrow as pa;"
        "pa.array([1, 2]).to_numpy(); assert 'pandas' not in sys.modules; import pandas;"
        "assert pa.Table.from_pandas(pandas.DataFrame({'a': [1, 2]})).to_pydict() == {'a': [1, 2]}"
    )
    run_python("-c", code, cwd=project)
