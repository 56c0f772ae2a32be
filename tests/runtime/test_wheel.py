"""The wheel, outside of the repository: it holds all that training, probes and reports read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import tracked_files

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
STEPS = (
    "steps=3",
    "epochs=null",
    "batch_size=16",
    "schedule.warmup_steps=1",
    "evaluate_every=3",
    "data.workers=0",
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel is installed, without the packages that it needs: those are here."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("moeprobe-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


def moeprobe(installed: Path, folder: Path, *arguments: str) -> str:
    """What a command prints that runs far from the repository."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "moeprobe", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.promise
def test_a_wheel_trains_probes_and_reports(installed: Path, tmp_path: Path) -> None:
    where = "import moeprobe, pathlib; print(pathlib.Path(moeprobe.__file__).parent)"
    found = subprocess.run(
        [sys.executable, "-P", "-c", where],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(found.stdout.strip()) == installed / "moeprobe"

    def run(*arguments: str) -> str:
        return moeprobe(installed, tmp_path, *arguments)

    listed = run("list", "configs")
    assert "digits-prc" in listed and "vmoe-s32" in listed
    run("train", "--config", "digits-prc", "--folder", "trained", "--device", "cpu", *STEPS)
    run("noise-sweep", "trained", "--sigmas", "0,0.1", "--limit", "20", "--out", "sweep")
    run("overlay", "trained", "--count", "1", "--out", "overlay")
    run("report", "sweep", "--out", "page")
    assert json.loads((tmp_path / "sweep/table.json").read_text())["git_commit"] is None
    assert (
        "<svg" in (tmp_path / "page/report.html").read_text()
        or "data:image/png" in (tmp_path / "page/report.html").read_text()
    )


@pytest.mark.promise
def test_every_file_of_the_package_is_in_it(installed: Path) -> None:
    def named(folder: Path) -> set[str]:
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}

    tracked = tracked_files("moeprobe", "configs")
    wanted = {name if name.startswith("moeprobe/") else f"moeprobe/{name}" for name in tracked}
    assert wanted <= {f"moeprobe/{name}" for name in named(installed / "moeprobe")}
