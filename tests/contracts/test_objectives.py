"""What holds for every objective of the catalog; a new one is tested the moment its file exists."""

import dataclasses

import pytest
import torch

from moeprobe.errors import UserError
from moeprobe.models.training.objectives.base import BatchViews, Objective
from moeprobe.runtime.catalog import OBJECTIVES
from moeprobe.runtime.schema import Plugin, make_plugin
from tests.models.training.deciding import Routed, random_views, route

KINDS: dict[str, type[Objective]] = {name: OBJECTIVES.get(name) for name in OBJECTIVES.names()}
EVERY = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
EVERY_NAME = pytest.mark.parametrize("name", KINDS)


def terms_of(objective: Objective, views: BatchViews, *routed: Routed) -> dict[str, float]:
    decisions = {f"blocks.{index}": one.decision for index, one in enumerate(routed)}
    return {name: term.value.item() for name, term in objective.terms(decisions, views).items()}


@EVERY
def test_an_objective_is_a_frozen_described_dataclass(kind: type[Objective]) -> None:
    assert issubclass(kind, Objective)
    assert dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen
    assert (kind.__doc__ or "").strip().endswith(".") and isinstance(kind.needs_pairs, bool)
    assert kind() == kind()


@EVERY
def test_terms_are_finite_scalars_with_a_gradient_to_every_view(kind: type[Objective]) -> None:
    views = random_views()
    routed = route(views, noisy=True)
    terms = kind().terms({"blocks.1": routed.decision}, views)
    assert terms
    for name, term in terms.items():
        assert name.isidentifier() and term.weight > 0
        assert term.value.shape == () and torch.isfinite(term.value)
        (gradient,) = torch.autograd.grad(term.value, routed.tokens, retain_graph=True)
        assert torch.isfinite(gradient).all()
        assert (gradient.abs().sum((1, 2)) > 0).all()


@EVERY
def test_layers_add_up(kind: type[Objective]) -> None:
    views = random_views()
    one, two = route(views, noisy=True, seed=1), route(views, noisy=True, seed=2)
    each = [terms_of(kind(), views, routed) for routed in (one, two)]
    both = terms_of(kind(), views, one, two)
    assert both == pytest.approx({name: each[0][name] + each[1][name] for name in both}, rel=1e-5)


@EVERY
def test_an_objective_of_pairs_does_not_care_which_view_comes_first(kind: type[Objective]) -> None:
    views = random_views()
    # One group: who shares it does not change.
    routed = route(views, num_groups=1)
    swapped = BatchViews(views.to_source[::-1], views.source_size, views.grid, views.num_prefix_tokens)
    decision = routed.decision
    rows = decision.clean_gates.reshape(4, 2, -1, 4).flip(1).reshape(1, -1, 4)
    again = Routed(dataclasses.replace(decision, clean_gates=rows), routed.tokens, routed.kernel, None)
    assert terms_of(kind(), swapped, again) == pytest.approx(terms_of(kind(), views, routed), rel=1e-5)


@EVERY
def test_images_without_a_common_patch_do_no_harm(kind: type[Objective]) -> None:
    views = random_views(apart=True)
    routed = route(views, noisy=True)
    terms = kind().terms({"blocks.1": routed.decision}, views)
    torch.stack([term.value for term in terms.values()]).sum().backward()
    assert all(torch.isfinite(term.value) for term in terms.values())
    assert routed.tokens.grad is not None and torch.isfinite(routed.tokens.grad).all()


@EVERY_NAME
def test_weights_are_parameters(name: str) -> None:
    weights = [f.name for f in dataclasses.fields(KINDS[name]) if f.name.endswith("weight")]  # type: ignore[arg-type]
    assert weights
    views = random_views()
    for weight in weights:
        made = make_plugin(KINDS[name], Plugin(name=name, **{weight: 0.25}), what="objective")
        terms = made.terms({"blocks.1": route(views, noisy=True).decision}, views)
        assert [term.weight for term in terms.values()].count(0.25) == 1
        for wrong in (-1.0, float("inf"), float("nan")):
            with pytest.raises(UserError, match=weight):
                KINDS[name](**{weight: wrong})


@EVERY_NAME
def test_unknown_and_ill_typed_parameters_are_one_sentence(name: str) -> None:
    with pytest.raises(UserError, match=rf"parameter of the objective '{name}' called 'wieght'"):
        make_plugin(KINDS[name], Plugin(name=name, wieght=1.0), what="objective")
    weight = next(f.name for f in dataclasses.fields(KINDS[name]) if f.name.endswith("weight"))  # type: ignore[arg-type]
    for wrong in ("much", True, None, (1.0, 2.0)):
        with pytest.raises(UserError, match=f"In the objective '{name}', {weight}: "):
            make_plugin(KINDS[name], Plugin(name=name, **{weight: wrong}), what="objective")
