"""Thousands of documents with one thing wrong: each is refused in a sentence, or taken; none ends otherwise."""

from pathlib import Path

import pytest

from tests.bad_input.documents import DOCUMENTS
from tests.bad_input.mutations import WRONG, mutated
from tests.bad_input.trying import tried


@pytest.mark.parametrize("name", DOCUMENTS)
def test_some_of_each(name: str, tmp_path: Path) -> None:
    document = DOCUMENTS[name](tmp_path)
    kinds = list(mutated(document.content))[:: document.every]
    tried(kinds, document.read).check(least=document.least // document.every // 2)


@pytest.mark.slow
def test_all_of_each(tmp_path: Path) -> None:
    """More than a thousand kinds are refused."""
    refused = 0
    for name, make in DOCUMENTS.items():
        folder = tmp_path / name
        folder.mkdir()
        document = make(folder)
        found = tried(mutated(document.content), document.read)
        found.check(least=document.least)
        refused += len(found.refused)
    assert refused >= 4700


def test_each_place_is_wrong_in_each_way() -> None:
    kinds = dict(mutated({"a": 1, "b": [{"c": "x"}, 2, 3]}))
    places = {kind.partition(":")[0] for kind in kinds}
    assert places == {"a", "b", "b.0", "b.0.c", "b.2", "all of it"}
    assert kinds["a: removed"] == {"b": [{"c": "x"}, 2, 3]}
    assert len(kinds) == 6 * len(WRONG) - 1
