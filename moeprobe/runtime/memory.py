"""Whether an error says that memory ran out: PyTorch and its devices have different words for it."""

import sys

# Of the CPU's allocator, of MPS and of cuBLAS; CUDA has a class of its own.
_SAID = ("can't allocate memory", "MPS backend out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def ran_out(error: BaseException) -> bool:
    """Return whether memory ran out, of the machine or of the device; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)
