"""How much does a token's expert say of what else is known of it: mutual information, less what it is by permutation.

Counts of few images make any two things look related. What that comes to is measured by permuting images, whose tokens
stay together: to take tokens for independent, as the expansion of Miller (1955) does, would correct too little.

* between images: each image gets the codes (class, colors) of another one, place by place;
* within images: the tokens of an image that have an expert are put in another order, each image in one of its own.

Its interval is linearized for any number of images: resamples repeat images, and so look more related than these are.

Source of the correction: Vinh, Epps and Bailey 2010, for independent observations. Axes: R resamples, n images, J
tokens of an image, E experts, K codes, m entries: tokens with one of their experts each.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special

from moeprobe.metrics.stats.entries import Entries, sum_by_key
from moeprobe.metrics.stats.statistic import Array, Integers, divide
from moeprobe.runtime.caching import cache_last
from moeprobe.runtime.seeds import generator

# Permutations whose mean is taken. They belong to the number of images: the same for all checkpoints.
PERMUTATIONS = 200
# Less than this share of the sum of all weights is rounding.
_ROUNDING = 1e-12
# Numbers of tables that are held at a time.
_HELD = 2**22


class Association:
    """Tokens with their experts and their codes.

    Args:
        entries: of all images.
        codes: ``(n, J)`` whole numbers, -1 = nothing is known of the token, which is left out.
        num_experts: E.
        within: whether a permutation stays within the images.
        balanced: whether all codes weigh the same, however many tokens have each. The information
            is then, for two codes, the Jensen-Shannon divergence of their experts.
    """

    def __init__(
        self,
        entries: Entries,
        codes: NDArray[np.generic],
        *,
        num_experts: int,
        within: bool,
        balanced: bool = False,
    ) -> None:
        has_code = codes.astype(np.int64) >= 0
        rows = has_code[entries.image, entries.token]
        self._image, self._token = entries.image[rows], entries.token[rows]
        self._expert, self._weight = entries.expert[rows], entries.weight[rows]
        self._codes: Integers = np.full(codes.shape, -1)
        values, numbered = np.unique(codes[has_code], return_inverse=True)
        self._codes[has_code] = numbered
        self._within, self._balanced, self._num_images = within, balanced, len(codes)
        self._shape = len(values), num_experts
        self._present = np.zeros(codes.shape, dtype=bool)
        self._present[self._image, self._token] = True

    @property
    def scale(self) -> float:
        """The most information there could be: the logarithm of E or K, of the smaller one; 0 = there can be none."""
        return float(np.log(max(min(self._shape), 1)))

    @property
    def trials(self) -> Integers:
        """Tokens that are counted, by image ``(n,)``."""
        return self._present.sum(1)

    @cache_last
    def under(self, weights: Array) -> tuple[Array, Array]:
        """Return the information and the permuted information ``(R,)`` under weights ``(n, R)``, as shares of most."""
        # Tables of all resamples at once may not fit into memory.
        step = max(1, _HELD // max(int(np.prod(self._shape)), 1))
        parts = [weights[:, start : start + step] for start in range(0, weights.shape[1], step)]
        plain = np.concatenate([self._information(self._observed_table(part)) for part in parts])
        mean = np.concatenate([self._of_mean(part) for part in parts])
        # The bias is computed once for the observed images and added to every resample.
        return plain / self.scale, (mean + self._permutation_bias) / self.scale

    @cached_property
    def influences(self) -> tuple[Array, Array]:
        """Each image's influence ``(n,)`` on the information, and on the permuted one."""
        table = self._observed_table(np.ones((self._num_images, 1)))[..., 0]
        slope = self._slope(table)
        code = self._codes[self._image, self._token]
        influence = self._by_image(slope[code, self._expert])
        return influence / self.scale, self._influence_of_mean() / self.scale

    def permuted_table(self, draw: int) -> Array:
        """Return the table ``(K, E)`` of one permutation."""
        rng = generator(0, "permutation of images", draw=draw)
        if not self._within:
            return self._table(self._exchange_images(rng))
        codes = self._shuffle_tokens(rng)
        return self._table(codes) if self._common_code is None else self._table_of_rare(codes)

    @cached_property
    def _has_tokens(self) -> NDArray[np.bool_]:
        return np.asarray(self._present.any(1))

    @cached_property
    def _permutation_bias(self) -> float:
        """What permutations leave on average, beyond the information of their mean table."""
        if not self._has_tokens.any():
            return 0.0
        tables = (self.permuted_table(draw)[..., None] for draw in range(PERMUTATIONS))
        mean = np.mean([self._information(table)[0] for table in tables])
        return float(mean - self._of_mean(np.ones((self._num_images, 1)))[0])

    def _exchange_images(self, rng: np.random.Generator) -> Integers:
        # Images without tokens have no codes to give away.
        rows = np.flatnonzero(self._has_tokens)
        codes = self._codes.copy()
        codes[rows] = codes[rng.permutation(rows)]
        return codes

    def _shuffle_tokens(self, rng: np.random.Generator) -> Integers:
        # The common case, a full grid, needs no bookkeeping.
        if self._present.all():
            return rng.permuted(self._codes, axis=1)
        # Tokens without an expert come last on both sides, and keep what they have.
        order = np.argsort(np.where(self._present, rng.random(self._present.shape), 2), axis=1, kind="stable")
        order_present = np.argsort(~self._present, axis=1, kind="stable")
        codes = np.empty_like(self._codes)
        np.put_along_axis(codes, order, np.take_along_axis(self._codes, order_present, axis=1), axis=1)
        return codes

    def _table(self, codes: Integers) -> Array:
        """Return the weights of codes and experts ``(K, E)``; a token that got no code is left out."""
        code = codes[self._image, self._token]
        has_code = code >= 0
        key = code[has_code] * self._shape[1] + self._expert[has_code]
        size = int(np.prod(self._shape))
        return sum_by_key(key, self._weight[has_code], size).reshape(self._shape)

    def _table_of_rare(self, codes: Integers) -> Array:
        """Return the same as ``_table`` of codes shuffled within images, from the tokens without the common code."""
        # Each token keeps its experts and gets some code, so what the others have not is left for the common one.
        token = np.flatnonzero(codes.ravel() != self._common_code)
        token = token[self._present.ravel()[token]]
        first, count = self._first_entry[token], np.diff(self._first_entry)[token]
        row = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
        entry = self._by_token_order[row]
        key = np.repeat(codes.ravel()[token], count) * self._shape[1] + self._expert[entry]
        table = sum_by_key(key, self._weight[entry], int(np.prod(self._shape))).reshape(self._shape)
        remainder = self._experts.sum(0) - table.sum(0)
        # What is left of sums that cancel is rounding.
        table[self._common_code] = np.where(remainder > _ROUNDING * self._weight.sum(), remainder, 0.0)
        return table

    @cached_property
    def _common_code(self) -> int | None:
        """The code of most of the tokens; None where no code has most of them."""
        counts = np.bincount(self._codes[self._present], minlength=1)
        return int(counts.argmax()) if 2 * counts.max() > counts.sum() else None

    @cached_property
    def _by_token_order(self) -> Integers:
        """The entries, ordered by image and token."""
        return np.lexsort((self._token, self._image))

    @cached_property
    def _first_entry(self) -> Integers:
        """Where each image's and token's entries begin in that order ``(n · J + 1,)``."""
        key = self._image * self._codes.shape[1] + self._token
        return np.concatenate([[0], np.bincount(key, minlength=self._codes.size).cumsum()])

    @cached_property
    def _sums(self) -> "sparse.csr_array":
        """Each image's table, ``(K · E, n)``."""
        return self._by_key(self._codes[self._image, self._token], self._shape[0])

    @cached_property
    def _by_token(self) -> "sparse.csr_array":
        """Each image's experts by token, ``(J · E, n)``."""
        return self._by_key(self._token, self._codes.shape[1])

    @cached_property
    def _coded(self) -> "sparse.csr_array":
        """Each counted image's codes by token, ``(J · K, n)``."""
        image, token = np.nonzero((self._codes >= 0) & self._has_tokens[:, None])
        key = token * self._shape[0] + self._codes[image, token]
        size = self._codes.shape[1] * self._shape[0], self._num_images
        return sparse.csr_array((np.ones(len(key)), (key, image)), shape=size)

    @cached_property
    def _spread(self) -> Array:
        """The mean table of each image ``(n, K · E)`` over permutations within it."""
        shares = np.zeros((self._num_images, self._shape[0]))
        image, token = np.nonzero(self._present)
        np.add.at(shares, (image, self._codes[image, token]), 1.0)
        shares = divide(shares, self.trials[:, None], empty=0.0)
        return np.einsum("nk,ne->nke", shares, self._experts).reshape(self._num_images, -1)

    @cached_property
    def _experts(self) -> Array:
        entries = Entries(self._image, self._token, self._expert, self._weight)
        return entries.per_image(self._num_images, self._shape[1])

    def _by_key(self, kind: Integers, number: int) -> "sparse.csr_array":
        key = kind * self._shape[1] + self._expert
        return sparse.csr_array(
            (self._weight, (key, self._image)), shape=(number * self._shape[1], self._num_images)
        )

    def _observed_table(self, weights: Array) -> Array:
        """Return the table ``(K, E, R)`` under weights."""
        return (self._sums @ weights).reshape(*self._shape, -1)

    @property
    def _mean_says_nothing(self) -> bool:
        """Whether codes and experts are independent in the mean permuted table, whatever the weights."""
        if self._within:
            return bool(self._present[self._has_tokens].all())
        return self._codes.shape[1] == 1

    def _mean(self, weights: Array) -> Array:
        """Return the mean ``(K, E, R)`` of the permuted tables under weights."""
        if self._within:
            return (self._spread.T @ weights).reshape(*self._shape, -1)
        num_weights = weights.shape[-1]
        experts = (self._by_token @ weights).reshape(-1, self._shape[1], num_weights)
        codes = (self._coded @ weights).reshape(-1, self._shape[0], num_weights)
        product = codes.transpose(2, 1, 0) @ experts.transpose(2, 0, 1)
        return divide(product.transpose(1, 2, 0), weights[self._has_tokens].sum(0))

    def _of_mean(self, weights: Array) -> Array:
        if self._mean_says_nothing:
            return np.zeros(weights.shape[-1])
        return self._information(self._mean(weights))

    def _information(self, table: Array) -> Array:
        return information(shares_by_code(table) if self._balanced else table)

    def _slope(self, table: Array) -> Array:
        """Return the derivative of the information by each entry of a table ``(K, E)``."""
        if not self._balanced:
            return _slope(table)
        shares = shares_by_code(table)
        slope = _slope(shares)
        # An entry also makes the other shares of its code smaller.
        centered = np.where(table > 0, slope - (slope * shares).sum(1, keepdims=True), 0.0)
        return divide(centered, table.sum(1, keepdims=True), empty=0.0)

    def _influence_of_mean(self) -> Array:
        if self._mean_says_nothing:
            return np.zeros(self._num_images)
        unit_weights = np.ones((self._num_images, 1))
        slope = self._slope(self._mean(unit_weights)[..., 0])
        if self._within:
            return self._spread @ slope.ravel()
        experts = (self._by_token @ unit_weights).reshape(-1, self._shape[1])
        codes = (self._coded @ unit_weights).reshape(-1, self._shape[0])
        influence = self._by_image((codes @ slope)[self._token, self._expert])
        return (influence + self._coded.T @ (experts @ slope.T).ravel()) / self._has_tokens.sum()

    def _by_image(self, values: Array) -> Array:
        """Return the weighted sums ``(n,)`` of values of the entries."""
        return sum_by_key(self._image, self._weight * values, self._num_images)


def information(table: Array) -> Array:
    """Return the mutual information in nats ``(R,)`` of tables ``(K, E, R)``; NaN of an empty one.

    Two classes and two experts: each class has its own, which says log 2, and then both have both, which says nothing:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.information import information
    >>> tables = np.array([[[2.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [2.0, 1.0]]])
    >>> information(tables).round(3).tolist()
    [0.693, 0.0]
    """
    total = table.sum((0, 1))
    terms = special.xlogy(table, table).sum((0, 1))
    terms -= sum(special.xlogy(table.sum(axis), table.sum(axis)).sum(0) for axis in (0, 1))
    return divide(terms, total) + np.log(np.where(total > 0, total, 1.0))


def shares_by_code(table: Array) -> Array:
    """Return a table ``(K, E, ...)`` with each code's entries divided by their sum."""
    return divide(table, table.sum(1, keepdims=True), empty=0.0)


def _slope(table: Array) -> Array:
    """Return the derivative of the information by each entry of a table ``(K, E)``; 0 where an entry is 0."""
    # I = Σ t / N · log(t N / (t_k t_e)), whose derivative by an entry is (log ratio − I) / N: the rest cancels.
    total = table.sum()
    expected = table.sum(1, keepdims=True) * table.sum(0)
    positive = table > 0
    ratio = np.where(positive, table, 1.0) * total / np.where(positive, expected, total)
    return divide(np.where(positive, np.log(ratio) - information(table[..., None])[0], 0.0), total, empty=0.0)


@dataclass(frozen=True)
class InformationPart:
    """A number read off an association: ``part`` is "plain", "permuted", or "beyond", the plain less the permuted."""

    association: Association
    part: str
    linear: ClassVar[bool] = True

    def evaluate(self, weights: Array) -> Array:
        """Return the number under each set of weights."""
        return self._read(*self.association.under(weights))

    def influence(self) -> Array:
        """Return each image's influence on the number."""
        return self._read(*self.association.influences)

    def _read(self, plain: Array, permuted: Array) -> Array:
        return {"plain": plain, "permuted": permuted, "beyond": plain - permuted}[self.part]
