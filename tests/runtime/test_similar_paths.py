"""A mistyped path is answered with the one like it, part by part."""

from pathlib import Path

import pytest

from moeprobe.runtime import similar_paths
from moeprobe.runtime.similar_paths import did_you_mean_path
from tests.commands import refused


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for run in ("checkpoints/demo-prc", "checkpoints/demo-baseline"):
        Path(run).mkdir(parents=True)
        Path(run, "last.safetensors").touch()
    Path("checkpoints/demo-pr").mkdir()
    Path("data").mkdir()
    Path("data/served.jsonl").touch()


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("chekpoints/demo-prc", "'checkpoints/demo-prc'"),
        ("checkpoint/demo-bseline", "'checkpoints/demo-baseline'"),
        ("checkpoints/demo-baselin/last.safetensors", "'checkpoints/demo-baseline/last.safetensors'"),
        ("dta/serve.jsonl", "'data/served.jsonl'"),
        ("dta/other.csv", "a path in 'data'"),
        ("elsewhere/demo-prc", None),
        ("data/served.jsonl/more", None),
        ("x" * 5000, None),
        ("data\0/served", "'data/served.jsonl'"),
    ],
)
def test_each_part_that_does_not_exist_is_replaced(typed: str, meant: str | None) -> None:
    assert did_you_mean_path(typed) == ("" if meant is None else f" Did you mean {meant}?")
    absolute = did_you_mean_path(Path.cwd() / typed)
    assert (meant is None) == (absolute == "") and absolute.replace(
        f"{Path.cwd()}/", ""
    ) == did_you_mean_path(typed)


@pytest.mark.usefixtures("folders")
def test_only_what_was_wanted_is_recommended() -> None:
    assert "Did you mean 'checkpoints/demo-prc'?" in refused("match-ratio", "chekpoints/demo-pr")
    assert "Did you mean 'data/served.jsonl'?" in refused(
        "trace", "import", "data/servd.jsonl", "t.parquet", "--model-config", "config.json"
    )
    assert "Did you mean" not in refused("match-ratio", "data/served.json")


@pytest.mark.usefixtures("folders")
def test_a_large_folder_is_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similar_paths, "MOST_NAMES", 3)
    Path("many").mkdir()
    for number in range(50):
        Path("many", f"image-{number}").touch()
    seen: list[Path] = []

    def fits(path: Path) -> bool:
        seen.append(path)
        return True

    did_you_mean_path("many/imag-7", fits)
    assert len(seen) <= 4
