"""What is seen of a training: the bar, the lines where there is none, and the picture."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from moeprobe.cli.front.training_progress import Live
from moeprobe.models.training.reporting import Report
from moeprobe.results.figures.curves import draw_training
from tests.models.training.tiny import trainer

VALUES = {
    "loss": 1.684, "main_loss": 1.63, "accuracy": 0.4219, "prc_diagonal": 0.81, "prc_offdiagonal": 0.0199,
    "importance": 0.1, "load": 0.02, "learning_rate": 1e-3,
}  # fmt: skip


def shown(width: int, *, name: str = "fashion-prc") -> list[str]:
    """The lines that a terminal of this width shows before a first report, and after it."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    live = Live(name, console=console)
    lines = []
    for report in (None, Report(30, 210, VALUES, images_per_second=55.0, seconds_left=200.0)):
        if report is not None:
            live.show(report)
        with console.capture() as capture:
            console.print(live._progress.get_renderable())
        text = capture.get()
        assert text.count("\n") == 1, text
        lines.append(text)
    return lines


@pytest.mark.parametrize("width", [56, 80, 100, 200])
def test_a_narrow_window_keeps_name_step_bar_and_time(width: int) -> None:
    before, after = shown(width)
    assert "fashion-prc" in before and "None" not in before and "starting" in before
    for part in ("fashion-prc", "30/210", "━", "-:--:--"):
        assert part in after, after
    assert ("loss 1.68" in after) == (width >= 80)
    assert ("learning rate 0.001" in after) == (width == 200)


def test_a_long_name_is_cut_and_nothing_else() -> None:
    _, after = shown(80, name="a-very-long-name-of-a-training-run-" * 3)
    assert "a-very-long-name-of-a-t…" in after and "30/210" in after and "-:--:--" in after


def test_without_a_terminal_there_is_a_line_per_evaluation(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=40)
    with Live("tiny", console=console) as live:
        trainer(tmp_path).run(live.show)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    metrics = pd.read_csv(tmp_path / "metrics.csv")
    assert len(lines) == len(metrics) == 3
    for line, step, loss, accuracy in zip(
        lines, metrics["step"], metrics["train_loss"], metrics["val_accuracy"], strict=True
    ):
        begin = f"tiny: step {step}/12, loss {loss:.3g}, validation accuracy {accuracy:.3f}, "
        assert line.startswith(begin) and "images/s" in line
        assert line.endswith(" left") == (step < 12)


def test_every_panel_of_the_picture_shows_its_curves() -> None:
    steps = [10, 20, 30]
    metrics = pd.DataFrame(
        {
            "step": steps,
            "train_main_loss": [2.3, 1.9, 1.6],
            "train_accuracy": [0.2, 0.3, 0.4],
            "train_prc_diagonal": [0.9, 0.5, 0.02],
            "val_accuracy": [0.1, 0.2, 0.3],
            "val_loss": [2.2, 2.0, 1.7],
        }
    )
    figure = draw_training(metrics, name="run")
    for axis in figure.axes:
        low, high = axis.get_ylim()
        drawn = [float(value) for line in axis.lines for value in np.asarray(line.get_ydata())]
        assert len(drawn) >= len(steps)
        assert all(low <= value <= high for value in drawn), axis.get_title()
    assert [axis.get_yscale() for axis in figure.axes] == ["linear", "linear", "log"]
    alone = draw_training(metrics.drop(columns="train_prc_diagonal"), name="run")
    assert len(alone.axes) == 2, "no empty panel where there is no auxiliary loss"
