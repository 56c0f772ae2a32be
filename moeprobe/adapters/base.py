"""What an adapter of foreign models hands over."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moeprobe.routing import Traceable
from moeprobe.views._text import TextFraming
from moeprobe.views.base import Framing


@dataclass(frozen=True)
class Opened:
    """A foreign model made traceable, and what a probe must know of it.

    Attributes:
        name: what tables call it, unless two have one name.
        model: what is run.
        framing: how an image, or a text, is brought to its input.
        class_names: what its scores are about; empty if unknown.
        provenance: path, sha256, ...: for the sidecar.
    """

    name: str
    model: Traceable
    framing: Framing | TextFraming
    class_names: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
