"""The committed reports; what makes them is in ``scripts``."""
