"""Models of ``transformers`` whose weights lie on several devices, or on the disk until a layer runs (``accelerate``).

A layer whose weights are elsewhere has parameters without memory (torch's device ``meta``). A hook around its
``forward`` puts them into place and takes them away again. So they are read in ``in_reach`` alone, and never changed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moeprobe.errors import UserError, option
from moeprobe.runtime import folders
from moeprobe.runtime.extras import missing_package
from moeprobe.runtime.files import Scratch
from moeprobe.runtime.placement import CPU, DISK, DeviceMap, WeightPlacement, name_device


def choose_map(placement: WeightPlacement, outline: Any, dtype: torch.dtype) -> DeviceMap:
    """Return the devices of a model's modules by their paths.

    Args:
        placement: the user's request.
        outline: the model without memory (``outline.build_outline``).
        dtype: of the weights when they are loaded.

    Raises:
        UserError: a device does not exist, a file does not fit the model, or the disk is needed and no folder named.
    """
    try:
        import accelerate
    except ModuleNotFoundError:
        raise missing_package(option("device_map"), "accelerate", "hf") from None
    limits = placement.limits
    _check_devices(limits)
    device_map = placement.read_map()
    if device_map is None:
        classes = list(outline._no_split_modules or ())
        keywords = {"no_split_module_classes": classes, "dtype": dtype}
        outline.tie_weights()
        memory = accelerate.utils.get_balanced_memory(outline, limits or None, **keywords)
        device_map = dict(accelerate.infer_auto_device_map(outline, memory, **keywords))
    else:
        _check_devices(dict.fromkeys(device_map.values()))
        _check_names(device_map, outline, Path(str(placement.device_map)))
        # Without parameters of its own, such as of positions, a module may have no device: it goes where others are.
        usual = next((device for device in device_map.values() if device != DISK), CPU)
        device_map = _without_nesting(device_map, outline, "", usual)
    if DISK in device_map.values() and placement.offload is None:
        raise UserError(
            f"The memory that may be used does not hold the model; name a folder for the rest, e.g. "
            f"{option('offload', 'offload')}, or allow more ({option('max_memory')})."
        )
    return _keep_one_in_memory(device_map, outline)


def bytes_by_device(device_map: DeviceMap, outline: nn.Module, dtype: torch.dtype) -> dict[int | str, int]:
    """Return how many bytes of parameters each device has that has any."""
    sizes = dict.fromkeys(device_map.values(), 0)
    for name, parameter in outline.named_parameters():
        sizes[device_map[_key_of(name, device_map)]] += parameter.numel() * dtype.itemsize
    return {device: size for device, size in sizes.items() if size}


def _check_devices(devices: Mapping[int | str, Any]) -> None:
    for device in devices:
        is_missing = isinstance(device, int) and device >= torch.cuda.device_count()
        if is_missing or (device == "mps" and not torch.backends.mps.is_available()):
            raise UserError(
                f"There is no device {device} here: this PyTorch sees {torch.cuda.device_count()} of CUDA. Name "
                "others, or run moeprobe doctor."
            )


def _check_names(device_map: DeviceMap, outline: nn.Module, path: Path) -> None:
    """Raise ``UserError`` unless a map names modules of the model, and each parameter has a device."""
    modules = {name for name, _ in (*outline.named_modules(), *outline.named_parameters())}
    unknown = [name for name in device_map if name not in modules]
    if unknown:
        raise UserError(f"The model has no module {unknown[0]!r}, which {path} names.")
    for name, _ in outline.named_parameters():
        if _key_of(name, device_map) not in device_map:
            raise UserError(f'{path} gives {name} no device; the key "" is for all that is not named.')


def _without_nesting(device_map: DeviceMap, module: nn.Module, path: str, device: int | str) -> DeviceMap:
    """Return the same devices by keys of which none is inside of another: the library moves all that is inside."""
    device = device_map.get(path, device)
    inside = f"{path}." if path else ""
    if not any(key.startswith(inside) and key != path for key in device_map):
        return {path: device}
    flat: DeviceMap = {}
    for name, child in module.named_children():
        flat |= _without_nesting(device_map, child, f"{inside}{name}", device)
    for name, _ in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        flat[f"{inside}{name}"] = device_map.get(f"{inside}{name}", device)
    return flat


def _keep_one_in_memory(device_map: DeviceMap, outline: nn.Module) -> DeviceMap:
    """Return the same devices; where all are the disk, a module without parameters is in memory.

    Releases of accelerate before 1.15 refuse to send a whole model to the disk.
    """
    if set(device_map.values()) != {DISK}:
        return device_map
    empty = [name for name, module in outline.named_modules() if next(module.parameters(), None) is None]
    if not empty:
        return device_map
    # The outermost one, such as the positions of all layers, so that blocks stay whole.
    outermost = min(empty, key=lambda name: name.count("."))
    return _without_nesting(device_map | {outermost: CPU}, outline, "", DISK)


def _key_of(name: str, device_map: DeviceMap) -> str:
    """Return the longest key that a parameter's path begins with."""
    parts = name.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((prefix for prefix in prefixes if prefix in device_map), "")


def input_device(embedding: nn.Module) -> torch.device:
    """Return the device that token ids are sent to: where the embedding is computed."""
    weight: Any = embedding.weight
    if not weight.is_meta:
        return weight.device
    hook: Any = getattr(embedding, "_hf_hook", None)
    devices = [getattr(each, "execution_device", None) for each in getattr(hook, "hooks", [hook])]
    return torch.device(next((device for device in devices if device is not None), CPU))


def has_offloaded(module: nn.Module) -> bool:
    """Whether parameters of a module have no memory but while it runs."""
    return any(parameter.is_meta for parameter in module.parameters())


@contextmanager
def in_reach(module: nn.Module) -> Iterator[None]:
    """Let the parameters of a module itself be there inside the block, to be read."""
    if not has_offloaded(module):
        yield
        return
    from accelerate.utils import align_module_device

    with align_module_device(module):
        yield


def put(model: Any, device: torch.device) -> Any:
    """Return a model, all of it on a device."""
    return model.to(device)


def keep(model: Any) -> Any:
    """Return a model as it is: its map has put it into place."""
    return model


def make_folder(placement: WeightPlacement | None) -> Scratch | None:
    """Return a folder for the weights of one model in the folder that was named; it goes with the model.

    Raises:
        UserError: the folder cannot be made.
    """
    if placement is None or placement.offload is None:
        return None
    folders.make_folder(placement.offload)
    return Scratch(placement.offload)


def describe_map(model: Any) -> dict[str, str]:
    """Return the devices of a model's modules, as the library put them; "" is the whole."""
    device_map = getattr(model, "hf_device_map", None) or {"": model.device}
    return {name: name_device(device) for name, device in device_map.items()}
