"""From the arguments of a function to the run of a probe."""

from collections.abc import Sequence
from typing import Any, TypeVar

from moeprobe.adapters.base import Models
from moeprobe.errors import UserError
from moeprobe.probes import registry
from moeprobe.probes.base import Probe
from moeprobe.probes.engine import run as engine
from moeprobe.probes.engine.options import Keywords, Options, combine
from moeprobe.runtime.progress import Progress

R = TypeVar("R")


def ask(
    probe: Probe[R],
    models: Models,
    data: str | None,
    options: Options | None,
    watcher: Progress | None,
    changes: Keywords,
) -> R:
    """Run a probe with its own defaults, where no options are given, and the changes applied."""
    options = combine(options, changes, defaults=probe.defaults)
    return engine.run(probe, models, data=data, options=options, watcher=watcher)


def attribution(attribute: str | None) -> dict[str, Any]:
    """Return the fields of a sweep that say whether, and with which gates, its changes are attributed."""
    return {} if attribute is None else {"attribute": True, "gates": attribute}


def choose_probe(
    kind: str | Probe[R], view: str | None, severities: Sequence[float] | None, attribute: str | None
) -> Probe[R]:
    """Return a probe by its command, with the fields that are given."""
    fields = {"view": view, "severities": severities} | attribution(attribute)
    if isinstance(kind, type):
        raise UserError(f"Name the probe, or give one with its parameters: {kind.__name__}(...).")
    if isinstance(kind, Probe):
        if set_twice := [name for name, value in fields.items() if value is not None]:
            raise UserError(
                f"{type(kind).__name__}(...) sets all of its fields; omit {', '.join(set_twice)}."
            )
        return kind
    return registry.named(kind).with_fields(fields)
