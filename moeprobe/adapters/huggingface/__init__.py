"""Mixture-of-experts language models of Hugging Face's library ``transformers`` (optional: the extra ``hf``).

``hf:LOCATION``, where LOCATION is a folder that ``save_pretrained`` wrote (weights in safetensors, with a fast
tokenizer), a GGUF file, or a name on the hub. Quantized weights are dequantized. Code that a model brings along is
never run.

Routers are found by class: the library's models say of which class their ``router_logits`` are recorded. What their
outputs mean is described in ``outputs``, and whether experts follow them is tried out in ``expert_check``. A model is
opened with the head that it was saved with (``heads``). A multimodal model gets texts, or pictures with a prompt
(``picture_model``). In an encoder-decoder model, the encoder is probed.

Axes: B texts, T tokens, E experts, K choices, D width.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.adapters.base import Adapter, Checkpoint, PassEnd, layers_before, wanted_layers
from moeprobe.adapters.huggingface import heads, long_inputs, outputs, placing, replay, routers
from moeprobe.adapters.huggingface.expert_check import ExpertCheck, check_experts
from moeprobe.adapters.huggingface.files import describe_files, framing_of
from moeprobe.adapters.huggingface.opening import open_model
from moeprobe.adapters.huggingface.outline import check_routers, describe_model
from moeprobe.adapters.huggingface.pictures import PicturedBatch
from moeprobe.adapters.huggingface.router_rows import rows_of_model
from moeprobe.adapters.huggingface.settings import split_settings
from moeprobe.adapters.huggingface.unopened import open_outline
from moeprobe.errors import UserError
from moeprobe.inputs.texts import TextFraming, TokenBatch, Tokenizer
from moeprobe.routing.parts import Weight, weights_of
from moeprobe.routing.record import LayerRouting, RoutingTrace, order_choices
from moeprobe.routing.router_rows import RouterRows
from moeprobe.runtime.device import AUTO
from moeprobe.runtime.files import Scratch
from moeprobe.runtime.foreign_errors import running
from moeprobe.runtime.placement import WeightPlacement

# Tokens of the pass from which routers are learned, and texts and tokens of the one that checks their experts.
_LESSON = 24
_CHECKED = (2, 16)


class HuggingfaceAdapter(Adapter):
    """A mixture-of-experts language model of Hugging Face's ``transformers``, ready to be probed.

    Gates are the router's softmax (or sigmoid, …) over all experts, before the chosen ones are rescaled to any sum;
    where its weights are in proportion to no such function, they are the weights themselves.

    Args:
        model: put into evaluation mode.
        trained_capacity: keep the capacity of routers that have one; False lifts it.

    Attributes:
        dense_layers: blocks of the model that have no router.
        class_names: of a classifier, sorted; empty for other models.
        chunk_length: tokens of a longer text that are read at once; None = all.
        device: where token ids are sent, and routing and scores come back to.
        expert_checks: whether experts get what their routers say, for one layer of each kind.
        form: in which its files hold its weights; empty of plain safetensors.

    Raises:
        UserError: no router is recorded, one does not say what it chose, its experts do not follow it, or the model's
            own code raises.
    """

    takes_settings = True
    _offload: Scratch | None = None

    def __init__(self, model: Any, *, trained_capacity: bool = False) -> None:
        self.model = model.eval().requires_grad_(False)
        self.form: dict[str, Any] = {}
        # Each text is read once.
        model.config.get_text_config().use_cache = False
        self._body = heads.text_part(model)
        self._head = heads.head_of(self._body)
        self.class_names = self._head.class_names
        self._embedding: Any = self._body.get_input_embeddings()
        self.group_images = 1
        self.chunk_length: int | None = None
        self._limited = routers.set_capacity(self._body, trained=trained_capacity)
        self._layers = check_routers(model)
        self.device = placing.input_device(self._embedding)
        self._rms = replay.root_mean_square(self._embedding, self.device)
        self._learn()
        self.layer_names = tuple(self._layers)
        self.dense_layers = routers.blocks_without(
            self._body, [layer.module for layer in self._layers.values()]
        )
        self.router_name = model.config.model_type
        self.expert_checks = tuple(self.try_experts())

    @property
    def dtype(self) -> str:
        """Precision of the weights, e.g. "bfloat16"."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def width(self) -> int:
        """D of the embeddings."""
        return self._embedding.weight.shape[-1]

    def framing(self, tokenizer: Tokenizer) -> TextFraming:
        """Return how a text is brought to the input, cut off after 128 tokens, or what fits the model."""
        return framing_of(self.model.config, tokenizer, self.width)

    def trace(
        self, images: TokenBatch, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        """Run the model on texts; its scores belong to the next token. See ``routing.Traceable``."""
        if not isinstance(images, TokenBatch):
            raise UserError("The model reads texts: it takes a TokenBatch.")
        texts = images.to(self.device)
        selected_layers = wanted_layers(layers, self.layer_names)
        with_scores = logits and self._head.has_scores
        if long_inputs.is_long(texts, self.chunk_length):
            return long_inputs.trace(self, texts, selected_layers, with_scores=with_scores)
        output = None
        with (
            torch.inference_mode(),
            self._watching(selected_layers, stop=not with_scores),
            replay.noise_added(self._embedding, texts, unit=self._rms),
        ):
            with suppress(PassEnd):
                output = self._forward(texts, with_scores=with_scores)
            traced = {name: self._routing(name, texts) for name in selected_layers}
        return output, RoutingTrace(traced)

    def trace_ahead(
        self, images: TokenBatch, *, layers: Sequence[str] | None = None
    ) -> tuple[RoutingTrace, dict[str, Tensor]]:
        """Apply each router to the input of the one before, too; see ``routing.AheadRoutable``."""
        names = wanted_layers(layers, self.layer_names)
        before = layers_before(names, self.layer_names)
        called = {*names, *before.values()}
        with long_inputs.reading_whole(self), routers.calls_of(self._layers, called) as calls:
            _, routing = self.trace(images, layers=names, logits=False)
        ahead = {}
        for name, earlier in before.items():
            scores = routers.scores_for(name, self._layers[name], calls[name], calls[earlier].tokens)
            ahead[name] = scores.to(self.device).reshape(*routing.layers[name].valid.shape, -1)
        return routing, ahead

    def read_in_chunks(self, length: int) -> None:
        """Read longer texts in chunks from now on; raises ``UserError`` where that changes routing."""
        long_inputs.check_chunks(self)
        self.chunk_length = length

    @property
    def body(self) -> nn.Module:
        """The part of the model that is run."""
        body: nn.Module = self._body
        return body

    @property
    def blocks(self) -> nn.ModuleList | None:
        """The list of blocks that holds the routers; None where they are in no list."""
        holder = replay.block_list(self._body, next(iter(self._layers.values())))
        return None if holder is None else holder[0]

    def embeddings(self, texts: TokenBatch) -> Tensor:
        """Return what enters the first of the blocks ``(B, T, ...)``."""
        assert self.blocks is not None
        entered: list[Tensor] = []

        def keep(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            entered.append(args[0] if args else kwargs["hidden_states"])
            raise PassEnd

        with torch.inference_mode(), ExitStack() as stack:
            stack.callback(self.blocks[0].register_forward_pre_hook(keep, with_kwargs=True).remove)
            with suppress(PassEnd):
                self._run(texts.to(self.device))
        return entered[0]

    def router_modules(self) -> list[nn.Module]:
        """Return the modules that route; see ``routing.HasRouterModules``."""
        return [layer.module for layer in self._layers.values()]

    @property
    def layers(self) -> dict[str, routers.RouterLayer]:
        """The routers by layer, in the order in which they fire."""
        return self._layers

    def router_rows(self) -> dict[str, RouterRows | None]:
        """Return the rows that routers score experts by; see ``routing.HasRouterRows``."""
        return rows_of_model(self)

    def weights(self) -> list[Weight]:
        """Return the parameters by the part that they are of; see ``routing.Weighed``."""
        experts = [layer.experts for layer in self._layers.values() if layer.experts is not None]
        return weights_of(self.model, routers=self.router_modules(), experts=experts)

    def log_probabilities(self, texts: TokenBatch) -> Tensor:
        """Return how probable each token is after those before it; see ``routing.Scored``."""
        batch = texts.to(self.device)
        if long_inputs.is_long(batch, self.chunk_length):
            return long_inputs.log_probabilities(self, batch)
        with torch.inference_mode(), replay.noise_added(self._embedding, batch, unit=self._rms):
            return replay.log_probabilities(self._run, self._head, batch)

    def check_replay(self, layers: Sequence[str] | None = None) -> None:
        """Raise ``UserError`` unless layers can be made to repeat choices; see ``routing.Rerouted``."""
        replay.check_replay(self._layers, wanted_layers(layers, self.layer_names))

    def replayed_log_probabilities(
        self, texts: TokenBatch, routing: RoutingTrace, *, gates: str = "recomputed"
    ) -> Tensor:
        """Return how probable each token is where the layers repeat a routing; see ``routing.Rerouted``."""
        with self.repeating(routing, gates=gates):
            return self.log_probabilities(texts)

    @contextmanager
    def repeating(self, routing: RoutingTrace, *, gates: str) -> Iterator[None]:
        """Let the layers repeat a routing of sequences; ``gates`` as of ``replayed_log_probabilities``."""
        replay.check_replay(self._layers, list(routing.layers), routing)
        routing = long_inputs.on_device(routing, self.device)
        with long_inputs.reading_whole(self), replay.replaying(self._layers, routing, gates=gates):
            yield

    def text_trunks(self, texts: TokenBatch, *, layers: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Return how far a pass has come at each layer; see ``routing.ResumableText``."""
        names = wanted_layers(layers, self.layer_names)
        batch = texts.to(self.device)
        with (
            torch.inference_mode(),
            self._watching(names, stop=True),
            replay.noise_added(self._embedding, batch, unit=self._rms),
            replay.entering(self._body, {name: self._layers[name] for name in names}) as hidden,
            suppress(PassEnd),
        ):
            self._forward(batch, with_scores=False)
        return hidden

    def resumed_log_probabilities(
        self,
        layer: str,
        hidden: Tensor,
        texts: TokenBatch,
        routing: RoutingTrace,
        *,
        gates: str = "recomputed",
    ) -> Tensor:
        """Return how probable tokens are in passes taken up at a layer; see ``routing.ResumableText``."""
        with replay.resuming(self._body, self._layers[layer], hidden):
            return self.replayed_log_probabilities(texts, routing, gates=gates)

    def describe(self) -> dict[str, Any]:
        """Return the model's sizes; active parameters are those that one token meets, K of E experts."""
        rows = [layer.describe(name) for name, layer in self._layers.items()]
        return describe_model(
            self.model,
            rows,
            dtype=self.dtype,
            dense_layers=self.dense_layers,
            experts_follow_router=[str(check) for check in self.expert_checks],
            **self.form,
        )

    def _forward(self, texts: TokenBatch, *, with_scores: bool, **keywords: Any) -> Tensor | None:
        """Return the scores ``(B, vocabulary)`` of the token after the last one, or after ``last``, if wanted."""
        if not with_scores:
            self._run(texts)
            return None
        if self._head.predicts == heads.CLASSES:
            scores: Tensor = self._run(texts).logits
            return scores[:, list(self._head.order)].float().to(self.device)
        rows, last = torch.arange(len(texts), device=texts.ids.device), keywords.pop("last", texts.last)

        # The head is the most expensive layer: it sees the last token of each text alone.
        def keep_last(head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            hidden = inputs[0]
            return (hidden[rows.to(hidden.device), last.to(hidden.device)][:, None], *inputs[1:])

        assert self._head.module is not None
        with ExitStack() as stack:
            stack.callback(self._head.module.register_forward_pre_hook(keep_last).remove)
            scores = self._run(texts, **keywords).logits
        return scores[:, 0].float().to(self.device)

    def _run(self, texts: TokenBatch, **keywords: Any) -> Any:
        """Return the output of the library's own model, whose errors are its owner's; ``PassEnd`` passes.

        A classifier looks for the last token by the id of its padding.
        """
        ids, stopped = texts.ids, False
        keywords |= texts.pictures if isinstance(texts, PicturedBatch) else {}
        text_config = self._body.config.get_text_config()
        own_padding = text_config.pad_token_id
        try:
            # The padding's id is set for this pass only.
            if self._head.predicts in (heads.CLASSES, heads.SCORE):
                ids, text_config.pad_token_id = heads.pad_texts(self._body.config, texts)
            with running(f"The model of type {self._body.config.model_type!r}"):
                try:
                    return self._body(**{"input_ids": ids, "attention_mask": texts.present.long()} | keywords)
                # Caught inside, since ``running`` would report it as an error of the model.
                except PassEnd:
                    stopped = True
        finally:
            text_config.pad_token_id = own_padding
        if stopped:
            raise PassEnd
        return None

    @contextmanager
    def _watching(self, names: Sequence[str], *, stop: bool) -> Iterator[None]:
        """Keep the outputs of the named routers; ``stop`` ends the pass after the last of them."""
        with ExitStack() as stack:
            for name in names:
                layer = self._layers[name]
                layer.fired.clear()
                # Cleared on the way out, too: outputs hold memory on the device.
                stack.callback(layer.fired.clear)
                routers.watch(layer, stack, stop=stop and name == names[-1])
            yield

    def _routing(self, name: str, texts: TokenBatch) -> LayerRouting:
        layer, shape = self._layers[name], texts.ids.shape
        # A router that fires twice (recomputation, shared layers) has no single decision.
        if len(layer.fired) != 1:
            raise UserError(
                f"The router of {name} fired {len(layer.fired)} times in one pass; once is expected."
            )
        assert layer.reader is not None
        (fired,) = layer.fired
        logits, choice = layer.reader.logits(fired), layer.reader.choice(fired)
        if len(logits) != shape.numel():
            raise UserError(
                f"The router of {name} saw {len(logits)} tokens where the batch has {shape.numel()}."
            )
        gates = layer.reader.gates(logits, choice)
        if not gates.isfinite().all():
            raise UserError(
                f"The gates of {name} are not finite (NaN or infinity), so no expert is the highest; are the model's "
                "weights sound, in the precision that it is loaded in?"
            )
        scores = layer.reader.scores(logits, gates)
        ordered_by = gates if scores is None else scores
        selected, processed = order_choices(choice.selected, choice.processed, ordered_by)
        # Layers may be on several devices.
        gates, selected, processed = (value.to(self.device) for value in (gates, selected, processed))
        scores = None if scores is None else scores.to(self.device)
        position = torch.arange(shape[1], device=texts.ids.device)
        return LayerRouting(
            gates=gates.reshape(*shape, -1),
            scores=None if scores is None else scores.reshape(*shape, -1),
            selected=selected.reshape(*shape, -1),
            processed=processed.reshape(*shape, -1),
            valid=texts.ordinary | (texts.present & (position < texts.num_prefix_tokens)),
            grid=None,
            num_prefix_tokens=texts.num_prefix_tokens,
            gates_sum_to_one=layer.reader.gates_sum_to_one,
            token_local=not self._limited,
            router=self.router_name,
        )

    def _learn(self) -> None:
        """Learn how each router is read, and in which order they fire."""
        texts = self._trial(1, _LESSON)
        order: list[str] = []
        with torch.inference_mode(), ExitStack() as stack, self._watching(list(self._layers), stop=False):
            for name, layer in self._layers.items():
                handle = layer.module.register_forward_hook(lambda *_, name=name: order.append(name))
                stack.callback(handle.remove)
            self._forward(texts, with_scores=False)
            for name in dict.fromkeys(order):
                layer = self._layers[name]
                with placing.in_reach(layer.module):
                    candidates = [
                        value
                        for key, value in [*layer.module.named_parameters(), *layer.module.named_buffers()]
                        if key.rpartition(".")[2] not in ("weight", "bias")
                    ]
                layer.reader = outputs.learn(layer.fired[0], logits_at=layer.logits_at, candidates=candidates)
                if layer.reader is None:
                    raise UserError(
                        f"The routers of a model of type {self.model.config.model_type!r} "
                        f"({type(layer.module).__name__}) do not say which experts they chose."
                    )
        if not order:
            raise UserError(
                f"No router of the model of type {self.model.config.model_type!r} runs on texts, so there is no "
                "routing to probe."
            )
        # Those that never run on texts, as those of pictures, take no part in the names.
        paths = list(dict.fromkeys(order))
        self._layers = {
            name: self._layers[path] for name, path in zip(routers.short_names(paths), paths, strict=True)
        }

    def _trial(self, rows: int, length: int, *, with_zeros: bool = True) -> TokenBatch:
        """Return texts of ids all over the vocabulary, without the last, which often represent pictures.

        ``with_zeros`` keeps tokens whose embedding is zero, such as padding: experts give nothing for them.
        """
        vocabulary = self._embedding.weight.shape[0]
        ids = torch.arange(max(vocabulary // 2, 1), device=self.device)
        if not with_zeros:
            with torch.inference_mode():
                ids = ids[self._embedding(ids).flatten(1).any(1)]
        number = rows * length
        ids = ids[torch.arange(number, device=self.device) * max(len(ids) // number, 1) % len(ids)]
        mask = torch.ones(rows, length, dtype=torch.bool, device=self.device)
        return TokenBatch(ids.reshape(rows, length), mask, mask, 0)

    def try_experts(self) -> Iterator[ExpertCheck]:
        """Yield whether experts get what their router says, for the first layer of each kind.

        Raises:
            UserError: they process other tokens.
        """
        texts = self._trial(*_CHECKED, with_zeros=False)
        kinds: dict[tuple[Any, ...], str] = {}
        for name, layer in self._layers.items():
            kinds.setdefault(
                (type(layer.module), type(layer.experts), layer.reader and layer.reader.form), name
            )
        for name in kinds.values():
            yield check_experts(
                name,
                self._layers[name],
                self._body,
                lambda name=name: self.trace(texts, layers=[name], logits=False)[1].layers[name],  # type: ignore[misc]
                run_until=lambda module: self._output_of(module, texts),
            )

    def _output_of(self, module: nn.Module, texts: TokenBatch) -> Tensor | None:
        """Return the output ``(N, D)`` of a module, with a row for each token; None where it has none such."""
        collected: list[Any] = []

        def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            collected.append(output[0] if isinstance(output, tuple) else output)
            raise PassEnd

        with torch.inference_mode(), ExitStack() as stack:
            stack.callback(module.register_forward_hook(keep).remove)
            with suppress(PassEnd):
                self._run(texts)
        (output,) = collected or (None,)
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return None
        if output.shape[:2] == texts.ids.shape:
            return output.flatten(0, 1).flatten(1)
        return output if output.ndim == 2 and len(output) == texts.ids.numel() else None

    @classmethod
    def open(
        cls,
        reference: str,
        *,
        device: torch.device,
        trained_capacity: bool,
        group_images: int,
        dtype: str = AUTO,
        prompt: str | None = None,
        image_size: int | None = None,
        placement: WeightPlacement | None = None,
    ) -> Checkpoint:
        """Load a folder of ``save_pretrained``, or a name on the hub, in the precision ``dtype``.

        Its weights are on the device, or where the ``placement`` puts them. Settings follow it (``settings``), such as
        ``,top_k=K`` or ``,dtype=bfloat16``. With a ``prompt`` it reads pictures of ``image_size`` (None = its
        processor's own), each beside this prompt; otherwise texts.

        Raises:
            UserError: there is no such model, it is damaged, needs code of its own, or has no routers to probe; or it
                is to read pictures, and cannot.
        """
        return open_model(
            cls,
            reference,
            device=device,
            trained_capacity=trained_capacity,
            dtype=dtype,
            prompt=prompt,
            image_size=image_size,
            placement=placement,
        )

    @classmethod
    def outline(
        cls,
        reference: str,
        *,
        device: torch.device,
        dtype: str = AUTO,
        placement: WeightPlacement | None = None,
    ) -> Checkpoint | None:
        """Return a model without its weights, to check and count a run; None = it has to be loaded."""
        return open_outline(*split_settings(reference), device=device, dtype=dtype, placement=placement)

    @classmethod
    def describe_unopened(cls, reference: str) -> dict[str, Any]:
        """Describe a model by its configuration and the headers of its files; see ``adapters.base.Adapter``."""
        return describe_files(*split_settings(reference))
