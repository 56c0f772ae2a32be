"""The work of ``agree``: the first form reads all inputs, then each other form does, then the first once more.

No two forms need be in memory together. What one did is kept in records (``records``), from which the next repeats its
choices. At last the first form repeats the choices of the others.

Axes: B inputs, T tokens.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations import Probe
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.metrics.analyses.changed_margins import ChangedMargins, ReferenceMargins
from moeprobe.metrics.analyses.form_loss import FormLoss, FormLosses
from moeprobe.metrics.analyses.layer_growth import LayerGrowth
from moeprobe.metrics.analyses.touched import Touched
from moeprobe.metrics.base import LayerAnalysis, OutputAnalysis, OutputPair
from moeprobe.metrics.token_kinds import differ, patches
from moeprobe.probes.agree import AGAINST, Agree
from moeprobe.probes.agree.forms import ModelForm, check_forms, check_inputs, check_tokens
from moeprobe.probes.agree.records import FormPass, Records
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.batch_sums import (
    labels_of,
    layer_pairs,
    load_batches,
    log_probability,
    readable_batches,
    sums_of_layer,
    sums_of_output,
    to_host,
)
from moeprobe.probes.engine.blank_passes import once
from moeprobe.probes.engine.measurement import Measurement, Sums
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.recorded.engine.across import Across
from moeprobe.results.folder import Result
from moeprobe.results.stored import SumsStore
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.routing.record import LayerPair, RoutingTrace, join_batches
from moeprobe.runtime.device import choose_device
from moeprobe.runtime.progress import Advance, Progress


class _RefusedError(Exception):
    """A form cannot repeat choices of another."""


def _form_of(model: Checkpoint, layers: tuple[str, ...] | None) -> ModelForm:
    """Return what a model can do; it is found once, as models may take turns in memory."""
    return once(model, ("form", layers), lambda: ModelForm.of(model, layers))


class Forms(Measurement[Result]):
    """Passes of several forms over the same inputs, and passes that repeat the choices of another form."""

    in_place = True
    probe: Agree

    @classmethod
    def learn(cls, probe: Probe[Any], model: Checkpoint, options: Options) -> None:
        """Make the passes over a blank input that the checks need, while the model is in memory."""
        super().learn(probe, model, options)
        _form_of(model, options.layers)

    def make_spec(self) -> RunSpec:
        """Return the run specification, without analyses of outputs that the forms do not give."""
        spec = super().make_spec()
        check_inputs(spec, self.models)
        self.forms = {model.name: _form_of(model, spec.layers) for model in self.models}
        check_forms(self.forms)
        self.records = {model.name: Records() for model in self.models}
        # Why a form and the first cannot repeat each other's choices, by its name.
        self.refusals = {name: text for name in self.forms if (text := self._refusal(name)) is not None}
        form = self.forms[self.models[0].name]
        omitted = () if form.answers else (OutputAnalysis,) if form.writes else (OutputAnalysis, FormLoss)
        return dataclasses.replace(
            spec, analyses=tuple(analysis for analysis in spec.analyses if not isinstance(analysis, omitted))
        )

    def make_request(self) -> dict[str, Any]:
        """Return everything that the numbers depend on."""
        request = super().make_request()
        if not any(isinstance(analysis, FormLoss) for analysis in self.spec.analyses):
            request["analyses"] = [name for name in request["analyses"] if name != "form_loss"]
        return request

    def routers(self, model: Checkpoint) -> Mapping[str, list[int]]:
        """Return the sizes of routers as they were by_name before the run."""
        return self.forms[model.name].routers

    @property
    def passes(self) -> int:
        """Forward passes per input of one form, before the first repeats the choices of the others."""
        return 4 if self.forms[self.models[0].name].writes else 2

    def run(
        self, spec: RunSpec, model: Checkpoint, *, parts: Path | None = None, progress: Advance | None = None
    ) -> tuple[SumsStore, list[str]]:
        """Return one form's sums per input; they are never read from parts, since the records would be missing."""
        return super().run(spec, model, progress=progress)

    def run_block(self, spec: RunSpec, model: Checkpoint) -> loop.RunBlock:
        """Return what runs the batches of a block by one form."""
        read = self._read_first if model.name == self.models[0].name else self._read_other
        return partial(_run_block, sums=read)

    def more_sums(self, watcher: Progress) -> list[SumsStore]:
        """Return the price of each other form, for which the first repeats its choices."""
        first, *models = self.models
        if not self.spec.of_output and not self.forms[first.name].writes:
            return []
        stores = []
        for model in models:
            watcher.start(f"{self.probe.kind}: {first.name} as {model.name} routes", self.num_images)
            # The numbers are about the other form, so they stand under its name.
            renamed = dataclasses.replace(first, name=model.name)
            block = partial(_run_block, sums=self._read_again)
            try:
                sums, _ = loop.run(self.spec, renamed, run_block=block, progress=watcher.advance)
            except _RefusedError as error:
                # Once more, without repeated choices: all inputs must have the same sums.
                self.refusals[model.name] = f"{error}"
                sums, _ = loop.run(self.spec, renamed, run_block=block)
            stores.append(sums)
        return stores

    def notes(self) -> list[str]:
        """Return why no share of the price is known to be routing."""
        notes = super().notes()
        if not self.forms[self.models[0].name].writes and not self.spec.of_output:
            return notes
        return notes + [
            f"the share of {name}'s price that is routing, since choices cannot be repeated"
            + (f": {reason.rstrip('.')}" if reason else "")
            for name, reason in self.refusals.items()
            if name != self.models[0].name
        ]

    def _read_first(self, spec: RunSpec, model: Checkpoint, batch: Batch | TextBatch) -> Sums:
        """Return the sums of the first form's batch against itself, run in halves."""
        inputs = batch.views[0]
        first = self._pass(spec, model, inputs)
        targets = None
        if first.scores is not None:
            labels = labels_of(spec, batch).to(first.scores.device)
            targets = labels.where(labels >= 0, first.scores.argmax(1))
            log_probs = log_probability(first.scores, targets)[:, None]
            first = dataclasses.replace(first, targets=targets, log_probs=log_probs)
        self.records[model.name].write(batch.image_ids, first)
        again = _join([self._pass(spec, model, part) for part in _halves(inputs, model.model.group_images)])
        if again.scores is not None:
            assert targets is not None
            again = dataclasses.replace(again, log_probs=log_probability(again.scores, targets)[:, None])
        record = self.records[model.name].read(batch.image_ids, _device_of(first.routing))
        sums = self._layer_sums(spec, model, batch, record, again.routing)
        return sums | self._output_sums(spec, model, batch, record, again)

    def _read_other(self, spec: RunSpec, model: Checkpoint, batch: Batch | TextBatch) -> Sums:
        """Return the sums of another form's batch against the first form; its outputs come later."""
        first_model, inputs = self.models[0], batch.views[0]
        form_pass = self._pass(spec, model, inputs)
        first = self.records[first_model.name].read(batch.image_ids, _device_of(form_pass.routing))
        if first.ids is not None and form_pass.ids is not None:
            check_tokens(first.ids, form_pass.ids, names=(first_model.name, model.name))
        if form_pass.scores is not None:
            assert first.targets is not None
            form_pass = dataclasses.replace(
                form_pass, log_probs=log_probability(form_pass.scores, first.targets)[:, None]
            )
        if model.name not in self.refusals:
            try:
                form_pass = dataclasses.replace(
                    form_pass, replayed=self._replay(model, inputs, form_pass, first)
                )
            except _RefusedError as error:
                self.refusals[model.name] = f"{error}"
        self.records[model.name].write(batch.image_ids, form_pass)
        return self._layer_sums(spec, model, batch, first, form_pass.routing)

    def _read_again(self, spec: RunSpec, model: Checkpoint, batch: Batch | TextBatch) -> Sums:
        """Return the outputs of another form, of whose name ``model`` is the first form, in a batch."""
        device = getattr(model.model, "device", None) or choose_device(self.options.device)
        first = self.records[self.models[0].name].read(batch.image_ids, device)
        form_pass = self.records[model.name].read(batch.image_ids, device)
        choices = None
        if model.name in self.refusals:
            form_pass = dataclasses.replace(form_pass, replayed=None)
        else:
            choices = self._replay(model, batch.views[0], first, form_pass)
        return self._output_sums(spec, model, batch, first, form_pass, choices)

    def _pass(self, spec: RunSpec, model: Checkpoint, inputs: Any) -> FormPass:
        """Return what a form does on inputs."""
        scores, routing = model.model.trace(inputs, layers=spec.layers_of(model.model), logits=spec.of_output)
        form_pass = FormPass.of(routing, inputs)
        if self.forms[model.name].writes:
            return dataclasses.replace(form_pass, log_probs=model.model.log_probabilities(inputs))  # type: ignore[attr-defined]
        return dataclasses.replace(form_pass, scores=scores if spec.of_output else None)

    def _refusal(self, name: str) -> str | None:
        """Return why a form and the first cannot repeat each other's choices; None where nothing speaks against it."""
        pair = [self.forms[name], self.forms[self.models[0].name]]
        if any(top_k == 0 for _, top_k in pair[0].routers.values()):
            return "its tokens do not choose"
        return next((form.refusal for form in pair if form.refusal is not None), None)

    def _replay(self, model: Checkpoint, inputs: Any, form_pass: FormPass, source: FormPass) -> Tensor:
        """Return log-probabilities ``(B, T)`` of a form that did ``form_pass``, with the choices of ``source``.

        Raises:
            _RefusedError: the form cannot repeat them.
        """
        routing, gates, any_model = source.routing, self.probe.gates, model.model
        assert form_pass.log_probs is not None
        targets = form_pass.targets if form_pass.targets is not None else source.targets
        try:
            if targets is None:
                replayed = any_model.replayed_log_probabilities(inputs, routing, gates=gates)  # type: ignore[attr-defined]
            else:
                scores = any_model.replay(inputs, routing, gates=gates)  # type: ignore[attr-defined]
                replayed = log_probability(scores, targets.to(scores.device))[:, None]
        except UserError as error:
            raise _RefusedError(f"{error}") from None
        log_probs = form_pass.log_probs.to(replayed.device, replayed.dtype)
        if gates == "replayed":
            return replayed
        # Where nothing is chosen otherwise, a repeated pass would add its own rounding.
        same = _same_choices(form_pass.routing, source.routing).to(replayed.device)
        return log_probs.where(same[:, None], replayed)

    def _layer_sums(
        self,
        spec: RunSpec,
        model: Checkpoint,
        batch: Batch | TextBatch,
        first: FormPass,
        routing: RoutingTrace,
    ) -> Sums:
        """Return the sums of all layers against the first form."""
        analyses = [analysis for analysis in spec.analyses if isinstance(analysis, LayerAnalysis)]
        across = Across((Touched(), LayerGrowth()), images=True)
        sums: Sums = {}
        for name, pair, _ in layer_pairs(spec, model, batch, first.routing, routing, 0):
            label = spec.label_of(model.model, name)
            of_layer = sums_of_layer(analyses, label, pair)
            if name in first.margins:
                cell = next((cell for cell in of_layer if cell.tokens == pair.view.modality.token), None)
                if cell is not None:
                    of_layer[cell] |= _margin_sums(pair, first.margins[name])
            sums |= of_layer
            across.add(label, pair, {})
        return sums if across.empty else across.join_layers(sums)

    def _output_sums(
        self,
        spec: RunSpec,
        model: Checkpoint,
        batch: Batch | TextBatch,
        first: FormPass,
        form_pass: FormPass,
        choices: Tensor | None = None,
    ) -> Sums:
        """Return the sums of the outputs; ``choices`` are of the first form with the form's choices."""
        if first.log_probs is None or form_pass.log_probs is None:
            return {}
        sides = [
            None if side is None else side.to(first.log_probs.device)
            for side in (form_pass.log_probs, form_pass.replayed, choices)
        ]
        assert sides[0] is not None
        columns = FormLoss().sums(FormLosses(first.log_probs, sides[0], *sides[1:]))
        if first.scores is not None and form_pass.scores is not None:
            labels = labels_of(spec, batch).to(form_pass.scores.device)
            pair = OutputPair(first.scores, form_pass.scores, labels)
            columns |= sums_of_output(spec, pair, batch.image_ids, checkpoint=model.name)
        return {Cell(): columns}


def _margin_sums(pair: LayerPair, margin: Tensor) -> dict[str, Tensor]:
    paired = patches(pair)
    of_tokens = paired.of_reference(margin).masked_fill(~paired.present, torch.nan)
    return ChangedMargins().sums(ReferenceMargins(of_tokens, differ(pair, paired)))


def _run_block(
    spec: RunSpec,
    checkpoint: Checkpoint,
    block: Sequence[int],
    progress: Advance | None,
    *,
    sums: Any,
) -> tuple[Accumulator, list[str]]:
    """Return the sums per input of some inputs."""
    accumulator, skipped = Accumulator(), list[str]()
    for batch in readable_batches(load_batches(spec, checkpoint, block), skipped, progress):
        labels = {"label": batch.labels.numpy()}
        for cell, columns in sums(spec, checkpoint, batch).items():
            arrays = {name: to_host(column) for name, column in columns.items()}
            accumulator.add(dataclasses.replace(cell, view=AGAINST), batch.image_ids, labels | arrays)
    return accumulator, skipped


def _halves(inputs: Any, group_images: int) -> Iterator[Any]:
    """Yield two parts of whole groups; a single group as it is."""
    half = len(inputs) // 2 // group_images * group_images
    if half:
        yield from (inputs[:half], inputs[half:])
    else:
        yield inputs


def _join(parts: Sequence[FormPass]) -> FormPass:
    """Return the passes of parts as one, without margins."""
    joined = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in ("scores", "log_probs")
        if getattr(parts[0], name) is not None
    }
    return FormPass(join_batches([part.routing for part in parts]), {}, **joined)


def _same_choices(first: RoutingTrace, second: RoutingTrace) -> Tensor:
    """Return for which inputs ``(B,)`` every token of every layer has the same experts, in whatever order."""
    device = _device_of(first)
    same = []
    for name, layer in first.layers.items():
        counterpart = second.layers[name].of_each_input(lambda value: value.to(device))
        same.append((layer.selects_the_same(counterpart) & layer.processed_the_same(counterpart)).all(1))
    return torch.stack(same).all(0)


def _device_of(routing: RoutingTrace) -> torch.device:
    return next(iter(routing.layers.values())).gates.device
