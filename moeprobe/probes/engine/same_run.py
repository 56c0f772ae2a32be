"""Whether shards are parts of one run: asked the same, in as many parts, by the same version."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError
from moeprobe.probes.engine.shard import Shard
from moeprobe.runtime.files import display_path


def check_alike(
    first_path: Path, first: Mapping[str, Any], second_path: Path, second: Mapping[str, Any]
) -> None:
    """Raise ``UserError`` unless two shards are of one run."""
    of = [Shard.read(sidecar["shard"]).of for sidecar in (first, second)]
    if of[0] != of[1]:
        raise UserError(
            f"{display_path(first_path)} is one of {of[0]} shards and {display_path(second_path)} one of {of[1]}; "
            "merge the shards of one run."
        )
    requests = [
        sidecar["request"] | {"shard": "", **sidecar["asked"]["options"]} for sidecar in (first, second)
    ]
    check_same(str(display_path(first_path)), requests[0], str(display_path(second_path)), requests[1])
    versions = [sidecar.get("versions", {}).get("moeprobe") for sidecar in (first, second)]
    if versions[0] != versions[1]:
        raise UserError(
            f"{display_path(first_path)} was measured with moeprobe {versions[0]} and {display_path(second_path)} with "
            f"{versions[1]}; measure all shards with one version."
        )


def check_same(
    first_name: str, first: Mapping[str, Any], second_name: str, second: Mapping[str, Any]
) -> None:
    """Raise ``UserError`` where two requests differ; the names are what the sentence calls them."""
    first_values, second_values = _flat(first), _flat(second)
    for key in dict.fromkeys([*first_values, *second_values]):
        if first_values.get(key) != second_values.get(key):
            raise UserError(
                f"{first_name} and {second_name} do not ask the same: {key} is "
                f"{json.dumps(first_values.get(key))} in the first and "
                f"{json.dumps(second_values.get(key))} in the second; put together the shards of one run."
            )


def _flat(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with a key for each checkpoint, so that a sentence need not show them all."""
    checkpoints = request.get("checkpoints") or {}
    settings = {key: value for key, value in request.items() if key != "checkpoints"}
    return settings | {f"checkpoint {name}": provenance for name, provenance in checkpoints.items()}
