"""Which MoE layers are probed, and what tables call them: by name, or ``first`` and ``last`` of each model.

Models of different depth have a first and a last layer in common, and by these names they are compared.
"""

from collections.abc import Sequence

from moeprobe.errors import UserError

_PLACES = {"first": 0, "last": -1}


def chosen_layers(layer_names: Sequence[str], selection: Sequence[str] | None) -> list[str]:
    """Return the selected layers of a model, in its order; None = all.

    Args:
        layer_names: the model's layers, in forward order.
        selection: names, ``first`` or ``last``.
    """
    if selection is None:
        return list(layer_names)
    by_position = {
        layer_names[index]
        for word, index in _PLACES.items()
        if word in selection and word not in layer_names and layer_names
    }
    return [name for name in layer_names if name in selection or name in by_position]


def layer_label(name: str, layer_names: Sequence[str], selection: Sequence[str] | None) -> str:
    """Return a layer's name in tables: ``first`` or ``last`` if selected that way, else its own."""
    if selection is None or name in selection:
        return name
    return next(word for word, index in _PLACES.items() if word in selection and layer_names[index] == name)


def check_layers(models: dict[str, Sequence[str]], selection: Sequence[str] | None) -> None:
    """Raise ``UserError`` unless each wanted layer is in some model and each model has some of them.

    Args:
        models: name -> MoE layers.
        selection: names, ``first`` or ``last``; None = all.
    """
    if selection is None:
        return
    layer_names = list(dict.fromkeys(layer for layers in models.values() for layer in layers))
    for layer in selection:
        if layer not in layer_names and layer not in _PLACES:
            raise UserError(
                f"There is no MoE layer {layer!r} in {', '.join(models)}; there are: {', '.join(layer_names)}; "
                "first and last mean each model's own."
            )
    for name, layers in models.items():
        if not chosen_layers(layers, selection):
            raise UserError(
                f"{name} has none of the layers {', '.join(selection)}; it has: {', '.join(layers)}."
            )
