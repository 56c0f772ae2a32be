"""``moeprobe bench``: how fast moeprobe is, against what else there is and against what cannot be beaten.

A part (``parts/``, one file each) yields races; ``measure`` runs the contestants of a race in turn, after it has
compared what they compute; ``table`` and ``run`` keep what was found.
"""
