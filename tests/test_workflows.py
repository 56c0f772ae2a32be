"""Makefile, workflows, hooks, .ci/run and the pages for contributors name what there is, and the same versions."""

import re
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = dict(re.findall(r"^([a-z][\w-]*):([^=#\n]*)", MAKEFILE, flags=re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPT = ROOT / ".ci" / "run"
PROSE = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "contributing").glob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]


def commands(job: dict[str, Any]) -> Iterator[str]:
    """What the steps of a job run, once for each choice of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    for values in product(*matrix.values()):
        for step in job["steps"]:
            command = step.get("run", "")
            for name, value in zip(matrix, values, strict=True):
                command = command.replace(f"${{{{ matrix.{name} }}}}", value)
            yield command


def pythons(job: dict[str, Any]) -> set[str]:
    versions = {
        version
        for step in job["steps"]
        for version in str(step.get("with", {}).get("python-version", "")).split()
        if re.fullmatch(r"[\d.]+", version)
    }
    return versions | set(job.get("strategy", {}).get("matrix", {}).get("python", []))


def named(text: str) -> set[str]:
    return set(re.findall(r"\bmake ([a-z][\w-]*)", text))


def test_there_is_something_to_compare() -> None:
    assert {path.stem for path in WORKFLOWS} == {"checks", "tests", "nightly", "docs", "release"}
    assert {"setup", "check", "test", "docs", "nightly"} <= set(TARGETS)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_there_is(path: Path) -> None:
    for job in jobs(path).values():
        assert named("\n".join(commands(job))) <= set(TARGETS)


@pytest.mark.parametrize("path", [SCRIPT, *PROSE], ids=lambda path: path.name)
def test_targets_that_are_named_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        # Elsewhere in prose, "make" is a verb.
        text = "\n".join(re.findall(r"`make [^`]*`|^make .*", text, flags=re.MULTILINE))
    assert named(text) <= set(TARGETS)


def test_every_target_is_phony() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)", MAKEFILE, flags=re.MULTILINE)
    assert set(phony.split()) == set(TARGETS)


def test_a_change_is_checked_and_tested() -> None:
    script = SCRIPT.read_text(encoding="utf-8")
    assert {"check", "test", "test-python"} <= named(script)
    (tests,) = re.findall(r'TESTS="(.*?)"', script, flags=re.DOTALL)
    paths = tests.replace("\\", "").split()
    assert paths and all((ROOT / path).exists() for path in paths)


def test_every_pull_request_runs_what_must_pass_before_it_lands() -> None:
    path = ROOT / ".github" / "workflows" / "tests.yml"
    # YAML 1.1 reads the key ``on`` as true.
    assert "pull_request" in yaml.safe_load(path.read_text(encoding="utf-8"))[True]
    runs = {command for job in jobs(path).values() for command in commands(job)}
    assert {".ci/run", "make test"} <= runs


def test_the_jobs_of_the_night_are_the_parts_of_make_nightly() -> None:
    matrix = jobs(ROOT / ".github/workflows/nightly.yml")["nightly"]["strategy"]["matrix"]
    assert matrix["target"] == TARGETS["nightly"].split()


def test_pythons_of_workflows_are_those_that_are_declared() -> None:
    classified = {
        line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if "Python :: " in line
    }
    allowed = SpecifierSet(PROJECT["project"]["requires-python"])
    tested = pythons(jobs(ROOT / ".github/workflows/tests.yml")["test"])
    assert {min(classified, key=version), max(classified, key=version)} <= tested
    for path in WORKFLOWS:
        for job in jobs(path).values():
            assert pythons(job) <= classified
    assert all(allowed.contains(one) for one in classified)


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_may_do_little(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for action in re.findall(r"uses: (.*)", text):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    assert "group" in workflow["concurrency"]
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())


def test_one_action_has_one_version() -> None:
    pins = {use for path in WORKFLOWS for use in re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))}
    assert len({pin.partition("@")[0] for pin in pins}) == len(pins)


def test_hooks_are_the_pinned_ruff() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (ruff,) = re.findall(r"^ruff==(.*)", pins, flags=re.MULTILINE)
    assert [one["rev"] for one in HOOKS if one["repo"].endswith("/ruff-pre-commit")] == [f"v{ruff}"]


def test_the_script_names_no_host() -> None:
    """Where packages come from is set up on the machine."""
    assert not re.search(r"https?://|\b[\w-]+\.(org|com|io|net)\b", SCRIPT.read_text(encoding="utf-8"))
