"""Seeds of torch: the same numbers by the short way and by ``torch.manual_seed``."""

import torch

from moeprobe.runtime.seeds import random_state_kept, seed_torch


def test_a_cpu_draws_what_it_draws_after_manual_seed() -> None:
    with random_state_kept():
        torch.manual_seed(2**62 + 5)
        wanted = torch.randn(5), torch.rand(3), torch.randperm(7)
        seed_torch(2**62 + 5, torch.device("cpu"))
        drawn = torch.randn(5), torch.rand(3), torch.randperm(7)
    assert all(torch.equal(one, other) for one, other in zip(drawn, wanted, strict=True))
