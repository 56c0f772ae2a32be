"""What the tests of this folder share."""

from pathlib import Path

import pytest

from tests.commands import every_resample, few_resamples  # noqa: F401  # fixtures


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small OLMoE in its folder, as servers and clients have it."""
    pytest.importorskip("transformers")
    from tests.recordings.test_sequences import saved_model

    return saved_model(tmp_path_factory.mktemp("served") / "small", "olmoe")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are tried again at once."""
    from moeprobe.studies.server import client

    monkeypatch.setattr(client, "PAUSE", 0.01)
