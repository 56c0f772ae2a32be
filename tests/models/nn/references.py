"""Slow references in plain NumPy float64 loops, written from the formulas alone."""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax(logits: Array) -> Array:
    """Softmax over the last axis."""
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


def ranking(row: Array) -> list[int]:
    """Indices from the largest to the smallest; the lower index first among equals."""
    return sorted(range(len(row)), key=lambda index: (-row[index], index))


def dispatch(
    gates: Array, *, top_k: int, capacity: int, batch_priority: bool = False, scores: Array | None = None
) -> tuple[NDArray[np.bool_], Array]:
    """Dispatch and combine ``(G, S, E, C)``: all first choices before all second choices; by scores, if not gates."""
    groups, tokens, experts = gates.shape
    where = np.zeros((groups, tokens, experts, capacity), dtype=bool)
    combine = np.zeros(where.shape)
    for group in range(groups):
        choices = [ranking((gates if scores is None else scores)[group, token]) for token in range(tokens)]
        order = list(range(tokens))
        if batch_priority:
            order.sort(key=lambda token: -gates[group, token].max())
        fill = [0] * experts
        for choice in range(top_k):
            for token in order:
                expert = choices[token][choice]
                if fill[expert] < capacity:
                    where[group, token, expert, fill[expert]] = True
                    combine[group, token, expert, fill[expert]] = gates[group, token, expert]
                fill[expert] += 1
    return where, combine


def expert_choice(scores: Array, gates: Array, *, capacity: int) -> tuple[NDArray[np.bool_], Array]:
    """Dispatch and combine ``(G, S, E, C)``: every expert takes its best tokens."""
    groups, tokens, experts = scores.shape
    capacity = min(capacity, tokens)
    where = np.zeros((groups, tokens, experts, capacity), dtype=bool)
    combine = np.zeros(where.shape)
    for group in range(groups):
        for expert in range(experts):
            for slot, token in enumerate(ranking(scores[group, :, expert])[:capacity]):
                where[group, token, expert, slot] = True
                combine[group, token, expert, slot] = gates[group, token, expert]
    return where, combine


def sinkhorn(logits: Array, *, epsilon: float, iterations: int) -> Array:
    """Transport plan ``(S, E)`` of one group by kernel scaling: columns to S / E, then rows to 1, so many times."""
    plan = np.exp(logits / epsilon)
    for _ in range(iterations):
        for expert in range(plan.shape[1]):
            plan[:, expert] *= plan.shape[0] / plan.shape[1] / plan[:, expert].sum()
        for token in range(plan.shape[0]):
            plan[token] /= plan[token].sum()
    return plan


def priority(gates: Array, *, top_k: int, capacity: int) -> NDArray[np.bool_]:
    """Who holds whom ``(S, E)`` in one group: pairs from the largest gate down, while both sides have room."""
    tokens, experts = gates.shape
    held = np.zeros(gates.shape, dtype=bool)
    pairs = [(token, expert) for token in range(tokens) for expert in range(experts)]
    for token, expert in sorted(pairs, key=lambda pair: -gates[pair]):
        if held[token].sum() < top_k and held[:, expert].sum() < capacity:
            held[token, expert] = True
    return held


def squared_variation(amounts: Array) -> float:
    """(standard deviation of the population / mean)²."""
    mean = sum(amounts) / len(amounts)
    return sum((amount - mean) ** 2 for amount in amounts) / len(amounts) / mean**2


def importance(gates: Array) -> Array:
    """Importance loss per group."""
    return np.array([squared_variation(group.sum(0)) for group in gates])


def load(logits: Array, noisy_logits: Array, *, top_k: int, noise_scale: float) -> Array:
    """Load loss per group, with the normal distribution's own error function."""
    losses = []
    for clean, noisy in zip(logits, noisy_logits, strict=True):
        probabilities = np.zeros_like(clean)
        for token in range(len(clean)):
            threshold = noisy[token][ranking(noisy[token])[top_k - 1]]
            for expert in range(clean.shape[1]):
                z = (threshold - clean[token, expert]) / noise_scale
                probabilities[token, expert] = 1 - 0.5 * (1 + math.erf(z / math.sqrt(2)))
        losses.append(squared_variation(probabilities.mean(0)))
    return np.array(losses)


def gshard(gates: Array) -> Array:
    """GShard's loss per group."""
    experts = gates.shape[-1]
    losses = []
    for group in gates:
        first = [sum(ranking(row)[0] == expert for row in group) / len(group) for expert in range(experts)]
        losses.append(experts**2 * np.mean([first[e] * group[:, e].mean() for e in range(experts)]))
    return np.array(losses)


def mlp(row: Array, fc1: tuple[Array, Array], fc2: tuple[Array, Array]) -> Array:
    """Two-layer perceptron with the tanh approximation of GELU."""
    hidden = row @ fc1[0] + fc1[1]
    hidden = 0.5 * hidden * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
    return hidden @ fc2[0] + fc2[1]


def sparse_simplex(row: Array, *, max_nonzeros: int) -> Array:
    """The largest entries projected onto the simplex: the best m, for the largest m that keeps them all positive."""
    best = ranking(row)[:max_nonzeros]
    widest = 1
    for size in range(1, len(best) + 1):
        if row[best[size - 1]] - (sum(row[best[:size]]) - 1) / size > 0:
            widest = size
    threshold = (sum(row[best[:widest]]) - 1) / widest
    found = np.zeros(len(row))
    for index in best[:widest]:
        found[index] = row[index] - threshold
    return found


def sparse_plan(
    similarity: Array, potentials: Array, *, row_sum: float, max_nonzeros: int, gamma: float
) -> Array:
    """The plan ``(N, M)`` that potentials ``(M,)`` of the columns give."""
    rows = (similarity + potentials) / (row_sum * gamma)
    return np.stack([row_sum * sparse_simplex(row, max_nonzeros=max_nonzeros) for row in rows])


def semi_dual(similarity: Array, potentials: Array, plan: Array, *, gamma: float) -> float:
    """The semi-dual of a plan ``(N, M)`` to be maximized: Σ_m wanted · α_m − Σ_n max ⟨sim + α, Π_n⟩ − γ/2 ‖Π_n‖²."""
    wanted = plan.sum() / plan.shape[1]
    return float(wanted * potentials.sum() - ((similarity + potentials) * plan - gamma / 2 * plan**2).sum())


def adam_on_semi_dual(
    similarity: Array,
    *,
    row_sum: float,
    max_nonzeros: int,
    gamma: float,
    learning_rate: float,
    iterations: int,
) -> Array:
    """Potentials ``(M,)`` after steps of Adam, from zero, one column after the other."""
    rows, columns = similarity.shape
    potentials, mean, square = np.zeros(columns), np.zeros(columns), np.zeros(columns)
    for step in range(1, iterations + 1):
        plan = sparse_plan(similarity, potentials, row_sum=row_sum, max_nonzeros=max_nonzeros, gamma=gamma)
        for column in range(columns):
            gradient = rows * row_sum / columns - plan[:, column].sum()
            mean[column] = 0.9 * mean[column] + 0.1 * gradient
            square[column] = 0.999 * square[column] + 0.001 * gradient**2
            direction = mean[column] / (1 - 0.9**step)
            potentials[column] += (
                learning_rate * direction / (math.sqrt(square[column] / (1 - 0.999**step)) + 1e-8)
            )
    return potentials
