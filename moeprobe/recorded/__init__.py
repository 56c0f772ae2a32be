"""Questions to recordings, one a folder: what a server or ``trace record`` wrote, read without a model."""
