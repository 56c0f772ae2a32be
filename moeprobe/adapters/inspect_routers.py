"""Routers by themselves: what their rows show without data, beside what untrained routers of their shape show.

From a folder of ``hf:``, only the routers' tensors and some of the embedding are read. Axes as in
``routing.router_rows``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moeprobe.adapters.schemes import adapter_of
from moeprobe.errors import UserError
from moeprobe.metrics.router_rows import find_faults, leading_directions, measure_rows, untrained_bands
from moeprobe.routing.capabilities import HasRouterRows
from moeprobe.routing.router_rows import Array, RouterRows


def read_router_rows(source: str) -> tuple[str, dict[str, RouterRows | None]]:
    """Return what tables call a model, and the rows of its routers; None of one without a row for each expert.

    Raises:
        UserError: the model cannot be opened, has no routers, or its adapter does not know their weights.
    """
    from moeprobe.adapters.open import is_huggingface, load_model  # here, since it imports timm

    if is_huggingface(source):
        from moeprobe.adapters.huggingface.router_rows import read_rows

        read = read_rows(adapter_of(source)[1])
        if read is not None:
            return read
    opened = load_model(source, device="cpu")
    if not isinstance(opened.model, HasRouterRows):
        raise UserError(
            f"The adapter of {source} does not say which weights its routers score experts by; give it a method "
            "router_rows."
        )
    if not opened.model.layer_names:
        raise UserError(f"{source} has no routers: the model is dense.")
    return opened.name, opened.model.router_rows()


def inspect_routers(sources: Sequence[str]) -> dict[str, Any]:
    """Describe the routers of checkpoints by their rows, each beside untrained ones of its shape.

    Args:
        sources: the checkpoints, as for ``adapters.open.load_model``; several are put side by side.

    Raises:
        UserError: as ``read_router_rows``, or weights are not finite.
    """
    models = [read_router_rows(source) for source in sources]
    names = [name for name, _ in models]
    # Layers share embeddings and starts: each is looked at once.
    directions: dict[tuple[int, int], Array | None] = {}
    bands: dict[Any, Mapping[str, tuple[float, float]]] = {}
    described = []
    for source, (name, layers) in zip(sources, models, strict=True):
        rows: list[dict[str, Any]] = []
        for layer, router in layers.items():
            if router is None:
                rows.append({"layer": layer, "rows": None})
                continue
            if not np.isfinite(router.rows).all():
                raise UserError(f"The router of {layer} in {source} has weights that are not finite.")
            along = None
            if router.embedding is not None:
                key = id(router.embedding), len(router.rows)
                if key not in directions:
                    directions[key] = leading_directions(router.embedding, len(router.rows))
                along = directions[key]
            shape = router.rows.shape
            band_key = shape, router.start
            if band_key not in bands:
                bands[band_key] = untrained_bands((shape[0], shape[1]), router.start)
            numbers, untrained = measure_rows(router.rows, along).plain(), bands[band_key]
            rows.append(
                {
                    "layer": layer,
                    "rows": shape[0],
                    "width": shape[1],
                    **numbers,
                    **find_faults(router).plain(),
                    "untrained": {key: list(band) for key, band in untrained.items()},
                    "is_choice_by_scores": router.is_choice_by_scores,
                    "start_is_known": router.start.is_known,
                    "outside": [key for key, band in untrained.items() if _is_outside(numbers[key], band)],
                }
            )
        described.append({"checkpoint": name if names.count(name) == 1 else source, "layers": rows})
    return {"checkpoints": described}


def _is_outside(value: float | None, band: tuple[float, float]) -> bool:
    return value is not None and not band[0] <= value <= band[1]
