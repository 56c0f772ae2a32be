"""The source distribution: what a package index takes, and all that the package is built from."""

import os
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.sources import tracked_files

ROOT = Path(__file__).parents[2]
CONTENT = {
    "CHANGELOG.md",
    "LICENSE",
    "PKG-INFO",
    "README.md",
    "configs",
    "moeprobe",
    "pyproject.toml",
    "tests",
}
# Package indexes take 100 MB. Reports and checkpoints would make it twice as much, and nothing of them is read.
LARGEST = 10 * 2**20


def build(kind: str, source: Path, folder: Path, *, umask: int = -1) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, umask=umask)
    (built,) = folder.iterdir()
    return built


def clone(folder: Path, *, umask: int, time: int) -> Path:
    """Clone what packages are built from, with its own times."""
    source = ["git", "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(folder)]
    subprocess.run(source, check=True, capture_output=True)
    for words in (["sparse-checkout", "set", "moeprobe", "configs", "tests"], ["checkout", "--quiet"]):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, umask=umask)
    for path in folder.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            os.utime(path, (time, time))
    return folder


@pytest.mark.slow
@pytest.mark.promise
def test_the_source_distribution_is_small_and_builds_the_wheel(tmp_path: Path) -> None:
    archive = build("sdist", ROOT, tmp_path / "dist")
    assert archive.stat().st_size < LARGEST
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("moeprobe-*")
    assert {path.name for path in unpacked.iterdir()} - {".gitignore"} == CONTENT
    wheels = [
        build("wheel", source, tmp_path / name) for source, name in ((ROOT, "here"), (unpacked, "there"))
    ]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [None, "1750000000"], ids=["usual", "SOURCE_DATE_EPOCH"])
def test_two_clones_give_the_same_bytes(
    epoch: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    if epoch is not None:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    here = clone(tmp_path / "here", umask=0o022, time=10**9)
    there = clone(tmp_path / "a longer" / "way there", umask=0o077, time=2 * 10**9)
    for kind in ("wheel", "sdist"):
        first = build(kind, here, tmp_path / f"{kind} of here", umask=0o022)
        second = build(kind, there, tmp_path / f"{kind} of there", umask=0o077)
        assert first.name == second.name
        assert first.read_bytes() == second.read_bytes(), kind
    tracked = tracked_files("moeprobe", "configs", root=here)
    with zipfile.ZipFile(next((tmp_path / "wheel of here").iterdir())) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == {
        name.replace("configs/", "moeprobe/configs/", name.startswith("configs/")) for name in tracked
    }


def test_no_package_that_is_needed_has_the_gpl() -> None:
    waiting, licenses = [Requirement("moeprobe")], dict[str, list[str]]()
    while waiting:
        needed = waiting.pop()
        if needed.name in licenses or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        package = metadata.distribution(needed.name)
        about = package.metadata
        # Of a license in full the first line: further down, texts speak of other licenses.
        [license_text, *_] = about.get_all("License") or [""]
        words = [*(about.get_all("License-Expression") or []), license_text.strip().partition("\n")[0]]
        licenses[needed.name] = words + (about.get_all("Classifier") or [])
        waiting += map(Requirement, package.requires or [])
    assert len(licenses) > 20
    assert not {name for name, words in licenses.items() if "GPL" in " ".join(words)}
