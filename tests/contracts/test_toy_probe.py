"""A probe is one file: dropped into the catalog, it is found wherever probes are named; nothing else is touched."""

import json
from pathlib import Path

import pytest

from tests.commands import Trained
from tests.contracts.dropped_in import run_with

TOY = '''"""The declaration of ``toy-sureness``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from moeprobe.declarations import Agreement, Arg, Headline, Probe

if TYPE_CHECKING:
    from moeprobe.results.folder import Result


@dataclass(frozen=True, kw_only=True)
class Toy(Probe["Result"]):
    """Do toys make routers sure?

    Example: `moeprobe toy-sureness checkpoints/demo-baseline --out reports/toy`
    """

    name: ClassVar[str] = "toy-sureness"
    title: ClassVar[str] = "Sureness among toys"
    analyses: ClassVar[tuple[str, ...]] = ("confidence",)
    headlines: ClassVar[tuple[Headline | Agreement, ...]] = (Headline("gate_highest"),)

    remark: Annotated[str, Arg("A remark that the request keeps.")] = "none"
'''


@pytest.mark.slow
@pytest.mark.promise
def test_a_probe_is_one_file(tmp_path: Path, trained: Trained) -> None:
    run, page = str(tmp_path / "run"), str(tmp_path / "page")
    checkpoints = [str(path.resolve()) for path in trained.values()]
    few = ("--limit", "24")
    commands = {
        "offered": ["--help"],
        "helped": ["toy-sureness", "--help"],
        "listed": ["list", "probes"],
        "explained": ["explain", "toy-sureness"],
        "planned": ["toy-sureness", *checkpoints, *few, "--dry-run"],
        "run": ["toy-sureness", *checkpoints, *few, "--remark", "kept", "--out", run],
        "compared": ["compare", *checkpoints, *few, "--probe", "toy-sureness"],
        "comparable": ["compare", run],
        "reported": ["report", run, "--out", page],
    }
    printed = run_with(tmp_path, "probes/toy.py", TOY, commands, writer="commands")
    assert not any(printed.codes.values()), printed
    printed.holds(
        {
            "offered": ["toy-sureness", "Do toys make routers sure?"],
            "helped": ["--remark", "A remark that the request keeps.", "--limit"],
            "listed": ["toy-sureness", "Do toys make routers sure?"],
            "explained": ["Do toys make routers sure?"],
            "planned": ["24 images x 1 forward passes"],
            "run": [
                "Sureness among toys",
                "highest gate",
                "All metrics: --full.",
            ],
            "compared": ["Highest gate (gate_highest, patches)"],
            "comparable": ["Highest gate (gate_highest, patches)"],
            "docs": ["moeprobe toy-sureness checkpoints/demo-baseline", "`--remark`"],
        }
    )
    request = json.loads((tmp_path / "run/run.json").read_text())
    assert (request["kind"], request["analyses"], request["remark"]) == (
        "toy-sureness",
        ["confidence"],
        "kept",
    )
    shown = (tmp_path / "page/report.html").read_text(encoding="utf-8")
    assert "Sureness among toys" in shown and "ighest gate" in shown
