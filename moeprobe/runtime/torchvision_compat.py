"""Let a CPU build of torch live with a torchvision whose C++ library was built against CUDA.

timm imports torchvision, whose only wheels are built against CUDA. With a CPU torch the C++ library does not
load, and ``import torchvision`` stops at operators that the library would have declared. Declaring the two that
are looked up at import time is enough for the transforms and for timm, which are all that moeprobe uses.

``declare_operators()`` must run before timm or torchvision is imported; ``moeprobe doctor`` reports whether it was
needed.
"""

from importlib.machinery import PathFinder
from pathlib import Path

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# A torch.library.Library undeclares its operators when it is collected, so it has to live as long as the process.
_declared: list[torch.library.Library] = []


def declare_operators() -> bool:
    """Declare the missing operators if torchvision's C++ library cannot be loaded.

    Returns:
        Whether that was needed (now or by an earlier call).
    """
    if _declared:
        return True
    if hasattr(torch.ops.torchvision, "nms") or _library_loads():
        return False
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)
    return True


def _library_loads() -> bool:
    """Whether torchvision's own C++ library loads with this torch; True where torchvision is not installed."""
    spec = PathFinder.find_spec("torchvision")  # not by way of moeprobe's own finder
    if spec is None or spec.origin is None:
        return True
    libraries = sorted(Path(spec.origin).parent.glob("_C.*"))
    if not libraries:
        return False
    try:
        torch.ops.load_library(str(libraries[0]))
    except OSError:
        return False
    return True
