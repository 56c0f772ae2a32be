"""Which patches of an overlay are compared, and which changed."""

import numpy as np

from moeprobe.inputs.geometry import Correspondence
from moeprobe.probes.overlay.record import overlay
from tests.routing.routings import routing


def test_changed_patches_by_a_loop() -> None:
    clean, noisy = routing(2, seed=1, num_experts=3), routing(2, seed=2, num_experts=3)
    reference = np.array([[0, 1, 2, 3, 4, 5], [5, 1, 0, -1, 2, 3]])
    view = np.array([[0, 1, 2, 3, 4, 5], [3, 3, 4, -1, 0, 0]])
    pairs = Correspondence(reference, view, np.array([False, False]))
    for position in range(2):
        pixels = np.zeros((3, 16, 24), np.float32), np.ones((3, 16, 24), np.float32)
        found = overlay(
            image_id="x",
            checkpoint="a",
            layer="blocks.1",
            severity=0.2,
            pixels=pixels,
            routing=(clean, noisy),
            pairs=pairs,
            position=position,
        )
        # The first of the clean patches that meet in a perturbed one.
        partner: dict[int, int] = {}
        for one, two in sorted(zip(reference[position].tolist(), view[position].tolist(), strict=True)):
            if one >= 0:
                partner.setdefault(two, one)
        # The first token is the prefix.
        changed = {
            two
            for two, one in partner.items()
            if clean.selected[position, one + 1, 0] != noisy.selected[position, two + 1, 0]
        }
        assert {
            int(two): int(found.clean_patch.ravel()[two]) for two in np.flatnonzero(found.compared)
        } == partner
        assert found.meeting == (0, 2)[position]
        assert set(np.flatnonzero(found.changed)) == changed
        other_sets = {
            two
            for two, one in partner.items()
            if {*clean.selected[position, one + 1].tolist()} != {*noisy.selected[position, two + 1].tolist()}
        }
        assert found.has_sets and set(np.flatnonzero(found.changed_set)) == other_sets
        assert set(np.flatnonzero(found.changed_order)) == changed - other_sets
        assert found.clean.shape == (16, 24, 3) and found.clean_expert.shape == (2, 3)
        assert found.clean_expert.ravel().tolist() == clean.selected[position, 1:, 0].tolist()


def test_nothing_compared_is_nothing_changed() -> None:
    none = np.full((1, 6), -1)
    found = overlay(
        image_id="x",
        checkpoint="a",
        layer="blocks.1",
        severity=0.2,
        pixels=(np.zeros((3, 16, 24), np.float32),) * 2,
        routing=(routing(1), routing(1)),
        pairs=Correspondence(none, none, np.array([False])),
        position=0,
    )
    assert not found.compared.any() and not found.changed.any()
