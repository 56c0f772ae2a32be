"""Whether shards are parts of one run: asked the same, in as many parts, by the same version."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError
from moeprobe.probes.engine.shard import Shard
from moeprobe.runtime.files import shown


def check_alike(one: Path, first: Mapping[str, Any], other: Path, second: Mapping[str, Any]) -> None:
    """Raise ``UserError`` unless two shards are of one run."""
    of = [Shard.read(about["shard"]).of for about in (first, second)]
    if of[0] != of[1]:
        raise UserError(
            f"{shown(one)} is one of {of[0]} shards and {shown(other)} one of {of[1]}; put together those of one run."
        )
    requests = [about["request"] | {"shard": "", **about["asked"]["options"]} for about in (first, second)]
    check_same(str(shown(one)), requests[0], str(shown(other)), requests[1])
    versions = [about.get("versions", {}).get("moeprobe") for about in (first, second)]
    if versions[0] != versions[1]:
        raise UserError(
            f"{shown(one)} was measured with moeprobe {versions[0]} and {shown(other)} with {versions[1]}; measure all "
            "shards with one version."
        )


def check_same(one: str, first: Mapping[str, Any], other: str, second: Mapping[str, Any]) -> None:
    """Raise ``UserError`` where two requests differ; ``one`` and ``other`` are what the sentence calls them."""
    asked, also = _flat(first), _flat(second)
    for key in dict.fromkeys([*asked, *also]):
        if asked.get(key) != also.get(key):
            raise UserError(
                f"{one} and {other} do not ask the same: {key} is {json.dumps(asked.get(key))} in the first and "
                f"{json.dumps(also.get(key))} in the second; put together the shards of one run."
            )


def _flat(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was asked with a key for each checkpoint, so that a sentence need not show them all."""
    checkpoints = asked.get("checkpoints") or {}
    rest = {key: value for key, value in asked.items() if key != "checkpoints"}
    return rest | {f"checkpoint {name}": about for name, about in checkpoints.items()}
