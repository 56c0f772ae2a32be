"""EMNIST, balanced (G. Cohen, S. Afshar, J. Tapson and A. van Schaik, 2017): letters and digits, as published."""

import numpy as np
from numpy.typing import NDArray

from moeprobe.inputs.data.readers import mnist


class Emnist(mnist.MnistFiles):
    """EMNIST's balanced split: 47 classes of handwritten letters and digits, 28x28; 112,800 and 18,800 images.

    Lower-case letters that look like their capitals are one class with them, as published.
    """

    name = "emnist"
    published = "EMNIST"
    names = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")
    flippable = False

    @staticmethod
    def _upright(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return an image as one looks at it: the files hold columns where MNIST's hold rows."""
        return np.ascontiguousarray(pixels.T)

    def _stems(self, half: str) -> tuple[str, str]:
        return f"emnist-balanced-{half}-images-idx3-ubyte", f"emnist-balanced-{half}-labels-idx1-ubyte"

    def _download_keywords(self) -> dict[str, str]:
        return {"split": "balanced"}
