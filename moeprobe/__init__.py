"""moeprobe: how far the routing decisions of a mixture-of-experts model can be trusted.

What a notebook calls lives in :mod:`moeprobe.api`. Importing ``moeprobe`` does not import torch.
"""

__version__ = "0.1.0"
