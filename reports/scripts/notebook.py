"""Execute the tutorial's notebook again, ``docs/guide/first-steps.ipynb``, where a reader would.

    pip install nbclient ipykernel
    python -m reports.scripts.notebook

Its texts and code are edited in the notebook itself. Half a minute; a slow test runs its code, too.
"""

import base64
import io
import os
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from reports.scripts.printed import ROOT, in_256_colors, prepare

NOTEBOOK = ROOT / "docs" / "guide" / "first-steps.ipynb"


def main() -> None:
    """Execute the notebook and write it."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        NotebookClient(notebook, resources={"metadata": {"path": name}}, timeout=600).execute()
    notebook.metadata = {"language_info": {"name": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
        if "outputs" in cell:
            cell.outputs = [shortened(output) for output in cell.outputs if is_result(output)]
    nbformat.write(notebook, NOTEBOOK)


def is_result(output: dict[str, Any]) -> bool:
    """Whether an output is no progress bar and no warning about the machine."""
    return output.get("name") != "stderr" and "<progress" not in output.get("data", {}).get("text/html", "")


def shortened(output: dict[str, Any]) -> dict[str, Any]:
    """Return an output whose picture has 256 colors, which is all that a chart needs."""
    data = output.get("data", {})
    if "image/png" in data:
        buffer = io.BytesIO()
        with Image.open(io.BytesIO(base64.b64decode(data["image/png"]))) as image:
            in_256_colors(image).save(buffer, "PNG", optimize=True)
        data["image/png"] = base64.b64encode(buffer.getvalue()).decode()
    return output


if __name__ == "__main__":
    main()
