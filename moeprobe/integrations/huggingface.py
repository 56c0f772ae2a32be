"""A callback for the ``Trainer`` of ``transformers`` (extra ``hf``)."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from moeprobe.errors import UserError
from moeprobe.integrations.arguments import check_class, check_settings
from moeprobe.integrations.guard import NOT_RESUMED, TrainingGuard
from moeprobe.integrations.monitor import RoutingMonitor
from moeprobe.integrations.probe_set import Data
from moeprobe.models.checkpoints.checkpoint import read_tensors, write_tensors


@check_class
class HuggingfaceMonitor(TrainerCallback):
    """Makes a ``RoutingMonitor`` of the model that is trained, and calls it after each step.

    Keys stand in the trainer's ``log_history`` too. The beginning and the end of the training are measured as well.

    Args:
        data: as of ``RoutingMonitor``.
        tokenizer: None = the ``processing_class`` of the trainer.
        settings: keywords of ``RoutingMonitor``, e.g. ``every`` and ``sinks``.
    """

    def __init__(self, data: Data, *, tokenizer: Any = None, **settings: Any) -> None:
        check_settings(HuggingfaceMonitor, settings, monitor=RoutingMonitor)
        self._data, self._tokenizer, self._settings = data, tokenizer, settings
        self.monitor: RoutingMonitor | None = None
        self._guard = TrainingGuard()

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Make the monitor, and measure the model as it is; raises ``UserError`` where it cannot be measured."""
        if not state.is_world_process_zero:
            return
        tokenizer = self._tokenizer or more.get("processing_class")
        if tokenizer is None:
            raise UserError("The trainer has no processing_class; name the model's tokenizer=….")
        self.monitor = RoutingMonitor(more["model"], self._data, tokenizer=tokenizer, **self._settings)
        if state.global_step > 0:
            with self._guard.errors_warned(NOT_RESUMED, "Look at the checkpoint."):
                self._resume(_state_file(args, state))
        self._record(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Measure every so many steps."""
        if self.monitor is not None and state.global_step % self.monitor.every == 0:
            self._record(state)

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Write the state of the monitor into the checkpoint, for a training that resumes."""
        failure, at = "The state of the monitor was not saved", f" at step {state.global_step}"
        with self._guard.errors_warned(failure, "Check the disk.", at=at):
            if self.monitor is not None and (tensors := self.monitor.state_dict()):
                write_tensors(_state_file(args, state), tensors, {})

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Measure the last step, and close the sinks."""
        if self.monitor is not None:
            self._record(state)
            self.monitor.close()

    def _resume(self, file: Path) -> None:
        assert self.monitor is not None
        if not file.is_file():
            raise UserError(f"There is no {file}.")
        self.monitor.load_state_dict(read_tensors(file)[0])

    def _record(self, state: Any) -> None:
        assert self.monitor is not None
        record = self.monitor.record(state.global_step)
        if record is not None:
            state.log_history.append({**record.values, "step": record.step})


def _state_file(args: Any, state: Any) -> Path:
    """Return the file of the monitor in the checkpoint of a step, where the trainer writes it."""
    return (
        Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}" / "routing_monitor.safetensors"
    )
