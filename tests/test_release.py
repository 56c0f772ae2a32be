"""What a release is used by: the action for GitHub, and the image of the Dockerfile."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).parents[1]


def _steps() -> list[dict[str, object]]:
    action = yaml.safe_load((PROJECT / "action.yml").read_text(encoding="utf-8"))
    return action["runs"]["steps"]


def _compare(folder: Path, **given: str) -> subprocess.CompletedProcess[str]:
    """Run the last step of the action as GitHub runs it."""
    script = str(_steps()[-1]["run"]).replace("python ", f"{sys.executable} ")
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | {"GITHUB_ACTION_PATH": str(PROJECT)} | given,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.promise
def test_the_action_writes_verdicts_to_the_summary(tmp_path: Path) -> None:
    """On the folder of a finished run of two models."""
    finished = tmp_path / "summary.md"
    run = _compare(
        PROJECT,
        GITHUB_STEP_SUMMARY=str(finished),
        REFERENCE="checkpoints/reference/digits-baseline-k2-seed0",
        CANDIDATE="checkpoints/reference/digits-prc-k2-seed0",
        FAIL_IF_WORSE="top1_match_kappa",
        OPTIONS=f"--probe match-ratio --limit 24 --looks 3 --history {tmp_path / 'looks.json'}",
    )
    assert run.returncode in (0, 3), run.stderr
    text = finished.read_text(encoding="utf-8")
    assert text.startswith("### Verdicts: digits-prc-k2-seed0 against digits-baseline-k2-seed0")
    assert re.search(
        r"^\| .+ \| (better|worse|same|no significant difference).* \| .+ \|$", text, re.MULTILINE
    )
    assert ("Worse in" in text) == (run.returncode == 3)
    assert "Look 1 of 3: intervals hold in all 3 at once." in text


@pytest.mark.slow
@pytest.mark.promise
def test_a_reference_is_never_an_option(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("open('marker', 'w').close()")
    run = _compare(
        tmp_path,
        REFERENCE=f"--plugins={tmp_path / 'code.py'}",
        CANDIDATE="b",
        FAIL_IF_WORSE="",
        OPTIONS="",
        PYTHONPATH=str(PROJECT),
    )
    assert run.returncode == 2
    # It is read as a pair of checkpoints, or as one, and never as an option.
    assert "There is no checkpoint '" in run.stderr
    assert not (tmp_path / "marker").exists()


def test_names_in_the_summary_are_shown_as_they_are() -> None:
    module = runpy.run_path(str(PROJECT / ".github" / "compare.py"))
    row: str = module["row"](
        ["![a](http://b)", "<img src=x>", "[c](d)", "e|f", "g\x1b[31mh", "i\n::error::j"]
    )
    assert row.count("\n") == 0 and "\x1b" not in row
    assert "<img" not in row and r"\|" in row
    assert "](" not in row.replace(r"\](", "")


@pytest.mark.slow
@pytest.mark.promise
def test_a_mistake_fails_the_action(tmp_path: Path) -> None:
    finished = tmp_path / "summary.md"
    run = subprocess.run(
        [sys.executable, str(PROJECT / ".github" / "compare.py"), "no/such", "folder"],
        cwd=PROJECT,
        env=os.environ | {"GITHUB_STEP_SUMMARY": str(finished)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert "Traceback" not in run.stderr
    assert "exited with 2" in finished.read_text(encoding="utf-8")


def test_the_image_copies_what_is_there() -> None:
    """Each file that the Dockerfile copies exists, and .dockerignore lets it in."""
    allowed = {
        line[1:]
        for line in (PROJECT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line[:1] == "!"
    }
    copied = [
        name
        for line in (PROJECT / "Dockerfile").read_text(encoding="utf-8").splitlines()
        if line.startswith("COPY")
        for name in line.split()[1:-1]
    ]
    assert set(copied) == allowed
    assert all((PROJECT / name).exists() for name in copied)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("docker") is None
    or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0,
    reason="Docker does not run here.",
)
def test_the_image_builds() -> None:
    subprocess.run(["docker", "build", "-t", "moeprobe-test", "."], cwd=PROJECT, check=True)
    subprocess.run(["docker", "run", "--rm", "moeprobe-test", "doctor"], check=True)
