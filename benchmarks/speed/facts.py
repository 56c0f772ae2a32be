"""What a measurement was made on."""

import os
import platform
from pathlib import Path
from typing import Any

from moeprobe.runtime.processes import huge_pages_asked


def machine(device: str) -> dict[str, Any]:
    """Return the facts of this machine: processor, cores, threads that torch uses, its pages, the device, versions."""
    import torch

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "huge_pages": huge_pages_asked(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def load_average() -> float | None:
    """Return how many processes wanted to run in the last minute; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def sentence(facts: dict[str, Any]) -> str:
    """Return the facts on one line."""
    on = facts["processor"] if facts["device"] == "cpu" else f"{facts['device']} ({facts['processor']})"
    pages = ", huge pages asked for" if facts.get("huge_pages") else ""
    return f"{on}, {facts['cores']} cores, {facts['threads']} threads, torch {facts['torch']}{pages}"


CLOCKS = {"wall": "wall time", "cpu": "CPU time of all threads"}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
