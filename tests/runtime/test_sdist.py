"""The source distribution: what a package index takes, and all that the package is built from."""

import subprocess
import sys
import tarfile
from pathlib import Path

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


def build(kind: str, source: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


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
