"""File formats of other programs, read and written with NumPy alone: no torch, no JAX, no pickle."""
