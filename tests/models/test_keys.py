"""The list of configuration keys, and what a configuration comes to."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from moeprobe.models import config, config_files
from moeprobe.models.config import list_keys
from tests.commands import refused, run


def leaves(content: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, dict) and "name" not in value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def test_every_key_is_listed_with_what_it_means() -> None:
    keys = {key.name: key for key in list_keys()}
    assert all(key.meaning and key.type for key in keys.values()), "a key without a description"
    for name in config_files.names():
        for key in leaves(config.load(name).model_dump()):
            assert key in keys or any(one.startswith(f"{key}.") for one in keys), key
    assert keys["steps"].type == "integer | null > 0, ≤ 1000000000000"
    assert keys["loss"].type == "softmax | sigmoid" and keys["views_per_image"].default == "2"
    assert keys["name"].default == "required" and keys["amp"].default == "false"
    assert keys["optimizer.learning_rate"].default == "0.001"
    assert {"model.upcycle.file", "schedule.warmup_steps", "data.workers", "model.router", "view"} <= set(
        keys
    )


def test_the_command_lists_them() -> None:
    listed = json.loads(run("list", "keys", "--json").stdout)
    assert [one["name"] for one in listed] == [key.name for key in list_keys()]
    printed = run("list", "keys").stdout
    assert all(one["name"] in printed for one in listed)


def test_a_configuration_is_shown_and_nothing_is_trained() -> None:
    shown = run("train", "--config", "digits-prc", "--show", "seed=3", "objective.diagonal_weight=0.5")
    assert shown.exit_code == 0, shown.output
    content = yaml.safe_load(shown.stdout)
    wanted = config.load("digits-prc", ["seed=3", "objective.diagonal_weight=0.5"])
    assert config.parse(content) == wanted
    assert "Did you mean 'seed'?" in refused("train", "--config", "digits-prc", "--show", "sede=3")
