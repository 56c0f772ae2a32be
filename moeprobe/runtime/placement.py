"""Where the weights of a model lie that no single device holds: on several, in the machine's memory, on the disk."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError, option
from moeprobe.runtime.device import AUTO
from moeprobe.runtime.files import read_json

# As the library calls them; both spread a model evenly.
MAPS = ("auto", "balanced")
CPU, DISK = "cpu", "disk"
_UNITS = {"": 1, "B": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("KMGT", start=1)
    for ending, base in (("iB", 1024), ("B", 1000))
}
_SIZES = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3), ("B", 1))
_LIMIT = re.compile(r"(\d{1,4}|cpu|mps):(\d{1,15}(?:\.\d{1,9})?) ?([KMGT]?i?B?)")
_DEVICE = re.compile(r"(cuda:)?\d{1,4}|cpu|mps|disk")

DeviceMap = dict[str, int | str]


@dataclass(frozen=True)
class WeightPlacement:
    """Where weights are put.

    Attributes:
        device_map: "auto", "balanced", or a file of JSON; None = auto.
        max_memory: ``DEVICE:SIZE`` of each device that may be used, comma-separated; None = all there is.
        offload: folder for weights that no memory holds; None = there is none.

    Raises:
        UserError: a limit is no ``DEVICE:SIZE``, or a device has two of them.
    """

    device_map: str | None = None
    max_memory: str | None = None
    offload: Path | None = None

    def __post_init__(self) -> None:
        _ = self.limits  # raises

    @property
    def limits(self) -> dict[int | str, int]:
        """Bytes that may be used, by CUDA's number of a device, or "cpu" or "mps"."""
        limits: dict[int | str, int] = {}
        for text in () if self.max_memory is None else self.max_memory.split(","):
            match = _LIMIT.fullmatch(text.strip())
            if match is None or match[3] not in _UNITS:
                raise UserError(
                    f"{option('max_memory')} takes DEVICE:SIZE, comma-separated, such as 0:70GiB,cpu:100GiB; got "
                    f"{text!r}."
                )
            device = int(match[1]) if match[1].isdigit() else match[1]
            if device in limits:
                raise UserError(f"{option('max_memory')} names the device {device} twice; name it once.")
            limits[device] = int(float(match[2]) * _UNITS[match[3]])
        return limits

    def read_map(self) -> DeviceMap | None:
        """Return the devices of modules by their paths, as a file says; None where the library is to choose.

        Raises:
            UserError: there is no such file, or it is no such map.
        """
        if self.device_map is None or self.device_map in MAPS:
            return None
        path = Path(self.device_map)
        if self.max_memory:
            raise UserError(
                f"{path} says where each module is, so {option('max_memory')} has no effect; leave one of them out."
            )
        content: Any = read_json(path)
        if not isinstance(content, dict) or not content or not all(map(_is_device, content.values())):
            raise UserError(
                f"{path} is no map of devices; it takes an object of JSON such as "
                '{"model.embed_tokens": 0, "model.layers": "cpu", "lm_head": "disk"}.'
            )
        # "cuda:1" is device 1.
        return {name: _number_or_name(device) for name, device in content.items()}


def _is_device(value: Any) -> bool:
    return type(value) in (int, str) and _DEVICE.fullmatch(str(value)) is not None


def _number_or_name(device: int | str) -> int | str:
    name = str(device).removeprefix("cuda:")
    return int(name) if name.isdigit() else name


def make_placement(
    device: str, device_map: str | Path | None, max_memory: str | None, offload: str | Path | None
) -> WeightPlacement | None:
    """Return where weights are put; None where nothing says it, so that a model is on one device.

    Raises:
        UserError: a device is named as well, or a limit is none.
    """
    if (device_map, max_memory, offload) == (None, None, None):
        return None
    if device != AUTO:
        raise UserError(
            f"{option('device_map')}, {option('max_memory')} and {option('offload')} say where a model is; leave "
            f"{option('device', device)} out."
        )
    return WeightPlacement(
        None if device_map is None else str(device_map),
        max_memory,
        None if offload is None else Path(offload),
    )


def name_device(device: object) -> str:
    """Return what sentences call a device of a map: numbers are CUDA's."""
    return f"cuda:{device}" if isinstance(device, int) else str(device)


def format_bytes(size: int) -> str:
    """Return a size in words, e.g. ``13.8 GB``."""
    value, unit = next((size / base, unit) for unit, base in _SIZES if size >= base or base == 1)
    return f"{value:,.1f} {unit}" if unit != "B" else f"{size} B"
