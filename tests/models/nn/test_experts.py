"""The experts' products on sorted rows: the same with and without torch's grouped kernel."""

import pytest
import torch
import torch.nn.functional as F

from moeprobe.models.nn.experts import MlpExperts

LOADS = torch.tensor([3, 0, 5, 1])


def rows_of_each(experts: MlpExperts, rows: torch.Tensor) -> torch.Tensor:
    """Reference: one expert after the other, through the padded form with one row at a time."""
    expert = torch.arange(len(LOADS)).repeat_interleave(LOADS)
    outputs = [
        experts(row.expand(len(LOADS), 1, -1))[number, 0] for row, number in zip(rows, expert, strict=True)
    ]
    return torch.stack(outputs)


@pytest.mark.parametrize("grouped", [True, False])
def test_sorted_rows_go_through_their_own_expert(grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's grouped kernel and with the loop that stands in for it (float64, autocast, MPS); gradients alike."""
    assert hasattr(F, "grouped_mm"), "the bound on torch in pyproject.toml is there for it"
    if not grouped:
        monkeypatch.setattr("moeprobe.models.nn.experts._has_grouped_kernel", lambda *_: False)
    torch.manual_seed(0)
    experts = MlpExperts(len(LOADS), 8, 16)
    rows = torch.randn(int(LOADS.sum()), 8, requires_grad=True)
    expected = rows_of_each(experts, rows)
    made = experts.ragged(rows, LOADS)
    torch.testing.assert_close(made, expected)
    wanted = torch.autograd.grad(expected.square().sum(), [rows, experts.fc1.weight, experts.fc2.bias])
    got = torch.autograd.grad(made.square().sum(), [rows, experts.fc1.weight, experts.fc2.bias])
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
