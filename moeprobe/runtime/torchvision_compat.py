"""Import torchvision beside a torch that it was not built for.

The only wheels of torchvision are built for CUDA. Beside a torch for the CPU its C++ library does not load, and
``import torchvision`` stops at operators that this library would have declared. Declaring the two that are looked up
at import time is enough for the transforms and for timm, which are all that moeprobe uses.

They must be declared after the import has failed, never before: a library that does load declares them itself, and a
second declaration ends the process.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

_ERROR = "operator torchvision::nms does not exist"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# A torch.library.Library undeclares its operators when it is collected, so it has to live as long as the process.
_declared: list[Any] = []


def import_with_operators(name: str) -> ModuleType:
    """Import a module that is torchvision, or may import it; declare the operators only where that fails for them.

    Raises:
        Exception: whatever importing the module raises otherwise.
    """
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if _declared or _ERROR not in str(error):
            raise
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)
    # Of what was imported before the failure, no module may be left that knows only a part of the package.
    for module in [module for module in sys.modules if module.partition(".")[0] == "torchvision"]:
        del sys.modules[module]
    return importlib.import_module(name)


def operators_were_declared() -> bool:
    """Return whether torchvision lacked its operators when it was imported here."""
    return bool(_declared)
