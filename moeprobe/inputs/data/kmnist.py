"""Kuzushiji-MNIST (T. Clanuwat et al., "Deep learning for classical Japanese literature", 2018), as published."""

from moeprobe.inputs.data.readers import mnist


class Kmnist(mnist.MnistFiles):
    """Kuzushiji-MNIST: 60,000 and 10,000 cursive characters, 28x28; train 55,000, val 5,000, test 10,000."""

    name = "kmnist"
    published = "KMNIST"
    names = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
    flippable = False
