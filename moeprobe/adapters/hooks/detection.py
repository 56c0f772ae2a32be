"""Find the submodules that are routers: by name, by class, or by the use of their outputs.

A module whose output is followed by a top-k is a router. That is seen by watching one forward pass (see ``watch``).
"""

import fnmatch
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from moeprobe.adapters.hooks.use import find_block
from moeprobe.adapters.hooks.watch import ChoiceAt, HookedChoice, ScoresOrigin, SeenChoice, Watch, watching
from moeprobe.errors import UserError
from moeprobe.runtime.catalog import describe_unknown


@dataclass(frozen=True)
class DetectedRouter:
    """A router: its module's name and the observed facts (None if nothing was watched or the facts differ)."""

    name: str
    top_k: int | None = None
    activation: str | None = None


def match_modules(net: nn.Module, routers: str | type[nn.Module]) -> list[str]:
    """Return the submodules of a class, given as such or as ``package.module.Class``, or whose name fits a glob.

    Raises:
        UserError: there is none.
    """
    # A module used in two places has two names, and each is a layer.
    names = {name: module for name, module in net.named_modules(remove_duplicate=False) if name}
    if isinstance(routers, str):
        matches = [name for name in names if fnmatch.fnmatchcase(name, routers)]
        # A glob over names comes first; a dotted class name hardly ever matches one.
        if matches:
            return matches
        kind = _class(routers)
        if kind is None:
            raise UserError(_no_match(routers, names))
    else:
        kind = routers
    matches = [name for name, module in names.items() if isinstance(module, kind)]
    if not matches:
        kinds = sorted({type(module).__name__ for module in names.values()})
        raise UserError(f"The model has no {kind.__name__}; its modules are: {', '.join(kinds)}.")
    return matches


def _class(path: str) -> type[nn.Module] | None:
    """Return the class that a dotted path means; None where it means none."""
    package, _, name = path.rpartition(".")
    try:
        kind = getattr(importlib.import_module(package), name)
    except (ImportError, AttributeError, ValueError):
        return None
    return kind if isinstance(kind, type) and issubclass(kind, nn.Module) else None


def _no_match(pattern: str, names: Mapping[str, nn.Module]) -> str:
    """Return the sentence for a glob that fits nothing; of names that differ in numbers alone one is named."""
    kinds = {".".join("*" if part.isdigit() else part for part in name.split(".")): name for name in names}
    gates = [kind for kind in kinds if any(word in kind.lower() for word in ("gat", "rout"))]
    sentence = describe_unknown("module", pattern, kinds)
    first, _, _ = sentence.partition(" There are:")
    named_kinds = gates or list(kinds)[:20]
    return f"{first} Modules {'that sound like routers' if gates else 'here'}: {', '.join(named_kinds)}."


def detect(net: nn.Module, run: Callable[[], object]) -> list[DetectedRouter]:
    """Return the modules whose outputs are followed by a top-k in one forward pass, in forward order.

    Args:
        net: the model.
        run: does a forward pass.

    Raises:
        UserError: there is none, a choice is made from several of them, or they are not of one kind.
    """
    # One pass is enough: which operations follow an output does not depend on the numbers.
    with watching(net, Watch()) as watch:
        run()
    origins = _origins(watch)
    if not origins:
        raise UserError(_no_choice(net, watch))
    for origin in origins:
        if len(origin.modules) > 1:
            several = ", ".join(sorted(origin.modules))
            raise UserError(
                f"Experts are chosen from what several modules give ({several}); name the routers."
            )
    routers = [
        detect_router(watch, name) for name in dict.fromkeys(next(iter(origin.modules)) for origin in origins)
    ]
    modules = dict(net.named_modules())
    # Routers of one model have the same class, width and K; else something other than a router was found too.
    kinds = {(type(modules[item.name]), watch.wide[item.name], item.top_k) for item in routers}
    if len(kinds) > 1:
        listed = ", ".join(
            f"{item.name} ({type(modules[item.name]).__name__} to {watch.wide[item.name]})"
            for item in routers
        )
        raise UserError(f"A top-k follows modules of different kinds; say which are the routers: {listed}.")
    return routers


def detect_router(watch: Watch, name: str) -> DetectedRouter:
    """Return what a pass shows of a router: K where it is clear, and what its logits went through."""
    calls = [call for _, call in _deciding(watch, name, inside=False)]
    counts = [call.count for call in calls]
    # K calls of argmax, each masking the earlier choices, choose K experts together.
    if len(counts) > 1 and set(counts) == {1} and _are_distinct(calls):
        counts = [len(counts)]
    activation = next(
        (call.origin.activation for call in calls if call.origin and call.origin.activation), None
    )
    return DetectedRouter(name, counts[0] if len(counts) == 1 else None, activation)


def choices_of(watch: Watch, name: str, top_k: int, *, inside: bool) -> list[SeenChoice]:
    """Return what may be the choice of ``top_k`` experts for a router.

    That is a call that chooses so many, or as many calls as that which choose one each, all different.

    Args:
        watch: of a pass.
        name: of the router.
        top_k: K.
        inside: calls that the router makes itself, and not those that choose from its output.
    """
    deciding = _deciding(watch, name, inside=inside)
    by_one_call = [
        SeenChoice((location,), (call,)) for location, call in deciding if call.count in (None, top_k)
    ]
    if by_one_call or len(deciding) != top_k:
        return by_one_call
    locations, calls = zip(*deciding, strict=True)
    is_one_each = all(call.count == 1 for call in calls) and len({call.scores.shape for call in calls}) == 1
    return [SeenChoice(locations, calls)] if is_one_each and _are_distinct(calls) else []


def _are_distinct(calls: Sequence[HookedChoice]) -> bool:
    """Whether calls that choose one expert each choose different ones for every token."""
    experts = [call.experts for call in calls]
    if any(choice.shape != experts[0].shape for choice in experts):
        return False
    ordered = torch.cat(experts, -1).sort(-1).values
    return not bool((ordered[..., 1:] == ordered[..., :-1]).any())


def _origins(watch: Watch) -> list[ScoresOrigin]:
    """Return from what experts were chosen, in the order of the pass."""
    calls = [
        call
        for (_, inside), calls in watch.calls.items()
        if not inside
        for call in calls
        if call.along_experts
    ]
    return list(dict.fromkeys(call.origin for call in calls if call.origin is not None))


def _deciding(watch: Watch, name: str, *, inside: bool) -> list[tuple[ChoiceAt, HookedChoice]]:
    """Return the choices among experts that follow the output of a module, or that it makes itself.

    If there is a ``topk``, a maximum is not routing (but a stable softmax, or a count of the load).
    """
    calls = [
        (ChoiceAt(name, number, inside), call)
        for number, call in enumerate(watch.calls.get((name, inside), []))
        if call.along_experts
    ]
    return [(location, call) for location, call in calls if call.function == "topk"] or calls


def _no_choice(net: nn.Module, watch: Watch) -> str:
    """Return the sentence for a pass in which no module's output is followed by a choice of experts."""
    crossed = [
        name
        for (name, inside), calls in watch.calls.items()
        if not inside and any(call.function == "topk" and not call.along_experts for call in calls)
    ]
    if crossed:
        return (
            f"Experts choose their tokens here: after {crossed[0]}, a top-k runs over the tokens and not over the "
            "experts. Such a router cannot be read by hooks; write an adapter (docs/contributing/adding-an-adapter.md)."
        )
    shared = _shares(net, watch.wide)
    if shared:
        return (
            f"Every token gets a share of every expert: {shared} gives a weight to each expert, and no top-k follows "
            "it, so there is no choice to compare."
        )
    sentence = (
        "No module was found whose output is followed by a top-k; name the routers (routers: a glob over module "
        "names, or a class), and how they are read, if their logits are no module's output."
    )
    choosing = [
        name
        for (name, inside), calls in watch.calls.items()
        if inside and any(call.function == "topk" for call in calls)
    ]
    if choosing:
        # The innermost one: modules around it contain the call as well.
        innermost = max(choosing, key=lambda name: name.count("."))
        sentence += (
            f" {innermost} runs a top-k itself: if it returns its choice, read: {{indices: 0, weights: 1}}."
        )
    return sentence


def _shares(net: nn.Module, wide: Mapping[str, int]) -> str:
    """Return the first module that gives as many numbers as there are experts around it; empty if there is none."""
    for name, size in wide.items():
        block = find_block(net, name, size)
        # A list of as many modules: a tensor may have as many rows for another reason.
        if block is not None and block.name and all(index is None for _, index in block.parameters[0]):
            return name
    return ""


def unwrap(net: nn.Module) -> nn.Module:
    """Return the module itself where ``torch.compile`` or data parallelism wraps it: they pass hooks by."""
    while True:
        if isinstance(net, nn.DataParallel | nn.parallel.DistributedDataParallel):
            net = net.module
        elif hasattr(net, "_orig_mod"):  # naming the class of torch.compile would import the compiler
            net = net.get_submodule("_orig_mod")
        else:
            return net
