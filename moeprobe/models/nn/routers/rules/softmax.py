"""What a router decides that takes each token's k best experts of a softmax, however the logits came about.

Axes: G groups, S tokens per group, E experts, K choices.
"""

from moeprobe.models.nn.plans import plan_token_choice
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.routers.rules.linear import Logits, top_choices


def choose_by_softmax(
    logits: Logits, *, top_k: int, capacity: int | None, batch_priority: bool, renormalise: bool
) -> Decision:
    """Return the decision of top-k of softmax(``logits``).

    A chosen expert's weight is its share of *all* experts, or with ``renormalise`` of the chosen ones.

    Args:
        logits: ``(G, S, E)``, clean and noisy; the choice and the weights follow the noisy ones.
        top_k: K.
        capacity: C, None without limit.
        batch_priority: as in ``plan_token_choice``.
        renormalise: as in ``plan_token_choice``.
    """
    clean_gates = logits.clean.softmax(-1)
    gates = clean_gates if logits.noisy is logits.clean else logits.noisy.softmax(-1)
    selected = top_choices(gates, top_k)
    plan = plan_token_choice(
        gates, selected, capacity=capacity, batch_priority=batch_priority, renormalise=renormalise
    )
    return Decision(
        logits=logits.clean,
        noisy_logits=logits.noisy,
        gates=gates,
        clean_gates=clean_gates,
        scores=None,
        selected=selected,
        processed=plan.kept.view_as(selected),
        top_k=top_k,
        noise_scale=logits.noise_scale,
        plan=plan,
    )
