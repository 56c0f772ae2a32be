"""What opening a model of ``transformers`` takes, by its configuration and the headers of its files."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from moeprobe.adapters.huggingface.files import load_outline
from moeprobe.adapters.huggingface.settings import num_experts_of, split_settings, top_k_of
from moeprobe.adapters.huggingface.unopened import weights_by_device
from moeprobe.errors import UserError
from moeprobe.routing.other_dtype import is_emulated
from moeprobe.runtime.device import choose_device
from moeprobe.runtime.placement import DISK, WeightPlacement, format_bytes

OK, NOTE, WRONG = "ok", "note", "wrong"
_MEMORY = Path("/proc/meminfo")
# What a container may use; the file says "max" where there is no limit.
_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Need:
    """One thing that opening takes.

    Attributes:
        level: OK, NOTE, or WRONG where the model cannot be opened here.
        subject: what it is about.
        text: a sentence without a full stop.
    """

    level: str
    subject: str
    text: str


def needs_of(reference: str, *, dtype: str, placement: WeightPlacement | None) -> list[Need]:
    """Return what it takes to open a model; one that cannot be opened has the reason alone."""
    try:
        return list(_needs(reference, dtype=dtype, placement=placement))
    except UserError as error:
        return [Need(WRONG, "model", error.sentence.rstrip("."))]


def _needs(reference: str, *, dtype: str, placement: WeightPlacement | None) -> Iterator[Need]:
    name, settings = split_settings(reference)
    model, _, stored, facts = load_outline(name, dtype=dtype, settings=settings, placement=placement)
    first_choice = choose_device("auto")
    experts = f"{num_experts_of(model.config)} experts, {top_k_of(model.config)} for each token"
    yield Need(
        OK,
        "model",
        f"{facts['class']}, {facts['parameters']:,} parameters, {len(facts['layers'])} layers with {experts}",
    )
    if stored is not None:
        disk, formats = format_bytes(stored.size), " and ".join(stored.dtypes)
        described = f"GGUF, {disk}" if settings.gguf else f"safetensors, {disk}, numbers in {formats}"
        yield Need(OK, "files", described)
    sizes = weights_by_device(model, device=first_choice, placement=placement)
    devices = {torch.device(device) for device in sizes if device != DISK}
    precision = str(model.dtype).removeprefix("torch.")
    if model.dtype == torch.bfloat16 and any(map(is_emulated, devices)):
        yield Need(
            NOTE,
            "precision",
            "bfloat16, for which this CPU has no instructions: passes take many times as long as with --dtype float32",
        )
    else:
        yield Need(OK, "precision", precision)
    for device, size in sizes.items():
        yield _memory(device, size)


def _memory(device: str, size: int) -> Need:
    """Return whether a device holds the weights; passes take some memory more."""
    weights = f"weights take {format_bytes(size)}"
    memory = None if device == DISK else memory_of(torch.device(device))
    if memory is None:
        return Need(OK, device, weights)
    free, total = memory
    text = f"{weights}; {format_bytes(free)} are free, of {format_bytes(total)}"
    if size <= free:
        return Need(OK, device, text)
    instead = "use --max-memory with --offload, or --dtype bfloat16"
    return Need(WRONG if size > total else NOTE, device, f"{text}: {instead}")


def memory_of(device: torch.device) -> tuple[int, int] | None:
    """Return the free and all bytes of a device; None where the system does not say it."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return free, total
    if device.type != "cpu" or not _MEMORY.is_file():
        return None
    lines = (line.split() for line in _MEMORY.read_text(encoding="ascii").splitlines())
    kilobytes = {words[0]: int(words[1]) for words in lines}
    free, total = 1024 * kilobytes["MemAvailable:"], os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _LIMIT.read_text(encoding="ascii").strip() if _LIMIT.is_file() else ""
    return (min(free, int(limit)), min(total, int(limit))) if limit.isdigit() else (free, total)
