"""``python -m moeprobe``."""

from moeprobe.cli import main

main()
