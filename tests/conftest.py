"""What all tests share."""

import contextlib
import functools
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Figures are drawn without a screen, and two processes on two cores should not fight for them; before torch loads.
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Until all tests are collected: next to nothing of what is loaded is garbage. Measured: a third of the collection.
gc.disable()

from moeprobe.runtime.torchvision_compat import import_with_operators  # noqa: E402
from tests.browser import browser  # noqa: E402, F401  # a fixture of several folders


def pytest_configure(config: pytest.Config) -> None:
    """Load torchvision before any test imports timm or transformers, which need one that works."""
    # The process that only hands out tests needs none, and the others wait for it.
    if "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", None):
        import_with_operators("torchvision")


def pytest_collection_finish() -> None:
    """Take what is loaded out of the search for garbage, which else goes through all modules and tests time and again.

    Measured: a sixth of what the tests take.
    """
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say last of all how many golden comparisons ran, and what was not tested: a skip is easily taken for a pass."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    ran, failed, skipped = (
        [report for report in reporter.getreports(outcome) if "golden" in getattr(report, "keywords", ())]
        for outcome in ("passed", "failed", "skipped")
    )
    reporter.write_line(
        f"golden comparisons: {len(ran)} passed, {len(failed)} failed, {len(skipped)} skipped"
    )
    reasons = Counter(_reason(report) for report in reporter.getreports("skipped"))
    for reason, number in sorted(reasons.items()):
        reporter.write_line(f"not tested ({number}): {reason}")


def _reason(report: pytest.TestReport) -> str:
    """Return why a test was skipped, and with the reason how it can be run."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


@pytest.fixture(autouse=True)
def signals_arrive() -> Iterator[None]:
    """A shell starts what runs in the background with some signals ignored, and a child process would inherit that."""
    wanted: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
    if sys.platform != "win32":
        wanted |= dict.fromkeys((signal.SIGTERM, signal.SIGHUP), signal.SIG_DFL)
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def _quick() -> Iterator[None]:
    """No test loses power, and the scans of digits are the same whenever they are read."""
    from sklearn import datasets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(datasets, "load_digits", functools.cache(datasets.load_digits))
        yield


@pytest.fixture(scope="session", autouse=True)
def unpictured() -> Iterator[None]:
    """No figures, also of the runs that several tests share."""
    from tests.commands import without_pictures

    with without_pictures():
        yield


@pytest.fixture(autouse=True)
def pictured(request: pytest.FixtureRequest) -> Iterator[None]:
    """Figures in tests that are marked ``pictures``; what they share with others has them by ``commands.pictures``."""
    from tests.commands import pictures

    with pictures() if request.node.get_closest_marker("pictures") else contextlib.nullcontext():
        yield


# Of the two checkpoints that most tests probe.
OVERRIDES = ("steps=12", "epochs=null", "schedule.warmup_steps=2", "evaluate_every=6")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two checkpoints of a few steps on digits: ``baseline`` and ``prc``, which differ in their objective."""
    from moeprobe import api

    root = tmp_path_factory.mktemp("checkpoints")
    folders = {}
    for name, config in (("baseline", "digits-baseline"), ("prc", "digits-prc")):
        api.train(config, overrides=[f"name={name}", *OVERRIDES], folder=root / name, device="cpu")
        folders[name] = root / name
    return folders


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``photos`` in it and a checkpoint of two steps that was trained on them from there."""
    import numpy as np
    from PIL import Image

    from moeprobe import api

    root = tmp_path_factory.mktemp("project")
    rng = np.random.default_rng(0)
    for split, number in (("train", 8), ("val", 4), ("test", 24)):
        for label, name in enumerate(("dark", "light")):
            folder = root / "photos" / split / name
            folder.mkdir(parents=True)
            for index in range(number):
                pixels = rng.integers(0, 100, (32, 32, 3)) + 150 * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for name in ("digits-baseline", "digits-prc"):
            overrides = ["data=folder:photos", "steps=2", "epochs=null", f"name={name.split('-')[1]}"]
            overrides += ["schedule.warmup_steps=1", "evaluate_every=2", "batch_size=8"]
            api.train(name, overrides=overrides, device="cpu")
    return root
