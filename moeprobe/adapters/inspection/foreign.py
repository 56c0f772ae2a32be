"""Another program's model, as it is inspected."""

from pathlib import Path
from typing import Any

from moeprobe.adapters.open import load_model
from moeprobe.inputs.images import Framing
from moeprobe.routing.capabilities import Described


def inspect_foreign(source: str | Path) -> dict[str, Any]:
    """Describe another program's model, as its adapter does, or by its provenance and the routing of a black image."""
    opened = load_model(source, device="cpu")
    if isinstance(opened.model, Described):
        return {
            "checkpoint": str(source),
            "sha256": opened.provenance.get("sha256"),
        } | opened.model.describe()
    assert isinstance(opened.framing, Framing)
    routing = opened.model.trace(opened.framing.blank(), logits=False)[1]
    rows = []
    for name, layer in routing.layers.items():
        grid = layer.grid
        rows.append(
            {
                "layer": name,
                "router": layer.router,
                "num_experts": layer.num_experts,
                "top_k": layer.choices_per_token,
                "patches": None
                if grid is None
                else f"{grid.rows} x {grid.columns} of {grid.patch_size} pixels",
                "prefix_tokens": layer.num_prefix_tokens,
                "gates_sum_to_one": layer.gates_sum_to_one,
            }
        )
    return {
        "checkpoint": opened.name,
        "input": opened.framing.described(),
        "classes": len(opened.class_names) or None,
        **opened.provenance,
        "layers": rows,
    }
