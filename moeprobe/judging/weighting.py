"""Whether tokens or texts are counted alike: where the two conclude differently, a sentence says so.

A match over all tokens is a ratio of sums, which long texts rule. With each text alike it is a mean over texts. Both
are right, of other questions: what a served token meets, and what a text meets.
"""

import pandas as pd

from moeprobe.inputs.modality import ORDINARY
from moeprobe.judging.words import FamilyWord
from moeprobe.metrics.analyses.match import MATCH_BY_INPUT
from moeprobe.results.tables import deciding_match, modality_of_table

_PAIR = ["checkpoint", "reference"]


def sentences(comparison: pd.DataFrame) -> list[str]:
    """Return a sentence for each pair whose match is judged differently with each text alike.

    Args:
        comparison: judged differences, of all metrics.
    """
    if not {"verdict", "judgement", "reference"} <= set(comparison):
        return []
    rows = comparison[comparison["tokens"].isin(ORDINARY) & (comparison["null"] == "")]
    if not (rows["metric"] == MATCH_BY_INPUT.name).any():
        return []
    lines, modality = [], modality_of_table(comparison)
    for (checkpoint, reference), of_pair in rows.groupby(_PAIR, sort=False):
        by_token, by_input = (
            _word(of_pair, metric) for metric in (deciding_match(comparison), MATCH_BY_INPUT.name)
        )
        if by_token is not None and by_input is not None and by_token.word != by_input.word:
            lines.append(
                f"{checkpoint} against {reference}, match: {by_token.text()} with all {modality.tokens} alike, "
                f"{by_input.text()} with all {modality.plural} alike. Long {modality.plural} rule the first."
            )
    return lines


def _word(rows: pd.DataFrame, metric: str) -> FamilyWord | None:
    of_metric = rows[rows["metric"] == metric].to_dict("records")
    return FamilyWord.of_rows(of_metric) if of_metric else None
