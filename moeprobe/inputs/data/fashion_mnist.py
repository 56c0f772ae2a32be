"""Fashion-MNIST (H. Xiao, K. Rasul and R. Vollgraf, 2017; MIT license): photographs of articles of clothing."""

from pathlib import Path

from moeprobe.inputs.data.readers import mnist


class FashionMnist(mnist.MnistFiles):
    """Fashion-MNIST: 70,000 gray photographs of clothing, 28x28, ten classes; train 55,000, val 5,000, test 10,000.

    On Debian and its kin the package ``dataset-fashion-mnist`` has the published files; ``fashion_mnist`` finds them.
    """

    name = "fashion_mnist"
    published = "FashionMNIST"
    names = (
        "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
    )  # fmt: skip
    packaged = (Path("/usr/share/datasets/fashion-mnist"),)
    how = "install it (on Debian: apt install dataset-fashion-mnist)"
