"""Questions to recordings, one a folder: what a server or ``trace record`` wrote, read back.

Only ``mismatch`` needs a model, too. The plainest to copy is ``locality``.
"""
