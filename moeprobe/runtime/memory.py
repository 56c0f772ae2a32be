"""Whether an error says that memory ran out, how much a process has had at most, and on pages of what size."""

import os
import sys
from pathlib import Path

# That of the CPU's allocator, of MPS and of cuBLAS, which have different words for it; CUDA has a class of its own.
_SAID = ("can't allocate memory", "MPS backend out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
# What torch asks when it takes memory of the CPU for the first time.
HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"


def ask_for_huge_pages() -> None:
    """Have large tensors lie on huge pages, where Linux gives them to those who ask, unless the user decided already.

    To be called before torch takes memory. Gradients of many experts are made at every step; to get them in pages of
    4 KiB can take longer than to compute them.
    """
    os.environ.setdefault(HUGE_PAGES, "1")


def huge_pages_asked() -> bool:
    """Return whether torch asks for huge pages."""
    return os.environ.get(HUGE_PAGES) == "1"


def largest_resident() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():
        # What getrusage says on Linux begins with the memory of the process that started this one.
        return int(status.read_text(encoding="utf-8").split("VmHWM:")[1].split()[0]) / 1024
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / (2**20 if sys.platform == "darwin" else 1024)


def ran_out(error: BaseException) -> bool:
    """Return whether memory ran out, of the machine or of the device; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)
