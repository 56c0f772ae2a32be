"""A torch module with its settings: images in, class scores, routings and features out.

Axes: B images, D width of the features.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.adapters.base import PassEnd
from moeprobe.adapters.hooks.detection import unwrap
from moeprobe.adapters.hooks.factory import HookSettings
from moeprobe.adapters.hooks.layer import HookedLayer
from moeprobe.adapters.hooks.output import describe_output, part, read
from moeprobe.adapters.hooks.use import (
    BlockCall,
    ExpertBlock,
    find_block,
    listening,
    used_experts,
)
from moeprobe.adapters.hooks.watch import ChoiceAt, Force, Watch, tensors_of, watching
from moeprobe.errors import UserError
from moeprobe.routing.capabilities import FEATURES, SCORES
from moeprobe.routing.record import LayerRouting
from moeprobe.runtime.catalog import describe_unknown
from moeprobe.runtime.foreign_errors import running
from moeprobe.runtime.torch_state import random_numbers_kept


@dataclass(frozen=True)
class Pass:
    """What some images gave: the output, None where not wanted or given, and each layer's routing.

    The output is class scores ``(B, classes)``, or features ``(B, D)``, as ``kind`` says.
    """

    output: Tensor | None
    layers: dict[str, LayerRouting]
    kind: str | None = None


class HookedModule:
    """A torch module with its ``Hooks`` settings.

    Args:
        net: the module.
        settings: how it is read.
    """

    def __init__(self, net: nn.Module, settings: HookSettings) -> None:
        # Hooks on a wrapper would not see the wrapped module's calls.
        self.net = unwrap(net)
        self.settings = settings
        # Experts are changed to see which tokens are theirs.
        if any(parameter.is_meta for parameter in self.net.parameters()):
            raise UserError(
                f"Some weights of {type(net).__name__} are in memory only while their layer runs, and none can be "
                "changed to see what it does; load the module without offloading."
            )

    @property
    def device(self) -> torch.device:
        """Where the module's parameters are."""
        return self._like.device

    @property
    def precision(self) -> float:
        """The smallest step from one of the module's numbers to the next."""
        return torch.finfo(self._like.dtype).eps

    @property
    def _like(self) -> Tensor:
        # Any of its numbers, for their device and dtype. A module may have parameters or buffers only.
        numbers = itertools.chain(self.net.parameters(), self.net.buffers())
        return next((value for value in numbers if value.is_floating_point()), torch.empty(0))

    def forward(
        self, images: Tensor, modules: Sequence[str], *, stop_after: str | None = None
    ) -> tuple[Any, list[tuple[str, dict[str, Tensor]]]]:
        """Run images; return the output and, for each run of a router, its name and parsed output."""
        return run_forward(
            self.net, self._normalize(images), names=modules, collect=self._collect, stop_after=stop_after
        )

    def run(self, images: Tensor, layers: Mapping[str, HookedLayer], *, logits: bool = True) -> Pass:
        """Run images and route them in these layers, which come in forward order.

        Raises:
            UserError: a router did not run once, or gives something else than before, or there are no class scores.
        """
        blocks = {
            # Only layers that drop choices need their experts watched.
            name: block
            for name, layer in layers.items()
            if layer.drops and (block := self.block_of(layer))
        }
        return self.run_listening(images, layers, blocks, logits=logits)[0]

    def run_listening(
        self,
        images: Tensor,
        layers: Mapping[str, HookedLayer],
        blocks: Mapping[str, ExpertBlock],
        *,
        logits: bool = True,
    ) -> tuple[Pass, dict[str, list[BlockCall]]]:
        """Run images as ``run`` does; returns what the blocks of layers were called with, too."""
        modules = [layer.module for layer in layers.values()]
        # Watching slows a pass down, so only the calls that are needed are watched.
        watched = [layer.module for layer in layers.values() if layer.is_watched]
        last = list(layers.values())[-1] if layers else None
        # A choice that comes after its router ends a pass in which no more is wanted. A pass whose experts are looked
        # at goes on, or the random numbers of the next one would be the same.
        stop_at = stop_after = None
        if last is not None and not logits and not any(layer.drops for layer in layers.values()):
            is_behind = last.follows and not last.choice[-1].inside
            stop_at, stop_after = (last.choice[-1], None) if is_behind else (None, last.module)
        with (
            listening(self.net, blocks) as calls,
            watching(self.net, Watch(stop_at=stop_at), watched) if watched else nullcontext() as watch,
        ):
            output, fired = self.forward(images, modules, stop_after=stop_after)
        check_fired([name for name, _ in fired], modules)
        # By module: each ran exactly once.
        values, routings = dict(fired), {}
        for name, layer in layers.items():
            token_local = self.settings.token_local
            with naming(layer.module):
                choice = watch.choice(layer.choice) if watch is not None and layer.is_watched else None
                if layer.follows and choice is None:
                    raise UserError("its output was followed by a top-k before, and is not in this pass.")
                routings[name] = layer.routing(
                    values[layer.module],
                    num_images=len(images),
                    token_local=layer.is_local if token_local is None else token_local,
                    choice=choice,
                    work=self._read_use(blocks[name], calls[name], layer, len(images))
                    if layer.drops
                    else None,
                )
        answer, kind = self.answer(output, len(images)) if logits else (None, None)
        return Pass(answer, routings, kind), calls

    def outputs_with(self, images: Tensor, forced: Mapping[ChoiceAt, Force]) -> list[Tensor]:
        """Return the tensors of the module's output where calls are made to choose other experts.

        Random numbers are the same in every such pass.
        """
        with random_numbers_kept([self.device]):
            torch.manual_seed(0)
            with watching(self.net, Watch(forced=forced), {location.module for location in forced}):
                output, _ = self.forward(images, [])
        return list(tensors_of(output))

    def block_of(self, layer: HookedLayer) -> ExpertBlock | None:
        """Return the module that runs a router and its experts; None where there is no such module."""
        return find_block(self.net, layer.module, layer.num_experts)

    def _read_use(
        self, block: ExpertBlock, calls: Sequence[BlockCall], layer: HookedLayer, num_images: int
    ) -> Tensor:
        if len(calls) != 1:
            raise UserError(
                f"{block.name}, which runs its experts, ran {len(calls)} times; once is expected."
            )
        work = used_experts(self.net, block, calls[0], layer, num_images)
        if work is None:
            raise UserError(f"{block.name}, which runs its experts, gives no output for each token here.")
        return work

    def answer(self, output: Any, num_images: int) -> tuple[Tensor | None, str | None]:
        """Return what a module's output answers for each image ``(B, .)`` float32, and its kind; None where nothing.

        That is "scores" of classes, or "features": a tensor with an entry for each image that is not to be read as
        scores, all of it.

        Raises:
            UserError: there is nothing such at the place that was set.
        """
        output_key = self.settings.output
        value = output if output_key is None else part(output, output_key)
        has_rows = isinstance(value, Tensor) and value.ndim > 1 and len(value) == num_images
        if has_rows and value.is_floating_point() and (not self.settings.classes or value.ndim == 2):
            # Features may have any shape, scores are (B, classes).
            kind = SCORES if self.settings.scores and value.ndim == 2 else FEATURES
            return value.flatten(1).float(), kind
        if output_key is None and not self.settings.classes:
            return None, None
        what = "class scores" if self.settings.classes else "output"
        raise UserError(
            f"The {what} of {num_images} images should be a tensor ({num_images}, classes); the model gives "
            f"{describe_output(output)}. Say where they are, e.g. output: 0; a model without class scores has "
            "no classes."
        )

    def scores(self, output: Any, num_images: int) -> Tensor:
        """Return the class scores ``(B, classes)`` float32 in the module's output.

        Raises:
            UserError: there are none.
        """
        answer, kind = self.answer(output, num_images)
        if answer is None or kind != SCORES:
            raise UserError(f"The model gives no class scores: it gives {describe_output(output)}.")
        return answer

    def differentiable_scores(self, images: Tensor) -> Tensor:
        """Return the class scores ``(B, classes)`` of images, with the way back to their pixels.

        Raises:
            UserError: there are none.
        """
        output, _ = run_forward(self.net, self._normalize(images), gradient=True)
        return self.scores(output, len(images))

    def features(self, images: Tensor, head: str) -> Tensor:
        """Return what the submodule ``head`` is called with, ``(B, D)`` float32.

        Raises:
            UserError: there is no such submodule, it never runs, or is called with something else.
        """
        modules = [name for name, _ in self.net.named_modules() if name]
        if head not in modules:
            raise UserError(describe_unknown("module", head, [name for name, _ in self.net.named_children()]))
        calls = arguments_of(self.net, self._normalize(images), head)
        features = calls[0][0] if calls and calls[0] else None
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(images):
            problem = f"is called with {describe_output(calls[0])}" if calls else "never runs"
            raise UserError(
                f"The head {head} should be called with features ({len(images)}, D) of as many images; it {problem}."
            )
        return features.float()

    def hash(self, layers: Mapping[str, HookedLayer]) -> str:
        """Return a hash of the parameters, the settings and the detected layers."""
        learned = {name: layer.identity for name, layer in layers.items()}
        # The settings belong to the hash: another activation gives other gates.
        digest = hashlib.sha256(json.dumps([self.settings.plain(), learned], sort_keys=True).encode())
        for name, value in self.net.state_dict().items():
            digest.update(name.encode())
            # As bytes, since NumPy has no bfloat16.
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _collect(
        self, name: str, module: nn.Module, arguments: tuple[Any, ...], output: Any
    ) -> dict[str, Tensor]:
        with naming(name):
            values = read(module, arguments, output, how=self.settings.read)
            # Copied: what comes after may write into them.
            return {key: value.clone() for key, value in values.items()}

    def _normalize(self, images: Tensor) -> Tensor:
        size = self.settings.image_size
        if images.ndim != 4 or tuple(images.shape[1:]) != (3, size, size):
            raise UserError(f"The model takes images (B, 3, {size}, {size}); got {tuple(images.shape)}.")
        like = self._like
        moments = (self.settings.mean, self.settings.std)
        # On the module's device; float32 until the division is done.
        mean, std = (torch.tensor(values, device=like.device).view(3, 1, 1) for values in moments)
        return ((images.to(like.device) - mean) / std).to(like.dtype)


@contextmanager
def naming(module: str) -> Iterator[None]:
    """Put the router's name before the error message."""
    try:
        yield
    except UserError as error:
        raise UserError(f"Router {module}: {error}") from None


def check_fired(fired: Sequence[str], modules: Sequence[str]) -> None:
    """Raise ``UserError`` unless each of the modules has run exactly once."""
    ran = ", ".join(dict.fromkeys(fired)) or "none of them"
    for name in modules:
        if name not in fired:
            raise UserError(
                f"The router {name} did not run in a forward pass (of the routers, {ran} did): it is not used, or what "
                "it holds is used without calling it; take the module that calls it, and say how to read it."
            )
        if fired.count(name) > 1:
            raise UserError(
                f"The router {name} ran {fired.count(name)} times in one forward pass, because several layers "
                "share it. Give each layer its own module, or name the modules around it."
            )


# Run a foreign module and collect what its submodules see or return; nothing is left on it.

# Given a module's name, the module, what it was called with and what it returned.
Collect = Callable[[str, nn.Module, tuple[Any, ...], Any], Any]


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

    Raises:
        UserError: the model raised an error of its own.

    Returns:
        The output, None where it was stopped; and (name, parsed output) for each run of a router, in order.
    """
    collected: list[tuple[str, Any]] = []

    def hook(name: str) -> Any:
        def listen(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            assert collect is not None
            collected.append((name, collect(name, module, arguments, output)))
            if name == stop_after:
                raise PassEnd

        return listen

    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad() if gradient else torch.inference_mode())
        stack.enter_context(_evaluating(net))
        for name in names:
            stack.callback(net.get_submodule(name).register_forward_hook(hook(name)).remove)
        with running("The model", doing=f"on images {tuple(images.shape)}"):
            try:
                return net(images), collected
            except PassEnd:
                return None, collected


def arguments_of(net: nn.Module, images: Tensor, name: str) -> list[tuple[Any, ...]]:
    """Return what a submodule is called with for normalized images, the first time; empty if it never is."""
    calls: list[tuple[Any, ...]] = []

    def listen(_module: nn.Module, arguments: tuple[Any, ...]) -> None:
        calls.append(arguments)
        raise PassEnd

    handle = net.get_submodule(name).register_forward_pre_hook(listen)
    try:
        run_forward(net, images)
    finally:
        handle.remove()
    return calls


def move(net: nn.Module, device: torch.device | str) -> nn.Module:
    """Move a module to a device; one that accelerate has spread over devices stays where it is."""
    return net if getattr(unwrap(net), "hf_device_map", None) else net.to(device)
