"""Check recorded routing for known faults of its capture, alone or beside another trace of the same model.

Are two traces of one model about the same layers and positions? Their choices overlap most where they are. The overlap
of two tokens is the share of the experts of the one that the other has too. It is looked at with one trace shifted by
some layers and some positions, and with its experts numbered anew, as they would be if one server had written physical
ids of experts that it has moved.

Axes: L layers, n inputs, T tokens, K choices, E experts.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from moeprobe.errors import UserError, option
from moeprobe.recordings.capture_check import CaptureCheck
from moeprobe.recordings.faults import Finding, first_names
from moeprobe.recordings.matching import NAMES, TOKENS, check_match, match_traces
from moeprobe.recordings.reading import TraceFile
from moeprobe.runtime.arguments import check_arguments
from moeprobe.runtime.progress import Progress, progress_of

# Shifts to either side; inputs and tokens that are looked at.
_LAYERS, _POSITIONS, _INPUTS, _TOKENS = 3, 3, 16, 256
# By how much an overlap must be larger to be told from one that is not, beside four standard errors.
_MARGIN = 0.1


@dataclass(frozen=True)
class Overlap:
    """How much the choices of two traces overlap.

    Attributes:
        inputs: how many of those that both have were looked at: no more than 16.
        common: how many both have.
        here: overlap of the same tokens in the same layers.
        chance: what it would be of two draws by how often either side chooses each expert.
        layers, positions: the shift of the second trace at which the overlap is largest; 0 where none is clearly
            larger.
        shifted: the overlap there.
        renumbered: overlap after the second's experts were numbered anew, of tokens by which that was not decided; None
            where it was not tried.
        renumbered_chance: what that would be by chance, which pairs the most frequent experts of two models; or None.
        foreign_layers: layers of the first that agree by chance, although the layer behind them agrees.
    """

    inputs: int
    common: int
    here: float
    chance: float
    layers: int
    positions: int
    shifted: float
    renumbered: float | None
    renumbered_chance: float | None
    foreign_layers: list[str]

    @property
    def is_renumbered(self) -> bool:
        """Whether other numbers of the experts explain much more, and most of what chance leaves to explain."""
        if self.renumbered is None or self.renumbered_chance is None:
            return False
        # The share of tokens that chance leaves unexplained.
        room = 1 - self.renumbered_chance
        gain = self.renumbered - max(self.here, self.shifted)
        return gain > _MARGIN and self.renumbered - self.renumbered_chance > room / 2

    @property
    def is_chance(self) -> bool:
        """Whether hardly more agrees than by chance, however the second trace is shifted or renumbered."""
        return not self.is_renumbered and is_by_chance(max(self.here, self.shifted), self.chance)


def is_by_chance(agreement: float, chance: float) -> bool:
    """Whether hardly more agrees than by chance, as between two models."""
    return agreement - chance <= _MARGIN * (1 - chance)


def overlap(first: TraceFile, second: TraceFile) -> Overlap:
    """Return the overlap of the choices of two traces.

    Raises:
        UserError: they have no input in common, or other numbers of experts or of choices.
    """
    for trace in (first, second):
        if any(layer.load_only for layer in trace.layers.values()):
            raise UserError(
                f"{trace.path} holds counts of choices and no tokens, so nothing of it overlaps; leave "
                f"{option('against')} out."
            )
    second_ids = set(second.ids)
    common = [name for name in first.ids if name in second_ids]
    # A few inputs show a shift as well as all of them.
    ids = common[:_INPUTS]
    if not ids:
        raise UserError(
            f"{first.path} and {second.path} have no input in common; their names look like {first.ids[0]!r} and "
            f"{second.ids[0]!r}. Send the same request_id both times, or use {option('match', TOKENS)}."
        )
    sizes = {
        (layer.num_experts, layer.top_k, layer.experts_choose)
        for trace in (first, second)
        for layer in trace.layers.values()
    }
    if len(sizes) > 1 or any(top_k == 0 or choose for _, top_k, choose in sizes):
        raise UserError(
            f"The layers of {first.path} and {second.path} differ in their numbers of experts or choices; only layers "
            "of one model can be compared."
        )
    [(num_experts, _, _)] = sizes
    first_choices, second_choices = _choices(first, ids), _choices(second, ids)
    scan = {
        (layers, positions): _of_shift(first_choices, second_choices, layers, positions)
        for layers in range(-_LAYERS, _LAYERS + 1)
        for positions in range(-_POSITIONS, _POSITIONS + 1)
    }
    unshifted, pairs = scan[0, 0]
    best = max(scan, key=lambda shift: scan[shift][0])
    larger = scan[best][0] - unshifted
    # 0.25 is the largest variance of a share; its standard error sets how large a chance finding may be.
    if not larger > max(_MARGIN, 4 * np.sqrt(0.25 / max(min(pairs, scan[best][1]), 1))):
        best = (0, 0)
    chance = _chance(first_choices, second_choices, num_experts)
    shifted = scan[best][0]
    # Renumbering is tried only if the overlap is low and no shift explains it.
    low = best == (0, 0) and unshifted - chance < (1 - chance) / 2
    foreign = _foreign(first_choices, second_choices, num_experts) if best == (0, 0) else []
    renumbered, renumbered_chance = (
        _overlap_if_renumbered(first_choices, second_choices, num_experts) if low else (None, None)
    )
    return Overlap(
        inputs=len(ids),
        common=len(common),
        here=unshifted,
        chance=chance,
        layers=best[0],
        positions=best[1],
        shifted=shifted,
        renumbered=renumbered,
        renumbered_chance=renumbered_chance,
        foreign_layers=[list(first.layers)[index] for index in foreign],
    )


def _choices(trace: TraceFile, ids: list[str]) -> NDArray[np.int16]:
    """Return choices ``(L, n, T, K)``, −1 = none and padding."""
    longest = {layer: int(trace.num_tokens(layer, ids).max()) for layer in trace.layers}
    length = min(max(longest.values()), _TOKENS)
    return np.stack(
        [
            trace.read(layer, ids, num_tokens=max(longest[layer], length)).experts[:, :length]
            for layer in trace.layers
        ]
    )


def _of_shift(
    first_choices: NDArray[np.int16], second_choices: NDArray[np.int16], layers: int, positions: int
) -> tuple[float, int]:
    """Return the overlap where layer l, token t of the one is layer l + ``layers``, t + ``positions`` of the other."""
    first = _cut(_cut(first_choices, 0, -layers), 2, -positions)
    second = _cut(_cut(second_choices, 0, layers), 2, positions)
    shape = tuple(min(sizes) for sizes in zip(first.shape, second.shape, strict=True))
    first, second = (side[: shape[0], :, : shape[2]] for side in (first, second))
    # Pad tokens and dropped tokens have no choice to compare.
    present = (first[..., 0] >= 0) & (second[..., 0] >= 0)
    pairs = int(present.sum())
    if not pairs:
        return 0.0, 0
    a, b = first[present], second[present]
    common = (a[:, :, None] == b[:, None]) & (a >= 0)[:, :, None]
    return float(common.sum() / (a >= 0).sum()), pairs


def _foreign(first: NDArray[np.int16], second: NDArray[np.int16], num_experts: int) -> list[int]:
    """Return the layers that agree by chance, and before one that agrees more than halfway from chance to 1.

    Had the router really chosen these experts, the layer behind would have seen other tokens. Layers whose experts have
    other numbers are left out.
    """
    # With other numbers of layers nobody can say which is which.
    if len(first) != len(second):
        return []
    by_chance, agrees = [], []
    for a, b in zip(first[:, None], second[:, None], strict=True):
        (agreement, pairs), chance = _of_shift(a, b, 0, 0), _chance(a, b, num_experts)
        halfway, error = (1 + chance) / 2, np.sqrt(0.25 / max(pairs, 1))
        agrees.append(agreement > halfway)
        by_chance.append(is_by_chance(agreement, chance) and agreement + 4 * error < halfway)
        if by_chance[-1]:
            # A server may have moved the experts of this layer alone.
            renumbered, renumbered_chance = _overlap_if_renumbered(a, b, num_experts)
            by_chance[-1] = (
                renumbered is None or renumbered_chance is None or renumbered < (1 + renumbered_chance) / 2
            )
    return [index for index, pair in enumerate(zip(by_chance, agrees[1:], strict=False)) if all(pair)]


def _cut(side: NDArray[np.int16], axis: int, start: int) -> NDArray[np.int16]:
    return side[(slice(None),) * axis + (slice(max(start, 0), None),)]


def _chance(first: NDArray[np.int16], second: NDArray[np.int16], num_experts: int) -> float:
    """Return the overlap of independent draws, the mean over the layers that both have."""
    overlaps = []
    for a, b in zip(first, second, strict=False):
        counts = [np.bincount(side[side >= 0], minlength=num_experts) for side in (a, b)]
        # Overlap is counted per choice of the first side, so the second side's counts are divided by its tokens.
        tokens = max(int((b[..., 0] >= 0).sum()), 1)
        overlaps.append((counts[0] / max(counts[0].sum(), 1)) @ (counts[1] / tokens))
    return float(np.mean(overlaps))


def _overlap_if_renumbered(
    first: NDArray[np.int16], second: NDArray[np.int16], num_experts: int
) -> tuple[float, float] | tuple[None, None]:
    """Return the overlap under the best numbering of each layer, decided by every other token; and that by chance."""
    size = min(first.shape[2], second.shape[2])
    hits = by_chance = total = 0.0
    for a, b in zip(first[:, :, :size], second[:, :, :size], strict=False):
        # Fitted on even tokens, judged on odd ones: the best of E! numberings overlaps by chance, too.
        fit, held_out = (_together(a[:, start::2], b[:, start::2], num_experts) for start in (0, 1))
        rows, columns = linear_sum_assignment(fit, maximize=True)
        hits += float(held_out[rows, columns].sum())
        # Where the sides are independent, two experts go together as often as both are chosen.
        counts = held_out.sum(1)[rows] * held_out.sum(0)[columns]
        by_chance += float(counts.sum() / max(held_out.sum(), 1))
        experts = a[:, 1::2]
        total += int(((experts >= 0) & (b[:, 1::2, :1] >= 0)).sum())
    return (hits / total, by_chance / total) if total else (None, None)


def _together(a: NDArray[np.int16], b: NDArray[np.int16], num_experts: int) -> NDArray[np.int64]:
    """Return how often expert e of the one goes with expert f of the other ``(E, E)``."""
    # Every pair of choices of a token gets one code, so that a single count finds all.
    codes = a[..., :, None].astype(np.int64) * num_experts + b[..., None, :]
    present = (a[..., :, None] >= 0) & (b[..., None, :] >= 0)
    return np.bincount(codes[present], minlength=num_experts**2).reshape(num_experts, num_experts)


@dataclass(frozen=True)
class CheckedTrace:
    """What a check found: how many inputs and layers there are, the findings, and the overlap with another trace.

    ``load_only``: no token is known, so there was nothing to look at.
    """

    path: Path
    inputs: int
    layers: list[str]
    findings: list[Finding]
    overlap: Overlap | None
    load_only: bool = False

    @property
    def sound(self) -> bool:
        """Whether no finding is a fault."""
        return not any(finding.fault for finding in self.findings)


@check_arguments
def check_trace(
    path: str | Path,
    *,
    against: str | Path | None = None,
    match: str = NAMES,
    watcher: Progress | None = None,
) -> CheckedTrace:
    """Look for faults of capture in a routing trace, and for shifts against another one of the same inputs.

    Two recordings of five tokens have the same expert four times. Expert 0 has two of five and three of five, so that
    chance is 0.4 · 0.6 + 0.6 · 0.4:

    >>> from pathlib import Path
    >>> from moeprobe import api
    >>> for name, experts in ("served", [[0], [1], [1], [0], [1]]), ("trained", [[0], [1], [0], [0], [1]]):
    ...     _ = Path(f"{name}.jsonl").write_text(f'{{"id": "r17", "layer": "mlp", "experts": {experts}}}')
    ...     _ = api.import_trace(f"{name}.jsonl", f"{name}.parquet", num_experts=2)
    >>> overlap = api.check_trace("served.parquet", against="trained.parquet").overlap
    >>> overlap.here, round(overlap.chance, 3)
    (0.8, 0.48)

    Args:
        path: the trace.
        against: another trace of the same model and inputs.
        match: "names": an input has one name in both; "tokens": the same tokens, whatever it is called.
        watcher: shows the rows read.

    Raises:
        UserError: a file is damaged or no trace, or the two cannot be compared.
    """
    check_match(match)
    trace, watcher = TraceFile(Path(path)), progress_of(watcher)
    check = CaptureCheck()
    watcher.start("trace check", trace.num_rows)
    for rows in trace.row_groups():
        check.add(rows)
        watcher.advance(rows.num_rows)
    incomplete = [
        Finding(INCOMPLETE, 1, f"The import said: {sentence}", fault=False)
        for sentence in trace.about.get("missing", [])
    ]
    findings, shared = [*check.findings(), *incomplete], None
    # Where choices are none that a trace may hold, there is nothing to compare.
    if against is not None and not any(finding.empty or finding.name in _UNREADABLE for finding in findings):
        matched, notes = match_traces([trace, TraceFile(Path(against))], match)
        shared = overlap(*matched)
        findings += [Finding(MATCHED, 1, f"Not compared: {note}.", fault=False) for note in notes]
        findings += _of_overlap(shared, Path(against))
    load_only = all(layer.load_only for layer in trace.layers.values())
    # Faults first; within them, the order of the checks.
    findings.sort(key=lambda one: not one.fault)
    return CheckedTrace(trace.path, len(trace.ids), list(trace.layers), findings, shared, load_only)


# Notes that an import lacked rows, and on inputs that were matched by their tokens.
INCOMPLETE, MATCHED = "incomplete", "matched by tokens"
# The fault of two recordings that are of two models; the capture of either may be sound.
BY_CHANCE = "overlap by chance"
_UNREADABLE = ("duplicate expert", "expert out of range", "255 fill")


def _of_overlap(shared: Overlap, against: Path) -> list[Finding]:
    """Return what the overlap says of the first trace."""
    findings = []
    words = f"Overlap with {against.name} is {shared.here:.3f} (chance {shared.chance:.3f}), and"
    if shared.layers:
        sentence = (
            f"{words} {shared.shifted:.3f} where layer l is the other's layer l {shared.layers:+d}: known as layers "
            "shifted, of dense layers that one side alone counts."
        )
        findings.append(Finding("layers shifted", abs(shared.layers), sentence))
    if shared.positions:
        sentence = (
            f"{words} {shared.shifted:.3f} where token t is the other's token t {shared.positions:+d}: known as one "
            "off, or as a start that one side left out."
        )
        findings.append(Finding("positions shifted", abs(shared.positions), sentence))
    if shared.is_renumbered:
        sentence = (
            f"{words} {shared.renumbered:.3f} with other numbers of its experts: known as physical ids of experts that "
            "a server has moved."
        )
        findings.append(Finding("experts renumbered", 1, sentence))
    if shared.foreign_layers:
        sentence = (
            f"{first_names(shared.foreign_layers)}: agreement with {against.name} is by chance, though the next layer "
            "agrees: known of draft models (multi-token prediction), whose router was captured in its place "
            "(vllm#48622); serve without speculative decoding."
        )
        findings.append(Finding("layers of another router", len(shared.foreign_layers), sentence))
    if shared.is_chance and shared.chance < 1:
        sentence = (
            f"{words} no shift and no other numbers of its experts explain it: these are two models, or other inputs "
            "of the same names; compare with the checkpoint that was served."
        )
        findings.append(Finding(BY_CHANCE, 1, sentence))
    return findings
