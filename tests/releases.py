"""Which packages are installed in the release that constraints.txt pins: committed pictures and tables are of those."""

from importlib import metadata
from pathlib import Path

_PINS = Path(__file__).parents[1] / "constraints.txt"


def is_pinned(package: str) -> bool:
    """Whether the installed release of a package is the pinned one."""
    return f"{package}=={metadata.version(package)}" in _PINS.read_text(encoding="utf-8").splitlines()
