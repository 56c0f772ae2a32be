"""The kind of folder that a run has, and the request in it, which says that the folder is one."""

import dataclasses
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError
from moeprobe.runtime.files import (
    CLASSES,
    FINISHED,
    IMAGES,
    PACK,
    PACKED_IMAGES,
    PATCHES,
    PIXELS,
    REQUEST,
    SHARD,
    SHARDS,
    TOKENS,
    is_there,
    read_json,
)
from moeprobe.runtime.records import Family

# A run inside a run: that of a comparison, those of a trade-off's cells.
RUN = Family(
    "probe",
    is_ours=lambda path: read_request(path) is not None,  # others too may call a file run.json
    known=(
        REQUEST, FINISHED, SHARD, IMAGES, "table.csv", "comparison.csv", "paths.csv", "switches.csv",
        CLASSES, "places.csv", "colors.csv", "key_routes.csv", "class_distances.csv",
        PATCHES, TOKENS, PIXELS, "pairs.csv", "paper.csv", "seeds.csv", "load.csv", "tables.md", "plan.json",
        "verdicts.csv", "audit.html", "audit.md", "parts/*.parquet",
        "parts/*/*.parquet", "figures/*.png",
        "figures/*.svg", "figures/*.gif", "probe/", PACK, PACKED_IMAGES, "cells/*/cell.json", "cells/*/metrics.csv",
        "cells/*/*/", f"{SHARDS}/*/",
    ),
)  # fmt: skip
# Traces are called by their checkpoints and views.
_TRACES = dataclasses.replace(RUN, known=(*RUN.known, "*/*.parquet", "*/*/*.parquet"))


def family_of(path: Path) -> Family:
    """Return the kind of a run's folder: the files of traces have names of their own."""
    earlier = read_request(path)
    return _TRACES if earlier is not None and earlier["kind"] == "trace" else RUN


def read_request(path: Path) -> Any:
    """Return what an earlier run was asked; None where there was none.

    Raises:
        UserError: its file cannot be read, so that nobody knows.
    """
    if not is_there(path / REQUEST):
        return None
    try:
        request = read_json(path / REQUEST)
    except UserError as error:
        if isinstance(error.__cause__, OSError):  # the disk, and not what the file holds
            raise
        return None
    return request if isinstance(request, dict) and isinstance(request.get("kind"), str) else None
