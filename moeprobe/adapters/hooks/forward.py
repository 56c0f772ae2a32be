"""Run a foreign module and collect what its submodules see or return; nothing is left on it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError

# Given a module's name, the module, what it was called with and what it returned.
Collect = Callable[[str, nn.Module, tuple[Any, ...], Any], Any]


class _Stop(Exception):  # noqa: N818  (a signal, not an error)
    """What was wanted is there; the rest of the forward is not needed."""


@contextmanager
def _evaluating(net: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and back every part that was not."""
    training = [module for module in net.modules() if module.training]
    net.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def run_forward(
    net: nn.Module,
    images: Tensor,
    *,
    names: Sequence[str] = (),
    collect: Collect | None = None,
    stop_after: str | None = None,
    gradient: bool = False,
) -> tuple[Any, list[tuple[str, Any]]]:
    """Run ``net`` on normalized images in evaluation mode.

    Args:
        net: the module.
        images: ``(B, 3, H, W)``.
        names: submodules that are listened to.
        collect: called when one of them has run; what it returns is kept.
        stop_after: the forward ends when this one has run; None = it is run to the end.
        gradient: whether the output leads back to the images.

    Returns:
        The output, None where it was stopped; and (name, what was kept) for each time that one ran, in order.
    """
    kept: list[tuple[str, Any]] = []

    def hook(name: str) -> Any:
        def listen(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            assert collect is not None
            kept.append((name, collect(name, module, arguments, output)))
            if name == stop_after:
                raise _Stop

        return listen

    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad() if gradient else torch.inference_mode())
        stack.enter_context(_evaluating(net))
        for name in names:
            stack.callback(net.get_submodule(name).register_forward_hook(hook(name)).remove)
        try:
            return net(images), kept
        except _Stop:
            return None, kept
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:  # sys.exit: the program would end as if all were done
            raise UserError(
                f"The model raised {type(error).__name__} on images {tuple(images.shape)}; it must not end the program."
            ) from error


def arguments_of(net: nn.Module, images: Tensor, name: str) -> list[tuple[Any, ...]]:
    """Return what a submodule is called with for normalized images, the first time; empty if it never is."""
    seen: list[tuple[Any, ...]] = []

    def listen(_module: nn.Module, arguments: tuple[Any, ...]) -> None:
        seen.append(arguments)
        raise _Stop

    handle = net.get_submodule(name).register_forward_pre_hook(listen)
    try:
        run_forward(net, images)
    finally:
        handle.remove()
    return seen
