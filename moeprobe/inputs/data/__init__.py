"""Data sets: one file per data set, each a subclass of ``base.ImageDataset``. Nothing here imports torch."""
