"""Configurations and sweeps that come with moeprobe, and all keys, as their schemas declare them."""

from moeprobe.models import config_files, grid, pipeline
from moeprobe.models.config import list_keys
from moeprobe.runtime.yaml import first_sentence
from writers.markdown import code, inline, page, table


def pages() -> dict[str, str]:
    """Return the page of configurations."""
    text = page(
        "Configurations",
        "configs and the schema of configurations",
        "`moeprobe train --config NAME` knows these; each file in `configs` says which values are the released ones "
        "and which are ours. [Training](../guide/training.md) explains them.",
        table(
            ["configuration", "what it is"],
            (
                [code(name), inline(first_sentence(config_files.path_of(name)))]
                for name in config_files.names()
            ),
        ),
        "## Pipelines\n\nTrainings one after the other, by the same command: [Training](../guide/training.md#pipelines)"
        ".",
        table(
            ["pipeline", "what it is"],
            ([code(name), inline(first_sentence(pipeline.path_of(name)))] for name in pipeline.names()),
        ),
        "## Sweeps of trainings\n\n`moeprobe tradeoff NAME` runs these: [What a router costs](../guide/tradeoff.md).",
        table(
            ["sweep", "what it is"],
            ([code(name), inline(first_sentence(grid.path_of(name)))] for name in grid.names()),
        ),
        "## Keys\n\nWritten `KEY=VALUE` on the command line, as sections in YAML. In a model, `null` is the named "
        "model's own value; `moeprobe train --config NAME --show` prints what they come to.",
        table(
            ["key", "type", "default", "meaning"],
            (
                [code(key.name), inline(key.type), code(key.default), inline(key.meaning)]
                for key in list_keys()
            ),
        ),
    )
    return {"reference/configurations.md": text}
