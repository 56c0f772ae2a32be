"""The notebook of the tutorial shows what its code gives."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from reports.scripts.notebook import NOTEBOOK
from reports.scripts.printed import prepare

NUMBER = re.compile(r"(?<![\w.])[-+−]?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def shown(cell: dict[str, Any]) -> str:
    """The page of an output without pictures and without numbers that the machine rounds."""
    page = "".join(part for output in cell["outputs"] for part in output.get("data", {}).get("text/html", ""))
    return re.sub(r"data-key=\"[^\"]*\"|src='[^']*'|<style.*?</style>", "", page, flags=re.DOTALL)


def test_every_cell_with_a_result_shows_it() -> None:
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert len(code) >= 7 and not code[0]["outputs"]
    for cell in code[1:]:
        kinds = {kind for output in cell["outputs"] for kind in output["data"]}
        assert kinds & {"text/html", "image/png"}, source(cell)


@pytest.mark.pictures
@pytest.mark.resamples
@pytest.mark.slow
@pytest.mark.promise
def test_the_code_gives_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in CELLS:
        if cell["cell_type"] != "code":
            continue
        *statements, last = source(cell).rsplit("\n", maxsplit=1)
        exec("\n".join(statements), names)
        try:
            value = eval(last, names)
        except SyntaxError:
            exec(last, names)
            continue
        if not isinstance(value, pd.DataFrame) and hasattr(value, "_repr_html_"):
            page = value._repr_html_() or ""
            again = shown({"outputs": [{"data": {"text/html": page}}]})
            assert NUMBER.split(again) == NUMBER.split(shown(cell)), "run: python -m reports.scripts.notebook"
            # Another machine rounds otherwise, here and there.
            here, there = (
                np.array([float(text) for text in NUMBER.findall(part)]) for part in (again, shown(cell))
            )
            np.testing.assert_allclose(here, there, atol=0.005)
