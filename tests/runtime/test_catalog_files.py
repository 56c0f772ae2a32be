"""A file of the package whose class is called by another name."""

from pathlib import Path

import pytest

from moeprobe.errors import UserError
from moeprobe.runtime.catalog import VIEWS, Catalog


@pytest.mark.parametrize("text", ["class Other:\n    '''Another.'''\n", ""])
def test_a_file_without_its_class_is_one_sentence(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_view.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(VIEWS, "folder", tmp_path)
    assert VIEWS.built_in() == ["my_view"]
    with pytest.raises(UserError, match="my_view holds no class MyView: a view is called by its file"):
        VIEWS.describe("my_view")
    (tmp_path / "my_view.py").write_text("class MyView:\n    pass\n", encoding="utf-8")
    assert VIEWS.describe("my_view") == "", "no docstring, no line"


def test_a_module_without_its_class_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Catalog, "built_in", lambda self: ["base"])
    with pytest.raises(UserError, match="base holds no class Base"):
        VIEWS.get("base")
