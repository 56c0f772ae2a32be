"""What a router of a foreign module returned: the tensors in it, by their places, and the tokens in a tensor.

Axes: B images, T tokens of an image (prefix tokens first), E experts, K choices.
"""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from moeprobe.adapters.hooks.factory import NEEDED, Place, Read, has_choice
from moeprobe.errors import UserError


def read(
    module: nn.Module, arguments: tuple[Any, ...], output: Any, *, how: Read | None
) -> dict[str, Tensor]:
    """Return the tensors of one call of a router: logits, or the indices of experts, or both; and weights.

    Args:
        module: the router.
        arguments: what it was called with.
        output: what it returned.
        how: the place of each in the output (index, key or attribute), or a function that gives them; None = the output
            is the logits.

    Raises:
        UserError: there is no such place, or it holds no tensor.
    """
    if how is None:
        if not isinstance(output, Tensor):
            raise UserError(
                f"it returns {describe_output(output)}; say where the logits are, read: {{logits: 0}}, or the numbers "
                "of the chosen experts, read: {indices: 0}."
            )
        # A convolution of one pixel is a linear map of each token, with the experts as its channels.
        return {"logits": output.movedim(1, -1) if isinstance(module, nn.Conv2d) else output}
    tensors: Any = (
        how(module, arguments, output)
        if callable(how)
        else {key: part(output, output_key) for key, output_key in how.items()}
    )
    if not isinstance(tensors, Mapping) or not has_choice(tensors):
        raise UserError(
            f"read gives {' or '.join(NEEDED)}, or both, and with the indices also their weights."
        )
    for key, value in tensors.items():
        if not isinstance(value, Tensor):
            raise UserError(f"its {key} should be a tensor, and are {describe_output(value)}.")
    return dict(tensors)


def part(output: Any, key: Place) -> Any:
    """Return the value at an index, a key or an attribute of an output.

    Raises:
        UserError: nothing does.
    """
    try:
        # A string is an attribute unless the output is a mapping.
        if isinstance(key, str) and not isinstance(output, Mapping):
            return getattr(output, key)
        return output[key]
    except (AttributeError, IndexError, KeyError, TypeError):
        raise UserError(f"it returns {describe_output(output)}, with nothing at {key!r}.") from None


def put(output: Any, key: Place, value: Tensor) -> Any:
    """Return an output of the same kind with another tensor at an index, a key or an attribute.

    Raises:
        UserError: nothing can be put there.
    """
    try:
        if isinstance(output, tuple | list):
            if isinstance(key, str):
                # Named tuples take fields by name.
                replaced: Any = output._replace(**{key: value})  # type: ignore[union-attr]
                return replaced
            items = [*output]
            items[key] = value
            return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
        # A copy: the module may return the same object in every pass.
        copied = copy.copy(output)
        if isinstance(output, Mapping):
            copied[key] = value
        else:
            setattr(copied, str(key), value)
    except (AttributeError, TypeError, ValueError, KeyError):
        raise UserError(f"it returns {describe_output(output)}, in which nothing can be exchanged.") from None
    return copied


def describe_output(output: Any) -> str:
    """Return what an output is, with the shapes of its tensors."""
    if isinstance(output, Tensor):
        return f"a tensor {tuple(output.shape)}"
    if isinstance(output, Mapping):
        inside = ", ".join(f"{key}: {describe_output(value)}" for key, value in output.items())
        return f"a {type(output).__name__} of {inside}"
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {', '.join(map(describe_output, output)) or 'nothing'}"
    fields = [name for name, value in getattr(output, "__dict__", {}).items() if isinstance(value, Tensor)]
    return f"a {type(output).__name__}{' with ' + ', '.join(fields) if fields else ''}"


def by_image(values: Tensor, num_images: int, sequence_first: bool) -> Tensor:
    """Return values of tokens as ``(B, T, X)``.

    They may come as ``(B, T, X)``, ``(B, rows, columns, X)``, flattened ``(B·T, X)`` or ``(1, B·T, X)``; with
    ``sequence_first`` as ``(T, B, X)`` or flattened ``(T·B, X)``.

    Raises:
        UserError: the shape is none of these.
    """
    shape = tuple(values.shape)
    # Some models flatten a batch of images into one sequence.
    flat = values[0] if values.ndim == 3 and shape[0] == 1 != num_images else values
    if flat.ndim == 2 and len(flat) % num_images == 0:
        if sequence_first:
            return flat.unflatten(0, (-1, num_images)).transpose(0, 1)
        return flat.unflatten(0, (num_images, -1))
    if values.ndim == 3 and sequence_first and shape[1] == num_images:
        return values.transpose(0, 1)
    if values.ndim in (3, 4) and not sequence_first and shape[0] == num_images:
        return values.flatten(1, -2)
    hint = (
        " If its tokens come before its images, say sequence_first: true."
        if values.ndim == 3 and not sequence_first and shape[1] == num_images
        else ""
    )
    expected_shapes = (
        "(tokens, images, experts) or (tokens · images, experts)"
        if sequence_first
        else "(images, tokens, experts), (images, rows, columns, experts) or (images · tokens, experts)"
    )
    raise UserError(f"for {num_images} images it gives {shape}; expected is {expected_shapes}.{hint}")
