"""Which experts of the committed digits checkpoints are missed, how alike they are, and what ranks them by price.

    python -m reports.scripts.regenerate_experts

Runs ``moeprobe experts --loss 0.02`` on each pair of checkpoints with the same k and training seed, and evaluates each
with all experts off. Writes to ``reports/experts``: ``prices.csv``, what interventions cost and which experts may go;
``pairs.csv``, of each pair of experts; ``likeness.csv``, means over pairs; all with differences, paired by image; and
``ranks.csv``, whether saliency or load ranks experts as their price does. And two figures. A minute.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from moeprobe import api
from moeprobe.metrics.analyses.expert_outputs import EXPERT_CKA, EXPERT_DISTANCE, EXPERT_DISTANCE_PERMUTED
from moeprobe.metrics.analyses.experts import (
    DISPENSABLE,
    INTERVENTIONS,
    PRICE_BAND,
    PRICE_BEYOND,
    intervention_metric,
)
from moeprobe.metrics.stats.bootstrap import Bootstrap, Replicates
from moeprobe.results.figures import panels, save
from moeprobe.results.palette import COLORS
from moeprobe.runtime.files import write_csv
from reports.scripts import experts_numbers as numbers
from reports.scripts.claims import over_trainings
from reports.scripts.objectives import MODELS
from reports.scripts.printed import shrink

OUT, CHECKPOINTS = Path("reports/experts"), Path("checkpoints/reference")
TOP_KS, SEEDS, LOSS = (1, 2), (0, 1, 2), 0.02
ALL = "all"
# The rise of the loss where no expert of any layer adds anything.
OFF = "experts_off"
METRICS = (
    *(intervention_metric(measured, kind).name for measured in ("price", "answer") for kind in INTERVENTIONS),
    PRICE_BAND.name,
    PRICE_BEYOND.name,
    DISPENSABLE.name,
    "expert_share",
    "expert_saliency",
)
KEYS = ["k", "train_seed", "model", "kind", "layer"]
# More digits are noise of the machine.
_DIGITS = 6
# Names that leave the legend in one line.
_SHORT = {"V-MoE": "V-MoE", "V-MoE with PRC": "PRC"}


def main() -> None:
    """Measure and write."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    runs = {(k, seed): experts(k, seed) for k in TOP_KS for seed in SEEDS}
    rows = [row for (k, seed), run in runs.items() for row in (prices(run, k, seed), off(k, seed))]
    table = pd.concat(rows, ignore_index=True)
    write_csv(OUT / "prices.csv", table)
    write_csv(OUT / "pairs.csv", pd.concat([pairs(run, *key) for key, run in runs.items()]))
    sums = {
        (*key, MODELS[name], layer): columns
        for key, run in runs.items()
        for (name, layer), columns in sums_of(run).items()
    }
    write_csv(OUT / "likeness.csv", likeness(sums))
    ranked = ranks(sums)
    write_csv(OUT / "ranks.csv", ranked)
    figures = {
        "saliency": saliency_figure(table, sums),
        "distances": runs[TOP_KS[-1], SEEDS[0]].plot()["expert-distances"],
    }
    for name, figure in figures.items():
        [path] = save(figure, OUT / name)
        shrink(path, path)


def experts(k: int, seed: int, *, limit: int | None = None) -> api.Result:
    """Return the run on both models of a k and training seed."""
    names = list(MODELS.values())
    return api.experts(
        _checkpoints(k, seed), data="digits", loss=LOSS, limit=limit, names=names, device="cpu", figures=False
    )


def off(k: int, seed: int) -> pd.DataFrame:
    """Return what the loss of both models rises by with all experts of all layers off."""
    parts = []
    for path, model in zip(_checkpoints(k, seed), MODELS.values(), strict=True):
        run = api.evaluate([path, f"{path},experts=off"], data="digits", device="cpu", figures=False)
        assert run.comparison is not None
        row = run.comparison[run.comparison["metric"] == "loss"]
        parts.append(row.assign(model=model, kind="value", metric=OFF, expert=np.nan))
    return _columns(pd.concat(parts), k, seed)


def prices(run: api.Result, k: int, seed: int) -> pd.DataFrame:
    """Return the rows of what interventions cost, and of which experts may go; values and differences."""
    rows = _both(run)
    rows = rows[
        rows["metric"].isin(METRICS) & ~(rows["metric"].str.contains("answer") & rows["expert"].notna())
    ]
    return _columns(rows, k, seed)


def pairs(run: api.Result, k: int, seed: int) -> pd.DataFrame:
    """Return a row per model, layer and pair of experts: distance, that of permuted patches, and alignment."""
    keys = ["k", "train_seed", "model", "layer", "expert", "expert_b"]
    names = [metric.name for metric in (EXPERT_DISTANCE, EXPERT_DISTANCE_PERMUTED, EXPERT_CKA)]
    rows = run.table[run.table["metric"].isin(names)]
    rows = rows.assign(k=k, train_seed=seed, model=rows["checkpoint"].map(_model_of))
    wide = rows.pivot_table(index=keys, columns="metric", values="value", sort=False)[names]
    return wide.round(4).reset_index()


def sums_of(run: api.Result) -> dict[tuple[str, str], numbers.Sums]:
    """Return the sums per image by model and layer, of the layer and of its patches together."""
    joined: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in run.sums:
        if cell.cell.layer:
            key = "prc" if "-prc-" in cell.checkpoint else "baseline", cell.cell.layer
            joined.setdefault(key, {}).update(cell.load_all()[1])
    return joined  # type: ignore[return-value]


def likeness(sums: dict[tuple[int, int, str, str], numbers.Sums]) -> pd.DataFrame:
    """Return how alike two experts are on average: a row per k, seed, layer, number and model, and the difference.

    The difference of all seeds has an interval over trainings and images, of all layers together.
    """
    rows = []
    bootstrap = _bootstrap(sums)
    places = dict.fromkeys((k, seed, layer) for k, seed, _, layer in sums)
    # Of each image, by k, layer and number: a seed a line.
    differences: dict[tuple[int, str, str], list[np.ndarray]] = {}
    for k, seed, layer in places:
        of_models = [sums[k, seed, model, layer] for model in MODELS.values()]
        first, second = (numbers.likeness(one, bootstrap) for one in of_models)
        images = [numbers.of_images(one) for one in of_models]
        for metric, value in first.items():
            sides = [(model, "value") for model in MODELS.values()] + [(MODELS["prc"], "difference")]
            values = (value, second[metric], second[metric].minus(value))
            rows += [
                dict(zip(KEYS, (k, seed, model, kind, layer), strict=True))
                | {"metric": metric}
                | _interval(one)
                for (model, kind), one in zip(sides, values, strict=True)
            ]
            differences.setdefault((k, layer, metric), []).append(images[1][metric] - images[0][metric])
    family = len({layer for _, _, layer in places})
    for (k, layer, metric), of_seeds in differences.items():
        about = {"k": k, "model": MODELS["prc"], "kind": "trainings", "layer": layer, "metric": metric}
        rows.append(about | over_trainings(np.array(of_seeds), family=family))
    return pd.DataFrame(rows).astype({"train_seed": "Int64"}).round(_DIGITS)


def ranks(sums: dict[tuple[int, int, str, str], numbers.Sums]) -> pd.DataFrame:
    """Return Spearman's correlations: a row per model, criterion and target, and one of the mean over models."""
    bootstrap = _bootstrap(sums)
    rows: list[dict[str, Any]] = []
    for layer in dict.fromkeys(key[-1] for key in sums):
        own = {key[:3]: columns for key, columns in sums.items() if key[-1] == layer}
        for target in (numbers.PRICE, numbers.SIZE):
            for criterion in (numbers.SALIENCY, numbers.LOAD):
                about = {"layer": layer, "criterion": criterion, "target": target}
                for key, columns in own.items():
                    value = numbers.ranks([columns], criterion, target, bootstrap)
                    rows.append(dict(zip(KEYS, key, strict=False)) | about | _interval(value))
                mean = numbers.ranks(list(own.values()), criterion, target, bootstrap)
                rows.append({"model": ALL} | about | _interval(mean))
            about = {"layer": layer, "criterion": numbers.HALVES, "target": target}
            between = {key: numbers.halves(columns, target) for key, columns in own.items()}
            rows += [
                {**dict(zip(KEYS, key, strict=False)), **about, "value": value}
                for key, value in between.items()
            ]
            rows.append({"model": ALL} | about | {"value": float(np.mean(list(between.values())))})
    table = pd.DataFrame(rows).astype({"k": "Int64", "train_seed": "Int64"})
    return table[
        ["layer", "criterion", "target", "k", "train_seed", "model", "value", "ci_low", "ci_high"]
    ].round(4)


def saliency_figure(table: pd.DataFrame, sums: dict[tuple[int, int, str, str], numbers.Sums]) -> Figure:
    """Return prices and sizes of bans against saliency, an expert of the first MoE layer a point, of all models."""
    figure, axes = panels.panels(1, 2, width=4.4, height=3.2, sharey=False)
    layer = next(iter(sums))[-1]
    for model, color in zip(MODELS.values(), COLORS, strict=False):
        for k, marker in zip(TOP_KS, ("o", "^"), strict=True):
            of_one = [columns for key, columns in sums.items() if key[0] == k and key[2:] == (model, layer)]
            x, price, size = (np.concatenate(part) for part in zip(*map(_points, of_one), strict=True))
            for panel, y in zip(axes[0], (price, size), strict=True):
                panel.scatter(
                    x, y, s=22, marker=marker, color=color, alpha=0.75, label=f"{_SHORT[model]}, k = {k}"
                )
    for panel, title in zip(
        axes[0], ("rise of the loss", "change of the loss, without its sign"), strict=True
    ):
        panel.set_title(title)
        panel.set_xlabel("saliency, over the mean of the layer's experts")
        panel.axhline(0, color="black", linewidth=0.8)
    axes[0, 0].set_ylabel("nats per image, without the expert")
    rows = table[(table["layer"] == layer) & (table["metric"] == PRICE_BAND.name)]
    rows = rows.assign(dataset="digits", split="test", tokens="")
    title = f"What a ban does, by the expert's saliency ({layer})"
    note = f"A point is an expert of one of {len(rows.groupby(KEYS[:3]))} models, on {rows['images'].max()} images"
    return panels.finish(figure, rows, title=title, notes=[note], mark=None)


def _points(sums: numbers.Sums) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return relative saliency, price and size of the experts that process anything."""
    processed = sums["expert_processed"].sum(0)
    used = processed > 0
    saliency = sums["expert_saliencies"].sum(0)[used] / processed[used]
    prices = sums["experts_price_without"][:, used]
    return saliency / saliency.mean(), prices.mean(0), np.abs(prices).mean(0)


def _checkpoints(k: int, seed: int) -> list[Path]:
    return [CHECKPOINTS / f"digits-{name}-k{k}-seed{seed}" for name in MODELS]


def _bootstrap(sums: dict[tuple[int, int, str, str], numbers.Sums]) -> Bootstrap:
    return Bootstrap(len(next(iter(sums.values()))["expert_norms"]), seed=0)


def _both(run: api.Result) -> pd.DataFrame:
    assert run.comparison is not None
    kinds = [run.table.assign(kind="value"), run.comparison.assign(kind="difference")]
    rows = pd.concat(kinds, ignore_index=True)
    return rows.assign(model=rows["checkpoint"].map(_model_of))


def _columns(rows: pd.DataFrame, k: int, seed: int) -> pd.DataFrame:
    """Return the rows in a few columns."""
    rows = rows.assign(k=k, train_seed=seed, expert=rows["expert"].astype("Int64"))
    columns = [*KEYS, "metric", "expert", "value", "ci_low", "ci_high", "images", "carriers"]
    return rows[columns].round(dict.fromkeys(("value", "ci_low", "ci_high"), _DIGITS))


def _model_of(checkpoint: str) -> str:
    return MODELS["prc" if "-prc-" in checkpoint else "baseline"]


def _interval(replicates: Replicates) -> dict[str, float]:
    estimate = replicates.interval()
    return {"value": estimate.value, "ci_low": estimate.low, "ci_high": estimate.high}


if __name__ == "__main__":
    main()
