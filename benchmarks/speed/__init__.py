"""``make bench``: how fast moeprobe is, compared with other ways to do the same work, and with limits.

A part (``parts/``, one file each) yields races; ``measure`` runs the contestants of a race in turn, after it has
compared what they compute; ``table`` and ``run`` keep what was found.
"""
