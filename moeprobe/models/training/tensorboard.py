"""The metrics of a run for TensorBoard (optional): ``tensorboard --logdir checkpoints``."""

from pathlib import Path

from moeprobe.errors import UserError


class Board:
    """Writes event files.

    Args:
        folder: where to; a resumed run adds a file to those that are there.
        step: the step the run starts at; what an earlier start wrote beyond it is not shown.

    Raises:
        UserError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        require()
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder, purge_step=step + 1)

    def write(self, row: dict[str, float]) -> None:
        """Write one row of ``metrics.csv``; train_loss becomes the chart "loss" of the group "train"."""
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name.replace("_", "/", 1), value, int(row["step"]))
        self._writer.flush()

    def close(self) -> None:
        """Finish the event file."""
        self._writer.close()


def require() -> None:
    """Raise ``UserError`` where TensorBoard is not installed."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise UserError(
            "tensorboard: true needs TensorBoard, which is not installed: pip install 'moeprobe[tensorboard]'."
        ) from None
