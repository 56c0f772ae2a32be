"""A probe is one file: dropped into the catalog, it is found wherever probes are named; nothing else is touched."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import moeprobe
from tests.commands import Trained

DOCS = Path(__file__).parents[2] / "docs"
TOY = '''"""The declaration of ``toy-sureness``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from moeprobe.probes.base import Agreement, Arg, Headline, Probe

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
_RUN = """
import json, sys
from typer.testing import CliRunner
from moeprobe.cli.app import app
for line in json.load(sys.stdin):
    result = CliRunner().invoke(app, line)
    print(json.dumps([result.exit_code, result.output]), flush=True)
sys.path.insert(0, sys.argv[1])
from writers import commands
print(json.dumps([0, "".join(commands.pages().values())]))
"""


def test_a_probe_is_one_file(tmp_path: Path, trained: Trained) -> None:
    package = tmp_path / "moeprobe"
    shutil.copytree(Path(moeprobe.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "probes/toy.py").write_text(TOY)
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
    process = subprocess.run(
        [sys.executable, "-c", _RUN, str(DOCS)],
        input=json.dumps([*commands.values()]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "200"},
        check=True,
    )
    said = dict(zip([*commands, "docs"], map(json.loads, process.stdout.splitlines()), strict=True))
    assert {name: code for name, (code, _) in said.items()} == dict.fromkeys(said, 0), said
    for name, texts in {
        "offered": ["toy-sureness", "Do toys make routers sure?"],
        "helped": ["--remark", "A remark that the request keeps.", "--limit"],
        "listed": ["toy-sureness", "Do toys make routers sure?"],
        "explained": ["Do toys make routers sure?"],
        "planned": ["24 images x 1 forward passes"],
        "run": [
            "Sureness among toys",
            "highest gate",
            "All that was measured: --full. Intervals are for one number at a time",
        ],
        "compared": ["highest gate (gate_highest, patches)"],
        "comparable": ["highest gate (gate_highest, patches)"],
        "docs": ["moeprobe toy-sureness checkpoints/demo-baseline", "`--remark`"],
    }.items():
        for text in texts:
            assert text in said[name][1], (name, text, said[name][1])
    request = json.loads((tmp_path / "run/run.json").read_text())
    assert (request["kind"], request["analyses"], request["remark"]) == (
        "toy-sureness",
        ["confidence"],
        "kept",
    )
    shown = (tmp_path / "page/report.html").read_text(encoding="utf-8")
    assert "Sureness among toys" in shown and "ighest gate" in shown
