"""A model whose forward passes multiply in a narrower number format, while its routers stay in float32.

Weights and inputs stay float32 and are rounded where they enter a product (``other_dtype.in_dtype``). Gradients of the
pixels are taken in float32: the steps of a search are no passes that a server would make.
"""

import copy
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError, first_line, option
from moeprobe.routing.capabilities import HasRouterModules, Traceable, Weighed
from moeprobe.routing.other_dtype import in_dtype
from moeprobe.runtime.device import FLOAT32, label_of

# What runs the network, of any capability of a model.
PASSES = (
    "trace", "replay", "trunks", "resume", "features", "router_inputs", "route", "trace_ahead",
    "expert_outputs", "log_probabilities", "replayed_log_probabilities", "text_trunks", "resumed_log_probabilities",
)  # fmt: skip
# Kept on the narrower model: its precision, and the model that it was made of.
_PRECISION, _ORIGINAL = "_pass_precision", "_in_float32"


def in_precision(model: Traceable, precision: str, *, name: str, device: torch.device) -> Traceable:
    """Return a model whose forward passes are of a precision; the model itself is left as it is.

    Args:
        model: in float32, or already in some precision.
        precision: "float32", "bfloat16" or "float16".
        name: what messages call it.
        device: where it runs.

    Raises:
        UserError: the device has no such arithmetic, or the weights are not float32.
    """
    original = in_float32(model)
    if precision == FLOAT32:
        return original
    dtype: torch.dtype = getattr(torch, precision)
    _check_device(device, dtype)
    _check_weights(original, name, precision)
    routers = original.router_modules() if isinstance(original, HasRouterModules) else ()
    # A copy of the same class, so that it has the same capabilities; weights are shared.
    narrow = copy.copy(original)
    for method_name in PASSES:
        method = getattr(original, method_name, None)
        if method is not None:
            setattr(narrow, method_name, _under_autocast(method, device, dtype, routers))
    setattr(narrow, _PRECISION, precision)
    setattr(narrow, _ORIGINAL, original)
    return narrow


def in_float32(model: Traceable) -> Traceable:
    """Return the model whose passes are in float32."""
    original: Traceable = getattr(model, _ORIGINAL, model)
    return original


def precision_of(model: Traceable) -> str:
    """Return the precision of a model's forward passes, as ``in_precision`` takes it."""
    precision: str = getattr(model, _PRECISION, FLOAT32)
    return precision


def check_runs(model: Traceable, blank: Any, *, name: str, device: torch.device) -> None:
    """Raise ``UserError`` where a model cannot run a blank input in its precision."""
    precision = precision_of(model)
    try:
        model.trace(blank)
    except UserError as error:
        raise UserError(f"{name} cannot run in {precision}: {error}") from None
    except Exception as error:
        raise UserError(
            f"{name} cannot run in {precision} on this {label_of(device.type)} ({first_line(error)}); use "
            f"{option('precision', FLOAT32)}."
        ) from error


def _check_device(device: torch.device, dtype: torch.dtype) -> None:
    kind = device.type
    try:
        with warnings.catch_warnings():
            # Where it lacks the format, PyTorch warns and computes in float32.
            warnings.simplefilter("ignore", UserWarning)
            with torch.autocast(kind, dtype=dtype):
                can_compute = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == dtype
    except RuntimeError:
        can_compute = False
    if not can_compute:
        precision = str(dtype).removeprefix("torch.")
        raise UserError(
            f"This {label_of(kind)} cannot compute in {precision}; use {option('precision', FLOAT32)}."
        )


def _check_weights(model: Traceable, name: str, precision: str) -> None:
    """Raise ``UserError`` unless weights are float32: of others no pass in float32 shows what rounding changes."""
    if not isinstance(model, Weighed):
        return
    other = next((w.parameter.dtype for w in model.weights() if w.parameter.dtype != torch.float32), None)
    if other is not None:
        raise UserError(
            f"{name} has weights in {str(other).removeprefix('torch.')}, so nothing shows what passes in {precision} "
            f"change; load it in float32 (of hf: {option('dtype', FLOAT32)}), or leave {option('precision')} out."
        )


def _under_autocast(
    method: Callable[..., Any], device: torch.device, dtype: torch.dtype, routers: Sequence[nn.Module]
) -> Callable[..., Any]:
    """Return a method that runs under autocast, except in the routers."""

    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        with in_dtype(device, dtype), _routing_in_float32(routers, device.type):
            return method(*args, **kwargs)

    return run


@contextmanager
def _routing_in_float32(routers: Sequence[nn.Module], kind: str) -> Iterator[None]:
    """Let these modules compute in float32, whatever is around them."""

    def without_autocast(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(kind, enabled=False):
                return forward(*map(_widen, args), **{key: _widen(value) for key, value in kwargs.items()})

        return run

    with ExitStack() as stack:
        for module in routers:
            previous = vars(module).get("forward")
            # On the instance: hooks of the module see what it is called with, and what it returns.
            module.forward = without_autocast(module.forward)
            stack.callback(_restore, module, previous)
        yield


def _restore(module: nn.Module, forward: Callable[..., Any] | None) -> None:
    if forward is None:
        del module.forward
    else:
        module.forward = forward


def _widen(value: Any) -> Any:
    narrow = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if narrow else value
