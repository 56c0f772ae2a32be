"""What a router decides whose experts take their best tokens, however the scores came about.

Axes: G groups, S tokens per group, E experts, C tokens that an expert takes of a group.
"""

from torch import Tensor

from moeprobe.models.nn.plans import chosen_by_experts, plan_expert_choice
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.routers.rules.linear import Logits


def choose_by_experts(
    logits: Logits, *, gates: Tensor, clean_gates: Tensor, scores: Tensor | None, capacity: int
) -> Decision:
    """Return the decision of experts that take the C tokens of a group that score highest for them.

    Args:
        logits: ``(G, S, E)``, clean and noisy.
        gates: ``(G, S, E)`` weights of the combination.
        clean_gates: likewise, without noise.
        scores: ``(G, S, E)`` what the experts choose by; None = the gates.
        capacity: C.
    """
    chosen_by = gates if scores is None else scores
    plan = plan_expert_choice(chosen_by, gates, capacity=capacity)
    selected = chosen_by_experts(plan, chosen_by)
    return Decision(
        logits=logits.clean,
        noisy_logits=logits.noisy,
        gates=gates,
        clean_gates=clean_gates,
        scores=scores,
        selected=selected,
        processed=selected >= 0,
        top_k=None,
        noise_scale=logits.noise_scale,
        plan=plan,
    )
