"""The shortest ends by which different paths are told apart."""

from collections.abc import Sequence
from pathlib import Path


def shortest_ends(paths: Sequence[Path], *, least: int = 1, each: bool = False) -> list[str]:
    """Return the shortest ends of different paths that are all different, e.g. ``a/run`` and ``b/run``.

    Args:
        paths: as long as it takes, so absolute ones. Two equal ones are returned whole.
        least: parts that an end has at the least.
        each: take of each path as little as tells it from the others; else of all as many parts as any takes.
    """
    depths = [_depth(path, paths, least) for path in paths]
    if not each:
        depths = [max(depths, default=least)] * len(paths)
    return ["/".join(path.parts[-depth:]) for path, depth in zip(paths, depths, strict=True)]


def _depth(path: Path, paths: Sequence[Path], least: int) -> int:
    depth = least
    while (
        depth < len(path.parts)
        and sum(path_compared.parts[-depth:] == path.parts[-depth:] for path_compared in paths) > 1
    ):
        depth += 1
    return depth
