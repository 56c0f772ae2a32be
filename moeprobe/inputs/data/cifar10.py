"""CIFAR-10 (A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009), as published.

``PATH/cifar-10-batches-bin`` (binary version) or ``PATH/cifar-10-batches-py`` (python version); PATH may be that
folder itself.
"""

from moeprobe.inputs.data.readers.cifar import Cifar, Version

_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))


class Cifar10(Cifar):
    """CIFAR-10: 32x32 photographs, ten classes; train 98 % and val 2 % of the training batches."""

    name = "cifar10"
    num_labels = 10
    versions = (
        Version(
            folder="cifar-10-batches-bin",
            train=tuple(f"{batch}.bin" for batch in _TRAIN),
            test=("test_batch.bin",),
            names="batches.meta.txt",
            num_label_bytes=1,
        ),
        Version(
            folder="cifar-10-batches-py",
            train=_TRAIN,
            test=("test_batch",),
            names="batches.meta",
            label_key=b"labels",
            names_key=b"label_names",
        ),
    )
