"""Print the lowest version that pyproject.toml allows of everything that the tests need, as pip takes them.

    python benchmarks/lower_bounds.py [--extra hf]

With ``--extra`` those of one extra alone: what an extra needs may exclude the lowest version of something else, so that
it is installed after the others. ``make lower-bounds`` runs the tests in an environment of these versions.
"""

import argparse
import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
# Transformers takes no safetensors as old as moeprobe does.
LATER = "hf"
# What builds pages, lints or checks types is no part of what runs.
_NOT_RUN = {"mkdocs", "mkdocs-material", "mypy", "ruff"}


def lowest(text: str, *, extra: str | None = None) -> list[str]:
    """Return ``name==version`` of the lower bounds in a pyproject.toml, sorted.

    Args:
        text: of the file.
        extra: of this extra alone; None = of all but ``LATER``.
    """
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"]
    if extra is not None:
        return sorted(_pin(one) for one in extras[extra])
    later = {_pin(one) for one in extras[LATER]}
    every = [*project["dependencies"], *(one for each in extras.values() for one in each)]
    pins = {_pin(one) for one in every}
    return sorted(pin for pin in pins - later if pin.partition("==")[0] not in _NOT_RUN)


def _pin(requirement: str) -> str:
    bound = re.fullmatch(r"([\w.-]+)>=([\w.]+)(?:,<[\w.]+)?", requirement)
    assert bound, f"{requirement} has no lower bound"
    return f"{bound[1]}=={bound[2]}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--extra")
    print(" ".join(lowest(PROJECT.read_text(encoding="utf-8"), extra=parser.parse_args().extra)))
