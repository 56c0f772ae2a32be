"""Which MoE layers are probed, and what tables call them: by name, or ``first`` and ``last`` of each model.

Models of different depth have a first and a last layer in common, and by these names they are compared.
"""

from collections.abc import Sequence

from moeprobe.errors import UserError

_PLACES = {"first": 0, "last": -1}


def chosen_layers(known: Sequence[str], wanted: Sequence[str] | None) -> list[str]:
    """Return those of a model's layers that are wanted, in its order; None = all.

    Args:
        known: the model's layers, in forward order.
        wanted: names, ``first`` or ``last``.
    """
    if wanted is None:
        return list(known)
    places = {
        known[place] for word, place in _PLACES.items() if word in wanted and word not in known and known
    }
    return [name for name in known if name in wanted or name in places]


def layer_label(name: str, known: Sequence[str], wanted: Sequence[str] | None) -> str:
    """Return what tables call a layer: ``first`` or ``last`` where that is what was wanted, else its name."""
    if wanted is None or name in wanted:
        return name
    return next(word for word, place in _PLACES.items() if word in wanted and known[place] == name)


def check_layers(models: dict[str, Sequence[str]], wanted: Sequence[str] | None) -> None:
    """Raise ``UserError`` unless each wanted layer is in some model and each model has some of them.

    Args:
        models: name -> MoE layers.
        wanted: names, ``first`` or ``last``; None = all.
    """
    if wanted is None:
        return
    known = list(dict.fromkeys(layer for layers in models.values() for layer in layers))
    for layer in wanted:
        if layer not in known and layer not in _PLACES:
            raise UserError(
                f"There is no MoE layer {layer!r} in {', '.join(models)}; there are: {', '.join(known)}; first and "
                "last are those of each model."
            )
    for name, layers in models.items():
        if not chosen_layers(layers, wanted):
            raise UserError(
                f"{name} has none of the layers {', '.join(wanted)}; it has: {', '.join(layers)}."
            )
