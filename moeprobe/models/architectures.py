"""The models by name, read from the source of ``nn.vit``: importing it takes seconds."""

import ast
from pathlib import Path

_SOURCE = Path(__file__).parent / "nn" / "vit.py"


def list_architectures() -> dict[str, str]:
    """Return name -> first line of the docstring, of every model that ``nn.vit`` registers."""
    tree = ast.parse(_SOURCE.read_text(encoding="utf-8"))
    return {
        node.name: (ast.get_docstring(node) or "").partition("\n")[0]
        for node in sorted(
            (one for one in tree.body if isinstance(one, ast.FunctionDef)), key=lambda one: one.name
        )
        if any(isinstance(one, ast.Name) and one.id == "register_model" for one in node.decorator_list)
    }
