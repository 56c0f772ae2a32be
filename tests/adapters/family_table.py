"""What moeprobe does with each family of the installed ``transformers``, as a page of the reference says it.

``python -m tests.adapters.family_table`` writes the page; ``test_every_family`` compares it. Which experts get a token
is found out here by changing the parameters of one expert and observing the output of the whole block: the adapter's
own check takes no part in it.

Axes: B texts, T tokens, E experts, K choices.
"""

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from moeprobe.adapters.huggingface import HuggingfaceAdapter, replay
from moeprobe.errors import UserError
from moeprobe.inputs.texts import TokenBatch
from moeprobe.routing.record import LayerRouting, RoutingTrace
from moeprobe.runtime.torchvision_compat import import_with_operators
from tests.adapters import families

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "families.md"
_HEAD = """# Families of language models

Every family of `transformers` {version} whose router logits the library records, made small with random weights.
*Choice* is `yes` where a change of one expert's weights changes exactly the tokens that the record assigns to it.
*Replay* is `yes` where other choices can be repeated, and reach the experts named. Models that read pictures are fed
texts alone.

{right} of {all} families have the right choice, and {replayed} repeat other choices. The others are refused with the
reason. `python -m tests.adapters.family_table` writes this page, and a slow test compares it.

Families that came later, in `transformers` 5.24, have the right choice and repeat other choices, too: `hy_v4_vl`,
`inkling2_loop` and `lara_mini`. Whole models of `llama4` fail in that release itself; use another one for them.

| family | opened as | choice | replay | predicts | reads pictures | why not |
|---|---|---|---|---|---|---|
"""
# A weight below this share of a token's largest, or below the second, may be lost in a block's rounded output.
_SMALL, _TINY = 1e-2, 1e-5


@dataclasses.dataclass(frozen=True)
class Row:
    """A family: the class of its model, what is right, what its head predicts, and why something is not."""

    family: str
    opened_as: str
    choice: bool
    replay: bool
    predicts: str
    pictures: bool
    reason: str = ""

    def line(self) -> str:
        """The row of the table."""
        cells = [
            self.family, self.opened_as or "–", _word(self.choice), _word(self.replay), self.predicts or "–",
            _word(self.pictures), self.reason,
        ]  # fmt: skip
        return f"| {' | '.join(cells)} |"


def _word(value: bool) -> str:
    return "yes" if value else "no"


def batch(*, rows: int = 2, length: int = 11) -> TokenBatch:
    """Random tokens, none of them padding."""
    ids = torch.randint(3, 48, (rows, length), generator=torch.Generator().manual_seed(5))
    present = torch.ones(rows, length, dtype=torch.bool)
    return TokenBatch(ids, present, present, 0)


@contextmanager
def shifted(experts: nn.Module, number: int) -> Iterator[None]:
    """Add to each parameter of one expert, and take the model back to its bits."""
    if isinstance(experts, nn.ModuleDict | nn.ModuleList):
        values: list[Tensor] = list(list(experts.children())[number].parameters())
    else:
        named = [(name, value) for name, value in experts.named_parameters() if "router" not in name]
        sizes = {len(value) for _, value in named if value.ndim == 3}
        if sizes:
            values = [value[number] for _, value in named if value.ndim > 1 and len(value) in sizes]
        else:  # DBRX: experts below one another
            count: int = experts.num_experts  # type: ignore[assignment]
            values = [value.unflatten(0, (count, -1))[number] for value in experts.parameters()]
    kept = [value.clone() for value in values]
    with torch.no_grad():
        for value in values:
            value.add_(0.5)
        try:
            yield
        finally:
            for value, original in zip(values, kept, strict=True):
                value.copy_(original)


def place_of(body: nn.Module, router: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The experts of a router, and the innermost module around both that is called.

    Not the block of the model: some mix neighboring tokens behind the experts (Inkling).
    """
    path = next(name for name, module in body.named_modules() if module is router)
    parts = path.split(".")
    parent = body.get_submodule(".".join(parts[:-1]))
    called: list[nn.Module] = []
    around = [body.get_submodule(".".join(parts[:depth])) for depth in range(len(parts) - 1, 0, -1)]
    handles = [
        module.register_forward_hook(lambda module, args, output: called.append(module)) for module in around
    ]
    texts = batch()
    with torch.inference_mode():
        body(input_ids=texts.ids, attention_mask=texts.present.long())
    for handle in handles:
        handle.remove()
    # JetMoE: its experts are two parameters beside the router.
    return getattr(parent, "experts", None) or parent, next(module for module in around if module in called)


def count_of(experts: nn.Module) -> int:
    """How many experts have parameters."""
    if isinstance(experts, nn.ModuleDict | nn.ModuleList):
        return sum(1 for module in experts.children() if list(module.parameters()))
    deep = [len(value) for value in experts.parameters() if value.ndim == 3]
    return min(deep) if deep else int(experts.num_experts)  # type: ignore[arg-type]


def follows(routing: LayerRouting, experts: nn.Module, observe: Callable[[], Tensor]) -> bool:
    """Whether a change of each expert changes exactly the tokens of the record.

    ``observe`` runs the model and returns the block's output ``(B * T, D)``.
    """
    before = observe()
    selected = routing.selected.flatten(0, 1).long()
    gates = routing.gates.flatten(0, 1).double()
    for number in range(count_of(experts)):
        with shifted(experts, number):
            moved = (observe() - before).abs().amax(1) > 1e-6 * before.abs().max()
        has = ((selected == number) & routing.processed.flatten(0, 1)).any(1)
        taken = gates.gather(1, selected.clamp_min(0)).amax(1)
        is_small = (gates[:, number] < _SMALL * taken) | (gates[:, number] < _TINY)
        if bool(((moved != has) & ~(has & is_small)).any()):
            return False
    return bool(torch.equal(observe(), before))


def observer(adapter: HuggingfaceAdapter, block: nn.Module, texts: TokenBatch) -> Callable[[], Tensor]:
    """A function that runs the library's model and returns the output of a block ``(B * T, D)``."""

    def observe() -> Tensor:
        seen: list[Tensor] = []
        handle = block.register_forward_hook(
            lambda *args: seen.append(args[-1][0] if isinstance(args[-1], tuple) else args[-1])
        )
        with torch.inference_mode():
            adapter._body(input_ids=texts.ids, attention_mask=texts.present.long())
        handle.remove()
        return seen[0].reshape(texts.ids.numel(), -1).double()

    return observe


def choice_is_right(adapter: HuggingfaceAdapter) -> bool:
    """Whether all layers' records say which experts ran."""
    texts = batch()
    routing = adapter.trace(texts, logits=False)[1]
    for name, layer in adapter._layers.items():
        experts, block = place_of(adapter._body, layer.module)
        if not follows(routing.layers[name], experts, observer(adapter, block, texts)):
            return False
    return True


def replay_is_right(adapter: HuggingfaceAdapter) -> bool:
    """Whether other choices reach the experts that they name, and the model's own change nothing."""
    texts = batch()
    routing = adapter.trace(texts, logits=False)[1]
    for name, layer in adapter._layers.items():
        own = routing.layers[name]
        experts, block = place_of(adapter._body, layer.module)
        observe = observer(adapter, block, texts)
        before = observe()
        with replay.replaying(adapter._layers, RoutingTrace({name: own}), gates="recomputed"):
            repeated = observe()
        if float((repeated - before).abs().max()) > 1e-4 * float(before.abs().max()):
            return False
        other = ((own.selected.long() + 3) % count_of(experts)).to(torch.int16)
        others = dataclasses.replace(
            own, selected=torch.where(own.selected < 0, -1, other), gates=torch.full_like(own.gates, 1 / 8)
        )

        def observe_others(
            observe: Callable[[], Tensor] = observe, name: str = name, others: LayerRouting = others
        ) -> Tensor:
            with replay.replaying(adapter._layers, RoutingTrace({name: others}), gates="replayed"):
                return observe()

        if not follows(others, experts, observe_others):
            return False
    return True


def row_of(family: str) -> Row:
    """Try one family."""
    kind = families.complete_class(family)
    pictures = "vision_config" in getattr(kind.config_class, "sub_configs", {})
    model = families.complete(family)
    try:
        adapter = HuggingfaceAdapter(model)
    except UserError as error:
        return Row(
            family, "", False, False, "", pictures, str(error).split(": a change")[0].rstrip(".") + "."
        )
    choice = choice_is_right(adapter)
    reason = ""
    try:
        adapter.check_replay()
        repeats = replay_is_right(adapter)
    except UserError as error:
        repeats, reason = False, f"Replay: {error}"
    return Row(family, kind.__name__, choice, repeats, adapter._head.predicts, pictures, reason)


def page(rows: list[Row]) -> str:
    """The page of the reference."""
    import transformers

    numbers = {
        "version": transformers.__version__,
        "all": len(rows),
        "right": sum(row.choice for row in rows),
        "replayed": sum(row.replay for row in rows),
    }
    return _HEAD.format(**numbers) + "\n".join(row.line() for row in rows) + "\n"


def main() -> None:
    """Write the page."""
    warnings.simplefilter("ignore")
    import_with_operators("torchvision")
    torch.set_num_threads(1)
    rows = []
    for family in families.recorded():
        rows.append(row_of(family))
        print(rows[-1].line(), flush=True)
    PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
