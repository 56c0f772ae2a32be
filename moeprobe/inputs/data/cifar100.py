"""CIFAR-100 with its fine labels, and the coarse ones as superclasses.

Source: A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.

``PATH/cifar-100-binary`` (binary version) or ``PATH/cifar-100-python`` (python version), as published; PATH may be
that folder itself.
"""

from moeprobe.inputs.data.readers.cifar import Cifar, Version


class Cifar100(Cifar):
    """CIFAR-100: 32x32 photographs, a hundred classes; train 98 % and val 2 % of the training images."""

    name = "cifar100"
    num_labels = 100
    versions = (
        Version(
            folder="cifar-100-binary",
            train=("train.bin",),
            test=("test.bin",),
            names="fine_label_names.txt",
            num_label_bytes=2,  # coarse, fine
        ),
        Version(
            folder="cifar-100-python",
            train=("train",),
            test=("test",),
            names="meta",
            label_key=b"fine_labels",
            group_key=b"coarse_labels",
            names_key=b"fine_label_names",
        ),
    )
