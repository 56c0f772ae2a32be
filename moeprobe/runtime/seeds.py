"""Randomness that belongs to (seed, purpose, image, draw), never to an order of execution.

A result must not depend on the batch size, the number of workers or the number of processes; so every random
number that concerns an image comes from a generator of that image's own. The same seed gives the same draws to
every checkpoint (common random numbers), so comparisons between checkpoints are paired.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def generator(seed: int, purpose: str, image_id: str = "", draw: int = 0) -> np.random.Generator:
    """Return the generator of one (seed, purpose, image, draw).

    Philox is counter-based: generators with different keys are independent streams, and making one is cheap.
    """
    identity = "\x1f".join((str(seed), purpose, image_id, str(draw)))
    key = hashlib.blake2b(identity.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key, dtype=np.uint64)))


def torch_seed(seed: int, purpose: str, draw: int = 0) -> int:
    """Return a seed for ``torch.manual_seed`` that belongs to (seed, purpose, draw)."""
    return int(generator(seed, purpose, draw=draw).integers(2**63 - 1))


def seed_torch(seed: int, device: "torch.device") -> None:
    """Seed torch for work on ``device``: ``torch.manual_seed``, without accelerators where the device is a CPU.

    Looking for accelerators takes 100 times as long as seeding.
    """
    import torch

    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Leave torch's global random state as it was: a model is initialized at random before its weights are read."""
    import torch

    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
