"""A file dropped into a copy of the package, and what commands print there: a plug-in of the package is one file."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import moeprobe
from tests.commands import SCRIPT

DOCS = Path(__file__).parents[2] / "docs"
_RUN = f"""{SCRIPT}
import importlib
for line in json.load(sys.stdin):
    print(json.dumps(ended(line)[:2]), flush=True)
sys.path.insert(0, sys.argv[1])
writer = importlib.import_module(f"writers.{{sys.argv[2]}}")
print(json.dumps([0, "".join(writer.pages().values())]))
"""


@dataclass(frozen=True)
class Printed:
    """What commands printed, and the pages that were written last (``docs``): name -> exit code, text."""

    codes: dict[str, int]
    texts: dict[str, str]

    def holds(self, expected: Mapping[str, Sequence[str]]) -> None:
        """Assert that each of these printed all of its texts."""
        for name, parts in expected.items():
            for part in parts:
                assert part in self.texts[name], (name, part, self.texts[name])


def run_with(
    root: Path, file: str, content: str, commands: Mapping[str, Sequence[str]], *, writer: str
) -> Printed:
    """Run commands with a copy of the package that holds one more file.

    Args:
        root: where the copy goes, and where the commands run.
        file: the file in the package.
        content: what is in it.
        commands: name -> arguments.
        writer: the module of ``docs/writers`` whose pages are written last.
    """
    package = root / "moeprobe"
    shutil.copytree(Path(moeprobe.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / file).write_text(content)
    process = subprocess.run(
        [sys.executable, "-c", _RUN, str(DOCS), writer],
        input=json.dumps([*commands.values()]),
        capture_output=True,
        text=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root), "COLUMNS": "200"},
        check=True,
    )
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    printed = dict(zip([*commands, "docs"], lines, strict=True))
    return Printed(
        {name: code for name, (code, _) in printed.items()},
        {name: text for name, (_, text) in printed.items()},
    )
