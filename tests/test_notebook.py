"""The notebook runs from the first cell to the last, in a kernel of its own."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NOTEBOOK = Path(__file__).parent.parent / "examples/quickstart.ipynb"


def load() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def executed(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Run all cells; each may take two minutes, also on a busy machine."""
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    return client.execute()


# Outputs are not stored: times and versions in them would differ with every run, and a review would not see the lines
# that matter. This test stands for them: it runs the cells as they are, except for the one with the settings.
def test_the_notebook_has_no_outputs_and_one_cell_of_settings() -> None:
    cells = load().cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count] == []
    assert [cell.id for cell in code if "parameters" in cell.metadata.get("tags", [])] == ["settings"]


def test_the_notebook_leads_from_data_to_the_page(tmp_path: Path) -> None:
    notebook = load()
    settings = next(cell for cell in notebook.cells if cell.id == "settings")
    assert settings.source == "EPOCHS = 20\nSEEDS = [0, 1, 2]\nPRUNE_RATIO = 0.4"
    settings.source = "EPOCHS = 2\nSEEDS = [0, 1]\nPRUNE_RATIO = 0.4"
    cells = {cell.id: cell for cell in executed(notebook, tmp_path).cells}
    assert "'saved': 0.4" in cells["report"].outputs[0].data["text/plain"]
    assert "image/png" in cells["hardest"].outputs[-1].data
    assert "image/svg+xml" in cells["curves"].outputs[0].data
    assert cells["compare"].outputs[-1].data["text/plain"] == "10"  # five methods, two seeds
    table = cells["table"].outputs[0].data["text/markdown"]
    methods = ("full data", "fewer epochs 40%", "random 40%", "unlearned 40%", "orderdp 40%")
    assert all(name in table for name in methods)
    assert "<iframe" in cells["page"].outputs[0].data["text/html"]
    assert (tmp_path / "quickstart-runs/report.html").is_file()


def test_a_cell_that_raises_fails(tmp_path: Path) -> None:
    notebook = load()
    notebook.cells = [cell for cell in notebook.cells if cell.id == "settings"]
    notebook.cells[0].source = "EPOCHS = 1 / 0"
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        executed(notebook, tmp_path)
