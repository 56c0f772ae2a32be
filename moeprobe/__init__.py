"""moeprobe: how far the routing decisions of a mixture-of-experts model can be trusted.

What a notebook calls lives in :mod:`moeprobe.api`. Importing ``moeprobe`` does not import torch.
"""

import sys
from typing import Any

__version__ = "0.1.0"


class _BeforeTorchvision:
    """Prepares torch for a torchvision that was built for another one, right before that is imported by anybody."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            from moeprobe.runtime.torchvision_compat import declare_operators

            declare_operators()


if "torchvision" not in sys.modules:
    sys.meta_path.insert(0, _BeforeTorchvision())
