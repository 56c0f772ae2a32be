"""Adapters: one model family per file, made traceable."""

from moeprobe._torchvision import mend as _mend

_mend()
