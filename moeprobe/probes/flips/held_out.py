"""Perturbations whose cost is predicted: other views than the one whose flips are priced."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import Modality
from moeprobe.inputs.open import open_view, split_views
from moeprobe.inputs.views.base import SeverityView
from moeprobe.probes.engine.run_spec import RunSpec

# What tables call all held-out perturbations together.
HELD_OUT = "held out"


@dataclass(frozen=True)
class HeldOut:
    """A view whose flips are no part of any price.

    Attributes:
        name: as the user wrote it, in the column ``view``.
        view: what perturbs.
    """

    name: str
    view: SeverityView[Any, Any, Any]

    @property
    def severities(self) -> tuple[float, ...]:
        """All of the view that change anything."""
        return self.view.severities[1:]


@dataclass(frozen=True)
class WithHeldOut(SeverityView[Any, Any, Any]):
    """A view, then all held-out ones at all of their severities.

    The view itself draws first, so that its perturbed inputs are those of a run without held-out views.
    """

    view: SeverityView[Any, Any, Any]
    held_out: tuple[HeldOut, ...]

    @property
    def severities(self) -> tuple[float, ...]:  # type: ignore[override]
        """The steps of the view."""
        return self.view.severities

    @property
    def modality(self) -> Modality:  # type: ignore[override]
        """What it perturbs."""
        return self.view.modality

    def perturb(
        self, source: Any, *, framing: Any, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Any]:
        """Return ``source`` at each severity, then under each held-out perturbation."""
        views = self.view.perturb(source, framing=framing, severities=severities, rng=rng)
        for each in self.held_out:
            views += each.view.perturb(source, framing=framing, severities=each.severities, rng=rng)
        return views


def open_held_out(names: Sequence[str], spec: RunSpec) -> tuple[HeldOut, ...]:
    """Return the views that are named, each ``NAME`` or ``NAME,key=value``.

    Raises:
        UserError: there is no such view, it does not fit, or it is the one whose flips are priced.
    """
    views: dict[str, SeverityView[Any, Any, Any]] = {}
    for name in split_views(names):
        if name in views:
            raise UserError(f"{option('predict')} names {name} twice.")
        view = open_view(name, dataset=spec.dataset)
        if (
            not isinstance(view, SeverityView)
            or not view.aligned
            or view.modality is not spec.dataset.modality
        ):
            raise UserError(
                f"{option('predict')} takes views of {spec.dataset.modality.plural} with a severity that leave patches "
                f"in place, e.g. {option('predict', 'gaussian_blur')}; got {name!r}."
            )
        if view == spec.view:
            raise UserError(
                f"{name} is the view whose flips are priced; {option('predict')} takes other views, and "
                f"{option('view')} another one to price."
            )
        views[name] = view
    return tuple(HeldOut(name, view) for name, view in views.items())
