"""The pages of the documentation, their parts, and the commands that they name."""

import re
import shlex
from pathlib import Path
from typing import Any

from typer.main import get_command

from moeprobe.cli.app import app

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXT = {page: page.read_text(encoding="utf-8") for page in PAGES}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text(name: str) -> str:
    """``guide/python.md`` -> what it says."""
    return TEXT[ROOT / "docs" / name]


def blocks(language: str, page: Path | None = None) -> list[str]:
    """Code blocks of a page, or of all pages."""
    texts = [TEXT[page]] if page else list(TEXT.values())
    return [block for one in texts for block in re.findall(rf"```{language}\n(.*?)```", one, flags=re.DOTALL)]


def flat(commands: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Commands by what is typed; those of a group by the group's name and theirs."""
    found: dict[str, Any] = {}
    for name, command in commands.items():
        inner = getattr(command, "commands", None)
        found |= {f"{above}{name}": command} if inner is None else flat(inner, f"{above}{name} ")
    return found


COMMANDS = flat(get_command(app).commands)  # type: ignore[attr-defined]


def documented_commands(folder: str = "") -> list[list[str]]:
    """Commands in the code blocks of all pages, or of a folder of docs."""
    pages = [page for page in PAGES if (ROOT / "docs" / folder) in page.parents] if folder else [None]
    lines = [line for page in pages for block in blocks("bash", page) for line in block.splitlines()]
    commands = dict.fromkeys(line for line in lines if line.startswith("moeprobe "))
    return [split(shlex.split(line, comments=True)[1:]) for line in commands]


def split(words: list[str]) -> list[str]:
    """The command as one word, and its arguments."""
    size = 1 if words[0] in COMMANDS else 2
    return [" ".join(words[:size]), *words[size:]]
