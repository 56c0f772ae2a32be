"""Colors of checkpoints and experts."""

from moeprobe.results.palette import COLORS, colors, expert_color


def test_colors_of_experts_differ() -> None:
    assert len({expert_color(expert) for expert in range(64)}) == 64


def test_checkpoints_have_colors_in_their_order_and_repeat_from_the_eighth_on() -> None:
    names = [f"c{number}" for number in range(9)]
    assert list(colors(names).items()) == list(zip(names, [*COLORS, *COLORS[:2]], strict=True))
