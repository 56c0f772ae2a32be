"""Write the pages of the documentation that follow from something else, and copy the figures that pages show.

    python docs/generate.py

Tests hold that what is committed is what this writes.
"""

from pathlib import Path

from writers import columns, commands, configurations, metrics, plugins, python, speed, stubs, terms
from writers.markdown import code, table

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Figures on pages are in docs/img, since a built site holds what is in docs and nothing else.
FIGURES = {
    "match-ratio.png": "reports/digits/match-ratio/figures/match-ratio.png",
    "noise-sweep.png": "reports/digits/noise-sweep/figures/routing.png",
    "attack-routing.png": "reports/attack/gradient-routing.png",
    "attack-transfer.png": "reports/attack/transfer.png",
    "attack-output.png": "reports/attack/gradient-output.png",
    "attack-objectives.png": "reports/attack/objectives.png",
    "align-kappa.png": "reports/align/kappa.png",
    "flip-costs.png": "reports/flips/costs.png",
    "expert-saliency.png": "reports/experts/saliency.png",
    "expert-distances.png": "reports/experts/distances.png",
    "precision.png": "reports/precision/digits.png",
    "regret-ranks.png": "reports/regret/ranks.png",
    "overlay.png": "reports/digits/overlay/figures/overlay-blocks.1.png",
    "attribution.png": "reports/digits/noise-sweep/figures/attribution.png",
    "prc-ablation.png": "reports/sweeps/prc-ablation/figures/first-layer.png",
    "labels.png": "reports/sweeps/labels-digits/figures/first-layer.png",
    "combine.png": "reports/sweeps/combine-digits/figures/first-layer.png",
    "experts.png": "reports/sweeps/experts-digits/figures/experts.png",
    "groups.png": "reports/sweeps/groups-digits/figures/first-layer.png",
    "combine-curves.png": "reports/sweeps/combine-digits/figures/curves-sinkhorn_token_choice.png",
    "thesis.png": "reports/sweeps/thesis-digits/figures/first-layer.png",
    "thesis-pretrain.png": "reports/thesis/pretrain/curves.png",
    "thesis-finetune.png": "reports/thesis/finetune/curves.png",
    "fashion-classes.png": "reports/fashion/seed0/routes/figures/classes-fashion-prc-k2-seed0.png",
    "fashion-sheet.png": "reports/fashion/seed0/routes/figures/sheet-1-fashion-prc-k2-seed0.png",
    "fashion-capacity.png": "reports/fashion/seed0/capacity.png",
    "fashion-overlay.png": "reports/fashion/seed0/overlay/figures/overlay-blocks.1.png",
    "routers-digits.png": "reports/routers/digits/figures/tradeoff.png",
    "routers-digits-steadiness.png": "reports/routers/digits/figures/steadiness.png",
    "routers-digits-time.png": "reports/routers/digits/figures/time.png",
    "routers-digits-patch4-time.png": "reports/routers/digits-patch4/figures/time.png",
    "routers-digits-deep-time.png": "reports/routers/digits-deep/figures/time.png",
    "routers-shapes.png": "reports/routers/shapes/figures/tradeoff.png",
    "routers-shapes-steadiness.png": "reports/routers/shapes/figures/steadiness.png",
}
# Figures that nothing above holds, and what made them: a script in reports/scripts, or something no script does.
DRAWN = {
    "data.png": "guide_figures",
    "overlay-texts.png": "guide_figures",
    "real-overlay.png": "a study of its own",
    "overlay-picture.png": "guide_figures",
    "modality.png": "guide_figures",
    "shards.png": "guide_figures",
    "good-kappa.png": "kappa_reference",
    "align.png": "printed",
    "guide-drift.png": "printed",
    "locality.png": "printed",
    "two-forms.png": "printed",
    "prefetch.png": "printed",
    "batches.png": "printed",
    "coverage.png": "printed",
    "regret.png": "printed",
    "guide-forest.png": "printed",
    "guide-match.png": "printed",
    "guide-noise.png": "printed",
    "guide-own-model.png": "printed",
    "report.png": "screenshots",
    "report-patches.png": "a screenshot",
    "server-disagreement.png": "a server",
    "server-mismatch.png": "a server",
    "flips.png": "guide_figures",
    "indexer.png": "guide_figures",
    "balance.png": "guide_figures",
    "corruptions.png": "guide_figures",
    "margins.png": "guide_figures",
    "quantized.png": "guide_figures",
    "monitor.png": "monitor_figure",
    "routers-differences.png": "trainings_figure",
    "experts-price.png": "guide_figures",
    "counts.png": "printed",
    "router-logits.png": "printed",
    "large-models.png": "guide_figures",
    "long-inputs.png": "guide_figures",
    "own-routers.png": "guide_figures",
    "spread-models.png": "guide_figures",
}
ARCHITECTURE = DOCS / "contributing" / "architecture.md"
WRITERS = (commands, metrics, columns, plugins, configurations, python, terms, speed)


def main() -> None:
    """Write all of it."""
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
    for name, text in stubs.files().items():
        (ROOT / name).write_text(text, encoding="utf-8")
    ARCHITECTURE.write_text(with_sizes(ARCHITECTURE.read_text(encoding="utf-8")), encoding="utf-8")
    (DOCS / "img").mkdir(exist_ok=True)
    for name, source in FIGURES.items():
        if (ROOT / source).exists():  # those of sweeps are in the archive of reports
            (DOCS / "img" / name).write_bytes((ROOT / source).read_bytes())


def pages() -> dict[str, str]:
    """Return the generated pages: file below docs, and its text."""
    written: dict[str, str] = {}
    for writer in WRITERS:
        written |= writer.pages()
    return written


def with_sizes(page: str) -> str:
    """Return the page on the architecture with how many files and lines each part has now, between its marks."""
    rows = []
    for part in sorted(path for path in (ROOT / "moeprobe").iterdir() if (path / "__init__.py").is_file()):
        files = sorted(part.rglob("*.py"))
        lines = sum(file.read_text(encoding="utf-8").count("\n") for file in files)
        rows.append([code(f"{part.name}/"), str(len(files)), f"{lines / 1000:.0f}k"])
    begin, end = "<!-- sizes of the tree -->\n", "<!-- end -->"
    before, _, rest = page.partition(begin)
    return before + begin + table(["part", "files", "lines"], rows) + "\n" + end + rest.partition(end)[2]


if __name__ == "__main__":
    main()
