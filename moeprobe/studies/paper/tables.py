"""The PRC paper's Tables 2 to 5: the numbers of pairs of checkpoints, in Markdown with the paper's own as reference.

``table`` holds the rows of ``number_rows``, ``load`` the rows of ``load_rows``.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from moeprobe.inputs.modality import IMAGE
from moeprobe.inputs.regions import REGIONS
from moeprobe.metrics.analyses.load import DEAD_EXPERTS as DEAD
from moeprobe.metrics.analyses.load import DEAD_EXPERTS_FIRST, EXPERT_SHARE, EXPERT_SHARE_FIRST, dead_limit
from moeprobe.results.folder import Result
from moeprobe.results.tables import with_shown_intervals

PUBLISHED = Path(__file__).with_name("published.csv")
_OF_K = {2: "Table 2", 1: "Table 3"}
_THEIRS = "*reference: {model} in the paper, {dataset}*"
_CROPS = "prc_crops: "
_MATCHES = {
    f"{_CROPS}top-1 match": "top1_match",
    f"{_CROPS}top-2 match": "top2_match",
    f"{_CROPS}top-2 match, any order": "top2_set_match",
    f"{_CROPS}κ": "",
    f"{_CROPS}κ within image": "",
}
_GATES = {
    "highest gate": "gate_highest",
    "second gate": "gate_second",
    "sum of the rest": "gate_rest",
    "entropy of the gates": "",
}


def published_values() -> pd.DataFrame:
    """Return the paper's own values: Tables 2 to 5, a row per model, data set and number."""
    return pd.read_csv(PUBLISHED, dtype={"table": str})


def markdown(table: pd.DataFrame, load: pd.DataFrame, *, data: str, remarks: Sequence[str] = ()) -> str:
    """Return the tables of the pairs that were measured on ``data``; ``remarks`` are paragraphs about them."""
    paper = published_values()
    parts = [
        f"# The tables of the PRC paper, on {data}",
        f"Each training seed is an experiment of its own; [95 % interval over {int(table['images'].max()):,} images]. "
        "Rows in italics are no measurement of moeprobe: they are the values that the paper gives for V-MoE-S/32 (Kada "
        "et al. 2025, Tables 2 to 5), a much larger model on other data, and stand here for reference only. Where they "
        "have a ±, it is the standard deviation of three training runs.",
        *remarks,
    ]
    parts += _accuracies(table, paper)
    for top_k in _top_ks(table):
        parts += _of_layers(
            table[table["top_k"] == top_k],
            paper[(paper["table"] == "4") & (paper["top_k"] == top_k)],
            title=f"Table 4: match of corresponding patches, prc_crops, k = {top_k}",
            intro="The paper's table is of its sixth layer, the first of its two MoE layers; so the first one comes "
            "first here too. Where the head reads the class token alone, what patches choose in the last block cannot "
            "even reach the answer. The paper's images are randomly deformed; `prc_crops` are the crops that its "
            "released program trains on. κ is beyond the paper: the match beyond what chance alone reaches, or beyond "
            "another patch of the same image.",
            columns=_MATCHES,
            first_only=True,
        )
    for top_k in _top_ks(table):
        parts += _of_layers(
            table[table["top_k"] == top_k],
            paper[(paper["table"] == "5") & (paper["top_k"] == top_k)],
            title=f"Table 5: confidence, patches of clean images, k = {top_k}",
            intro="Which layer the paper's table is of is not said. The entropy of the gates (1: all experts alike, 0: "
            "all to one) is beyond its tables.",
            columns=_GATES,
        )
    parts.append("\n".join(load_lines(table, load)))
    parts += [
        region_table(table, layer)
        for layer in layers_of(table)
        if table["number"].isin([number.name for number in REGION_NUMBERS]).any()
    ]
    return "\n\n".join(parts) + "\n"


def cell(row: "pd.Series[float]") -> str:
    """Return a value with its interval; a difference with its sign; numbers of experts without decimals."""
    digits = 0 if row.get("number") in (DEAD_EXPERTS, NEVER_FIRST) else 3
    form = f"{'+' if row['kind'] == 'difference' else ''}.{digits}f"
    text = f"{row['value']:{form}}"
    return text if pd.isna(row["ci_low"]) else f"{text} [{row['ci_low']:{form}}, {row['ci_high']:{form}}]"


def layers_of(table: pd.DataFrame) -> list[str]:
    """Return the MoE layers, the first one first."""
    return [layer for layer in dict.fromkeys(table["layer"]) if layer]


def _layer_title(index: int, layers: int) -> str:
    """Return which MoE layer of how many it is, in words for the first."""
    if index == 0 and layers > 1:
        return f"first MoE layer of {layers}, as the paper's sixth"
    return f"MoE layer {index + 1} of {layers}"


def _top_ks(table: pd.DataFrame) -> list[int]:
    return list(dict.fromkeys(table["top_k"]))


def _is_pair(table: pd.DataFrame, top_k: int, seed: float) -> "pd.Series[bool]":
    """Return which rows are of a pair; its seed may be unknown."""
    of_seed = table["seed"].isna() if pd.isna(seed) else table["seed"] == seed
    return of_seed & (table["top_k"] == top_k)


def _models(table: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(table.loc[table["kind"] == "value", "model"]))


def _seed(seed: float) -> str:
    return "" if pd.isna(seed) else f"{seed:g}"


def _accuracies(table: pd.DataFrame, paper: pd.DataFrame) -> list[str]:
    """Return a table per k; none where the data have no labels of the models' classes."""
    sections = []
    rows = table[table["number"] == "accuracy"]
    for top_k in _top_ks(rows):
        title = f"{_OF_K[top_k]}: accuracy, k = {top_k}" if top_k in _OF_K else f"Accuracy, k = {top_k}"
        lines = [f"## {title}", "", "| model | seed | accuracy |", "|---|---|---|"]
        for model in _models(rows):
            model_rows = rows[(rows["model"] == model) & (rows["top_k"] == top_k) & (rows["kind"] == "value")]
            lines += [f"| {model} | {_seed(row['seed'])} | {cell(row)} |" for _, row in model_rows.iterrows()]
        theirs = paper[(paper["metric"] == "accuracy") & (paper["top_k"] == top_k)]
        lines += [
            f"| {_THEIRS.format(**row)} | | {_published_cell(row)} |" for row in theirs.to_dict("records")
        ]
        sections.append("\n".join(lines))
    return sections


def _of_layers(
    table: pd.DataFrame,
    paper: pd.DataFrame,
    *,
    title: str,
    intro: str,
    columns: dict[str, str],
    first_only: bool = False,
) -> list[str]:
    """Return a table per MoE layer, the first one first; ``first_only``: only it also has the paper's values."""
    names = [name for name in columns if (table["number"] == name).any()]
    if not names:
        return []
    layers = layers_of(table)
    sections = [f"## {title}\n\n{intro}"]
    for index, layer in enumerate(layers):
        lines = [
            f"### {layer}: {_layer_title(index, len(layers))}",
            "",
            f"| model | seed | {' | '.join(names)} |",
            f"|{'---|' * (len(names) + 2)}",
        ]
        values_of_layer = table[
            (table["layer"] == layer) & (table["kind"] == "value") & table["number"].isin(names)
        ]
        for model in _models(values_of_layer):
            for seed, rows in values_of_layer[values_of_layer["model"] == model].groupby(
                "seed", sort=False, dropna=False
            ):
                values = rows.set_index("number")
                cells = [cell(values.loc[name]) if name in values.index else "–" for name in names]
                lines.append(f"| {model} | {_seed(seed)} | {' | '.join(cells)} |")
        reference_rows = paper[:0] if first_only and index else paper
        for (model, dataset), theirs in reference_rows.groupby(["model", "dataset"], sort=False):
            by_metric = {row["metric"]: _published_cell(row) for row in theirs.to_dict("records")}
            cells = [by_metric.get(columns[name], "") for name in names]
            lines.append(f"| {_THEIRS.format(model=model, dataset=dataset)} | | {' | '.join(cells)} |")
        sections.append("\n".join(lines))
    return sections


def load_lines(table: pd.DataFrame, load: pd.DataFrame) -> list[str]:
    """Return how evenly tokens choose: load entropy, how many experts are dead, and which, layer by layer."""
    models = _models(table)
    headings = {"all": "dead", "first": "dead as first choice"}
    lines = [
        "## Load: how evenly patches of clean images choose",
        "",
        "The paper says that PRC prevents the router from collapsing and gives no numbers. Load entropy is 1 where all "
        "experts are chosen equally often, counting all k choices. Dead: experts with less than a tenth of an even "
        "share, 1 / (10 E), of all choices or, where k > 1, of the first; behind the colon which, numbered from 0. "
        "Each expert's share is in `load.csv`.",
        "",
        f"| layer | k | seed | {' | '.join(f'load entropy, {model}' for model in models)} | difference | "
        f"{' | '.join(f'{headings[choices]}, {model}' for choices in CHOICES for model in models)} |",
        f"|{'---|' * (4 + 3 * len(models))}",
    ]
    entropy = table[table["number"] == "load entropy"]
    values = table[table["kind"] == "value"]
    numbers = dict(zip(CHOICES, (DEAD_EXPERTS, NEVER_FIRST), strict=True))
    pairs = list(table[["top_k", "seed"]].drop_duplicates().itertuples(index=False, name=None))
    for layer, (top_k, seed) in itertools.product(layers_of(table), pairs):
        rows = entropy[(entropy["layer"] == layer) & _is_pair(entropy, top_k, seed)]
        cells = [cell(row) for _, row in rows.iterrows()]
        for choices, model in itertools.product(CHOICES, models):
            of_model, count_rows = (
                rows[(rows["layer"] == layer) & (rows["model"] == model) & _is_pair(rows, top_k, seed)]
                for rows in (load[load["choices"] == choices], values[values["number"] == numbers[choices]])
            )
            which = "" if of_model.empty else ", ".join(map(str, dead(of_model)))
            number_of = "–" if count_rows.empty else cell(count_rows.iloc[0])
            cells.append(f"{number_of}: {which}" if which else number_of)
        lines.append(f"| {layer} | {top_k} | {_seed(seed)} | {' | '.join(cells)} |")
    return lines


def region_table(table: pd.DataFrame, layer: str) -> str:
    """Return what corresponding patches of the object, of its outline and of the ground do in a layer."""
    first = _top_ks(table)[0]
    lines = [
        f"## Foreground or background: match of corresponding patches, {layer}, k = {first}",
        "",
        "The paper remarks on Figure 5 that PRC steadies foreground patches most, and gives no numbers. Foreground: "
        f"the patch shows the object alone (up to 5 % of its pixels); background: not at all. Noise: σ = {SIGMA:g}.",
        "",
        f"| number | seed | {' | '.join(_models(table))} | difference |",
        f"|{'---|' * (3 + len(_models(table)))}",
    ]
    values = table[(table["layer"] == layer) & (table["top_k"] == first)]
    for number in REGION_NUMBERS:
        for seed, rows in values[values["number"] == number.name].groupby("seed", sort=False, dropna=False):
            cells = " | ".join(cell(row) for _, row in rows.iterrows())
            lines.append(f"| {number.name} | {_seed(seed)} | {cells} |")
    return "\n".join(lines)


def _published_cell(row: dict[str, float]) -> str:
    error = row["standard_deviation"]
    return f"{row['value']:.4f}" + ("" if pd.isna(error) else f" ± {error:.4f}")


# The numbers of the tables, and their companions, of one pair of checkpoints.

# The noise of the numbers called "noise".
SIGMA = 0.2
DEAD_EXPERTS, NEVER_FIRST = "dead experts", "dead as first choice"
EVALUATION = "evaluation"
# κ of what processes a token, and of its first choice.
_KAPPA, _FIRST_KAPPA = "top{k}_set_match_kappa", "top1_match_kappa"
# Whose shares the table of the load has: where K = 1 the first choices are all.
CHOICES = {"all": EXPERT_SHARE, "first": EXPERT_SHARE_FIRST}


@dataclass(frozen=True)
class Number:
    """One number: what it is called, of which probe it is, and which rows of that probe's tables hold it.

    ``{k}`` in a metric is the number of experts per token; of one, its set is the first choice.
    """

    name: str
    probe: str
    metric: str
    null: str = ""
    tokens: str = IMAGE.token

    def metric_of(self, top_k: int | None) -> str:
        """Return the metric for so many experts per token."""
        if "{k}" not in self.metric:
            return self.metric
        return self.metric.format(k=top_k) if top_k and top_k > 1 else _FIRST_KAPPA


def _matches(view: str) -> Iterator[Number]:
    yield Number(f"{view}: top-1 match", view, "top1_match")
    yield Number(f"{view}: top-2 match", view, "top2_match")
    yield Number(f"{view}: top-2 match, any order", view, "top2_set_match")
    yield Number(f"{view}: κ", view, _KAPPA, "pooled")
    yield Number(f"{view}: κ within image", view, _KAPPA, "image")
    yield Number(f"{view}: κ₁", view, _FIRST_KAPPA, "pooled")
    yield Number(f"{view}: κ₁ within image", view, _FIRST_KAPPA, "image")


NUMBERS = (
    *_matches("random_crop"),
    *_matches("prc_crops"),
    Number("noise: top-1 match", "noise", "top1_match"),
    Number("noise: κ", "noise", _KAPPA, "pooled"),
    Number("noise: κ₁", "noise", _FIRST_KAPPA, "pooled"),
    Number("highest gate", "confidence", "gate_highest"),
    Number("second gate", "confidence", "gate_second"),
    Number("sum of the rest", "confidence", "gate_rest"),
    Number("entropy of the gates", "confidence", "gate_entropy"),
    Number("load entropy", "confidence", "load_entropy"),
    Number(DEAD_EXPERTS, "confidence", DEAD.name),
    Number(NEVER_FIRST, "confidence", DEAD_EXPERTS_FIRST.name),
    Number("accuracy", EVALUATION, "accuracy", tokens=""),
)
# By what the patches show, where the data have masks.
REGION_NUMBERS = tuple(
    Number(f"{probe}: {name}, {region}", probe, metric, null, region)
    for probe in ("random_crop", "noise")
    for name, metric, null in (("top-1 match", "top1_match", ""), ("κ₁", _FIRST_KAPPA, "pooled"))
    for region in reversed(REGIONS)
)


def number_rows(
    results: Mapping[str, Result], names: Mapping[str, str], *, top_k: int | None, seed: int | None
) -> list[dict[str, object]]:
    """Return the numbers of one pair: both values and the difference, for every MoE layer.

    Args:
        results: results of the probes, by the names that ``NUMBERS`` uses; one that is missing has no rows.
        names: what the tables call each of the two checkpoints, by its own name; the reference first.
        top_k: experts per token of the pair.
        seed: seed of the two trainings.
    """
    rows: list[dict[str, object]] = []
    for number in (*NUMBERS, *REGION_NUMBERS):
        result = results.get(number.probe)
        if result is None:
            continue
        assert result.comparison is not None
        differences = with_shown_intervals(result.comparison)
        for table, kind in ((result.table, "value"), (differences, "difference")):
            selected = _select(table, number, top_k)
            for layer in dict.fromkeys(selected["layer"]):
                of_layer = selected[selected["layer"] == layer].set_index("checkpoint")
                rows += [
                    {"top_k": top_k, "seed": seed, "layer": layer, "number": number.name, "kind": kind}
                    | {"model": called}
                    | of_layer.loc[name, ["value", "ci_low", "ci_high", "images", "trials"]].to_dict()
                    for name, called in names.items()
                    if name in of_layer.index
                ]
    return rows


def _select(table: pd.DataFrame, number: Number, top_k: int | None) -> pd.DataFrame:
    keep = (
        (table["metric"] == number.metric_of(top_k))
        & (table["null"] == number.null)
        & (table["tokens"] == number.tokens)
    )
    if number.probe == "noise":
        keep &= (table["view"] == "gaussian_noise") & (table["severity"] == SIGMA)
    return table[keep]


def load_rows(
    confidence: Result, names: Mapping[str, str], *, top_k: int | None, seed: int | None
) -> list[dict[str, object]]:
    """Return each expert's share of the choices of patches of clean images, all and first; arguments as above."""
    table = confidence.table
    table = table[table["tokens"] == IMAGE.token]
    return [
        {"top_k": top_k, "seed": seed, "layer": layer, "model": names[row["checkpoint"]], "choices": choices}
        | {"expert": int(row["expert"]), "share": row["value"]}
        | {name: row[name] for name in ("ci_low", "ci_high", "images", "trials")}
        for choices, metric in CHOICES.items()
        for layer, rows in table[table["metric"] == metric.name].groupby("layer", sort=False)
        for row in rows.to_dict("records")
    ]


def dead(load: pd.DataFrame) -> Sequence[int]:
    """Return the dead experts of one layer of one model, by the share of each of its experts."""
    return [int(expert) for expert in load.loc[load["share"] < dead_limit(len(load)), "expert"]]
