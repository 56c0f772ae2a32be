"""Monitors of a training's routing, for a plain loop, ``transformers`` and Lightning, and where they write.

What needs an optional program is imported with the first use of its name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from moeprobe.runtime.extras import missing_package

if TYPE_CHECKING:
    from moeprobe.integrations.huggingface import HuggingfaceMonitor
    from moeprobe.integrations.json_lines import JsonLines
    from moeprobe.integrations.lightning import LightningMonitor
    from moeprobe.integrations.monitor import RoutingMonitor
    from moeprobe.integrations.sinks import (
        Mlflow,
        RoutingRecord,
        Sink,
        TensorBoard,
        WeightsAndBiases,
    )

_MODULES = {
    "RoutingMonitor": "monitor",
    "HuggingfaceMonitor": "huggingface",
    "LightningMonitor": "lightning",
    "JsonLines": "json_lines",
} | dict.fromkeys(("Mlflow", "RoutingRecord", "Sink", "TensorBoard", "WeightsAndBiases"), "sinks")
# What a missing package is called as an extra of moeprobe.
_EXTRAS = {"transformers": "hf", "pytorch_lightning": "lightning"}
__all__ = [
    "HuggingfaceMonitor",
    "JsonLines",
    "LightningMonitor",
    "Mlflow",
    "RoutingMonitor",
    "RoutingRecord",
    "Sink",
    "TensorBoard",
    "WeightsAndBiases",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        raise missing_package(name, error.name, _EXTRAS[error.name]) from None
