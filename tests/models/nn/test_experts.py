"""The experts' products on sorted rows: the same with and without torch's grouped kernel."""

import pytest
import torch
import torch.nn.functional as F

from moeprobe.models.nn.experts import SMALL_SHARE, MlpExperts

LOADS = torch.tensor([3, 0, 5, 1])


class PaddedFirst(MlpExperts):
    """Experts as they run on other devices than a CPU."""

    def prefer_sorted(self, rows: torch.Tensor) -> bool:
        """No."""
        return False


def rows_of_each(experts: MlpExperts, rows: torch.Tensor) -> torch.Tensor:
    """Reference: one expert after the other, through the padded form with one row at a time."""
    expert = torch.arange(len(LOADS)).repeat_interleave(LOADS)
    outputs = [
        experts(row.expand(len(LOADS), 1, -1))[number, 0] for row, number in zip(rows, expert, strict=True)
    ]
    return torch.stack(outputs)


# Largest difference of paths that compute the same, relative to the largest value.
TOLERANCE = 5e-7


def padded_by_autograd(experts: MlpExperts, rows: torch.Tensor, loads: tuple[int, ...]) -> torch.Tensor:
    """Reference: every expert on as many rows, of which its own are kept."""
    depth = max(loads)
    place = torch.cat([depth * number + torch.arange(load) for number, load in enumerate(loads)])
    buffer = torch.zeros(len(loads) * depth, rows.shape[1]).index_copy(0, place, rows)
    return experts.run_padded(buffer.view(len(loads), depth, -1)).flatten(0, 1)[place]


@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("spare_rows", [0, 100])
@pytest.mark.parametrize("loads", [(3, 0, 5, 1), (4, 4, 3, 4), (0, 0, 2, 0)])
def test_experts_go_one_after_the_other_or_padded(
    loads: tuple[int, ...], spare_rows: int, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs and all gradients are those of the products that autograd follows."""
    monkeypatch.setattr("moeprobe.models.nn.experts.SPARE_ROWS", spare_rows)
    monkeypatch.setattr("moeprobe.models.nn.experts.SPARE_NUMBERS", 0)
    monkeypatch.setattr("moeprobe.models.nn.experts.LARGE_MATRIX", 0 if large else 1000)
    monkeypatch.setattr("moeprobe.models.nn.experts.SMALL_SHARE", 0)
    torch.manual_seed(0)
    experts = MlpExperts(len(loads), 8, 16)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    rows, upstream = torch.randn(sum(loads), 8, requires_grad=True), torch.randn(sum(loads), 8)
    assert experts.prefer_sorted(rows)
    found = []
    for output in (padded_by_autograd(experts, rows, loads), experts(rows, torch.tensor(loads))):
        found.append([output, *torch.autograd.grad(output, [rows, *experts.parameters()], upstream)])
    for expected, actual in zip(*found, strict=True):
        assert (actual - expected).abs().max() <= TOLERANCE * expected.abs().max()
    torch.testing.assert_close(experts(rows.detach(), torch.tensor(loads)), found[1][0])


def test_small_experts_go_one_after_the_other_if_each_has_many_rows() -> None:
    experts = MlpExperts(4, 8, 16)
    assert experts.prefer_sorted(torch.randn(4 * SMALL_SHARE, 8))
    assert not experts.prefer_sorted(torch.randn(4 * SMALL_SHARE - 1, 8))


@pytest.mark.parametrize("large_matrix", [0, 1000])
def test_frozen_experts_pass_gradients_on(large_matrix: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeprobe.models.nn.experts.LARGE_MATRIX", large_matrix)
    monkeypatch.setattr("moeprobe.models.nn.experts.SMALL_SHARE", 0)
    monkeypatch.setattr("moeprobe.models.nn.experts.SPARE_ROWS", 0)
    monkeypatch.setattr("moeprobe.models.nn.experts.SPARE_NUMBERS", 0)
    experts, rows = MlpExperts(4, 8, 16).requires_grad_(False), torch.randn(9, 8, requires_grad=True)
    experts(rows, LOADS).sum().backward()
    assert rows.grad is not None and rows.grad.abs().min() > 0
    assert all(parameter.grad is None for parameter in experts.parameters())


@pytest.mark.parametrize("grouped", [True, False])
def test_sorted_rows_go_through_their_own_expert(grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's grouped kernel and with the loop that stands in for it (float64, autocast, MPS); gradients alike."""
    assert hasattr(F, "grouped_mm"), "the bound on torch in pyproject.toml is there for it"
    if not grouped:
        monkeypatch.setattr("moeprobe.models.nn.experts.has_grouped_kernel", lambda *_: False)
    torch.manual_seed(0)
    experts = PaddedFirst(len(LOADS), 8, 16)
    rows = torch.randn(int(LOADS.sum()), 8, requires_grad=True)
    expected = rows_of_each(experts, rows)
    made = experts.run_ragged(rows, LOADS)
    torch.testing.assert_close(made, expected)
    wanted = torch.autograd.grad(expected.square().sum(), [rows, experts.fc1.weight, experts.fc2.bias])
    got = torch.autograd.grad(made.square().sum(), [rows, experts.fc1.weight, experts.fc2.bias])
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
