"""What computed a run: versions, platform, commit."""

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from moeprobe import __version__
from moeprobe.results.sums import FORMAT

_PACKAGES = ("torch", "torchvision", "timm", "numpy", "scipy", "pandas", "pillow", "matplotlib")


def provenance() -> dict[str, Any]:
    """Return versions of what computes, the format of sums and tables, the platform, and the commit of a checkout."""
    versions = {"moeprobe": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        versions[package] = metadata.version(package)
    return {
        "versions": versions,
        "format": FORMAT,
        "platform": f"{platform.system()} {platform.machine()}",
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    """Return the commit of the checkout that contains the package; None outside of one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
