"""Loader processes that nobody asked for: the room that a batch takes is that of all views that are loaded with it."""

import dataclasses

import pytest

from moeprobe.api import Options
from moeprobe.probes.engine import run_spec
from moeprobe.probes.engine.measurement import VariantsMeasurement
from moeprobe.probes.flips import Flips
from moeprobe.probes.flips.measure import FlipsMeasurement
from moeprobe.probes.margins import Margins
from moeprobe.probes.margins.measure import MarginsMeasurement
from tests.routing.routings import checkpoint, digits

# Bytes of an image of 32 × 32 pixels in float32.
IMAGE = 32 * 32 * 3 * 4


@pytest.mark.parametrize(
    ("kind", "probe"),
    [
        (FlipsMeasurement, Flips(patches=1)),
        (FlipsMeasurement, Flips(patches=1, predict=("gaussian_blur", "corruption,kind=snow"))),
        (MarginsMeasurement, Margins(severities=[0.1], draws=5)),
        (MarginsMeasurement, Margins(severities=[0.1, 0.2], draws=2, transfer="gaussian_blur")),
    ],
)
def test_a_batch_is_as_large_as_all_views_that_it_holds(
    kind: type[VariantsMeasurement], probe: Flips | Margins, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def no_processes(workers: int | None, encoded_images: int, *, batch_bytes: int, ranks: int) -> int:
        assert (workers, encoded_images, ranks) == (None, 0, 1)
        sizes.append(batch_bytes)
        return 0

    monkeypatch.setattr(run_spec, "loader_processes", no_processes)
    measurement = kind(probe, [checkpoint()], "digits", Options(limit=4, batch_size=2, workers=None))
    spec = measurement.spec
    loaded = dataclasses.replace(spec, view=measurement.loaded_view(spec.view))
    views = run_spec.recipe(loaded, measurement.models[0].framing)(digits().example(0).image, "0")
    # Counted generously, since one process too few costs little.
    assert 0 <= sizes[-1] / (2 * IMAGE) - len(views) <= 1
