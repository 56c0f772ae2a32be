"""The adapter that opens another program's model, by the scheme of its name; networks of moeprobe stay unloaded."""

from typing import Any

from moeprobe.models.checkpoints.header import refuse_settings
from moeprobe.runtime.catalog import ADAPTERS, SCHEMES
from moeprobe.runtime.seeds import random_state_kept


def adapter_of(source: str) -> tuple[Any, str]:
    """Return the adapter of ``scheme:reference``, and the reference.

    Raises:
        UserError: settings follow it, and the adapter takes none.
    """
    scheme, _, reference = source.partition(":")
    adapter = ADAPTERS.get(SCHEMES.get(scheme, scheme))
    if not getattr(adapter, "takes_settings", False):
        refuse_settings(source)
    return adapter, reference


@random_state_kept()
def describe_unopened(source: str) -> dict[str, Any] | None:
    """Return what another program's model is, without its weights; None where its adapter has to open it.

    Raises:
        UserError: there is none, or it cannot be probed.
    """
    adapter, reference = adapter_of(source)
    describe = getattr(adapter, "describe_unopened", None)
    return None if describe is None else describe(reference)
