"""MNIST (Y. LeCun, C. Cortes and C. Burges): handwritten digits, as published."""

from moeprobe.inputs.data.readers import mnist


class Mnist(mnist.MnistFiles):
    """MNIST: 60,000 and 10,000 handwritten digits, 28x28; train 55,000, val 5,000, test 10,000."""

    name = "mnist"
    published = "MNIST"
    names = tuple("0123456789")
    flippable = False
