"""A callback for the ``Trainer`` of Lightning (extra ``lightning``)."""

from collections.abc import Callable, Sequence
from typing import Any

from moeprobe.integrations.arguments import check_class, check_settings
from moeprobe.integrations.guard import NOT_RESUMED, TrainingGuard
from moeprobe.integrations.monitor import RoutingMonitor
from moeprobe.integrations.probe_set import Data
from moeprobe.integrations.sinks import RoutingRecord, Sink, sinks_of

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:  # the same under its earlier name, which can be installed alone
    from pytorch_lightning import Callback


@check_class
class LightningMonitor(Callback):
    """Makes a ``RoutingMonitor`` of a part of the module that is trained, and calls it after each step.

    Records go to the trainer's loggers, and to ``sinks``. The beginning and the end of the training are measured too.

    Args:
        model: from the module that is trained to the first argument of ``RoutingMonitor``, e.g.
            ``lambda module: api.Hooks(module.net, image_size=32, mean=…, std=…)``.
        data: as of ``RoutingMonitor``.
        sinks: where records go besides.
        settings: other keywords of ``RoutingMonitor``, such as how often it measures.
    """

    def __init__(
        self, model: Callable[[Any], Any], data: Data, *, sinks: Sink | Sequence[Sink] = (), **settings: Any
    ) -> None:
        check_settings(LightningMonitor, settings, monitor=RoutingMonitor)
        self._model, self._data, self._settings = model, data, settings
        self._sinks = sinks_of(sinks)
        self._state: dict[str, Any] = {}
        self.monitor: RoutingMonitor | None = None
        self._guard = TrainingGuard()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the monitor, which checkpoints of the trainer hold."""
        if self.monitor is not None:
            with self._guard.errors_warned("The state of the monitor was not saved", "Check the memory."):
                self._state = self.monitor.state_dict()
        return self._state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until the monitor is made."""
        self._state = state_dict

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the monitor, and measure the model as it is; raises ``UserError`` where it cannot be measured."""
        if trainer.is_global_zero:
            sinks = [_Loggers(trainer), *self._sinks]
            self.monitor = RoutingMonitor(self._model(pl_module), self._data, sinks=sinks, **self._settings)
            with self._guard.errors_warned(NOT_RESUMED, "Look at the checkpoint."):
                self.monitor.load_state_dict(self._state)
            self.monitor.record(trainer.global_step)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure every so many steps of the optimizer."""
        if self.monitor is not None:
            self.monitor.step(trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure the last step, and close the sinks."""
        if self.monitor is not None:
            self.monitor.record(trainer.global_step)
            self.monitor.close()


class _Loggers(Sink):
    """The loggers of a trainer."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def write(self, record: RoutingRecord) -> None:
        """Log the keys with their step."""
        for logger in self._trainer.loggers:
            logger.log_metrics(dict(record.values), step=record.step)
