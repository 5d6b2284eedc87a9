"""The notebook runs as a reader runs it, in a kernel of its own, and is stored without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


@pytest.fixture
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def test_no_outputs_are_stored(notebook):
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


@pytest.mark.slow
def test_every_cell_runs(notebook, project, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(project))
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", coalesce_streams=True, resources=resources).execute()
    shown = {cell.id: "".join(str(output) for output in cell.outputs) for cell in notebook.cells if "outputs" in cell}
    texts = "\n".join(shown.values())
    assert "epoch 3: 100%" in texts  # bars are drawn in place
    assert "<iframe srcdoc=" in texts
    assert "AUC" in texts
    assert "basket: list" in texts
    assert "(intercept)" in shown["c25"]
    assert (tmp_path / "bundle" / "manifest.json").is_file()
