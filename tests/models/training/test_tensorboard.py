"""The optional event files."""

import sys
from pathlib import Path

import pandas as pd
import pytest

from moeprobe.errors import UserError
from tests.models.training.tiny import trainer


def test_without_the_package_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match=r"pip install -c constraints\.txt -e '\.\[tensorboard\]'"):
        trainer(tmp_path, tensorboard=True)
    trainer(tmp_path, tensorboard=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_shows_what_the_table_says_also_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    one = trainer(tmp_path, tensorboard=True)

    def press(*_: object) -> None:
        if one.step == 6:
            raise KeyboardInterrupt

    one.model.register_forward_pre_hook(press)
    with pytest.raises(KeyboardInterrupt):
        one.run()
    again = trainer(tmp_path, tensorboard=True)
    again.resume()
    again.run()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    metrics = pd.read_csv(tmp_path / "metrics.csv")
    for tag, column in (("val/accuracy", "val_accuracy"), ("train/prc_diagonal", "train_prc_diagonal")):
        shown = {event.step: event.value for event in events.Scalars(tag)}
        wanted = dict(zip(metrics["step"], metrics[column], strict=True))
        assert shown == pytest.approx(wanted, rel=1e-6)
