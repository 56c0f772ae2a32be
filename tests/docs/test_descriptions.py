"""What lists say of configurations, sweeps and pipelines: a whole sentence each."""

import json

import pytest

from tests.commands import run


@pytest.mark.parametrize("kind", ["configs", "sweeps", "pipelines"])
def test_descriptions_are_whole_sentences(kind: str) -> None:
    for name, text in json.loads(run("list", kind, "--json").output).items():
        assert text.endswith(".") and not text.endswith(("al.", "eq.", " C.")), (name, text)
        assert text.count("(") == text.count(")") and text.count('"') % 2 == 0, (name, text)
        assert len(text) <= 320, (name, text)
