"""Draw the pictures of README and guides that no committed run has, such as overlays, data sets, flips and margins.

    python -m reports.scripts.guide_figures [NAME ...]

Writes into ``docs/img``: the pictures that are named, by default all.
"""

import base64
import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from PIL import Image

from moeprobe import api
from moeprobe.inputs.corruptions import NAMES
from moeprobe.inputs.images import Framing
from moeprobe.inputs.views.corruption import Corruption
from moeprobe.results.figures import STYLE, save
from moeprobe.runtime.catalog import DATA
from moeprobe.runtime.seeds import generator
from reports.scripts.printed import in_256_colors
from reports.scripts.regenerate_precision import license_lines, made
from tests.adapters.tiny_gguf import write as write_gguf
from tests.adapters.tiny_pictures import save as save_tiny

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "img"
SHOWN = ("digits", "shapes", "checkerboard")
# The image of the data set shapes that is corrupted.
SHAPE = 8


def main(names: Sequence[str]) -> None:
    """Draw them."""
    pictures = {
        "overlay-texts": texts,
        "overlay-picture": picture,
        "modality": modality,
        "data": data_sets,
        "shards": shards,
        "flips": flips,
        "experts-price": experts,
        "indexer": indexer,
        "balance": balance,
        "corruptions": corruptions,
        "margins": margins,
        "quantized": quantized,
    }
    for name in names or pictures:
        [path] = save(pictures[name](), IMAGES / name)
        with Image.open(path) as image:
            in_256_colors(image).save(path, optimize=True)


def flips() -> Figure:
    """Return the sizes of flips on digits, by margin, of two committed models."""
    return api.flips(_two_models(), data="digits", figures=False).plot()["flips"]


def margins() -> Figure:
    """Return how much noise changes sets on digits, and how well margins predict it, of two committed models."""
    return api.margins(_two_models(), data="digits", figures=False).plot()["margins"]


def experts() -> Figure:
    """Return what layers lose without each expert, and with each on every token, of the same models."""
    return api.experts(_two_models(), data="digits", loss=0.02, figures=False).plot()["experts"]


def _two_models() -> list[Path]:
    return [ROOT / f"checkpoints/reference/digits-{name}-k2-seed0" for name in ("baseline", "prc")]


def indexer(requests: int = 32, tokens: int = 260, layers: int = 6, top_k: int = 32) -> Figure:
    """Return the agreement of two made-up captures of an indexer that prefers near keys; later layers agree less."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps({"num_hidden_layers": layers, "index_topk": top_k}))
        paths = [Path(folder) / f"{name}.jsonl" for name in ("served", "trainer")]
        noise = 0.02 + 0.06 * np.arange(layers)[:, None]
        for side, path in enumerate(paths):
            lines = []
            for number in range(requests):
                random, extra = np.random.default_rng(number), np.random.default_rng([number, side])
                keys = np.full((tokens - 1, layers, top_k), -1, np.int32)
                for query in range(tokens - 1):
                    far = np.log1p(np.arange(query, -1, -1)) / 6
                    scores = random.random((layers, query + 1)) + noise * extra.normal(
                        size=(layers, query + 1)
                    )
                    size = min(top_k, query + 1)
                    keys[query, :, :size] = np.argsort(far - scores, axis=1)[:, :size]
                encoded = base64.b64encode(keys.tobytes()).decode()
                lines.append(json.dumps({"meta_info": {"id": f"r{number}", "indexer_topk": encoded}}))
            path.write_text("\n".join(lines))
        return api.indexer(*paths, model_config=config).plot()["indexer"]


def balance(requests: int = 160, tokens: int = 40, layers: int = 6, experts: int = 64) -> Figure:
    """Return the load of made-up routing over time; in later layers more experts are hot for half of the time only."""
    with tempfile.TemporaryDirectory() as folder:
        log, trace = Path(folder) / "log.jsonl", Path(folder) / "made-up.parquet"
        lines = []
        for number in range(requests):
            for layer in range(layers):
                always, in_turn = (
                    np.random.default_rng([layer, part]).permutation(experts)[:8]
                    for part in (2, number * 2 // requests)
                )
                scores = np.random.default_rng([number, layer]).random((tokens, experts))
                scores[:, always[layer:]] += 0.3
                scores[:, in_turn[: layer + 1]] += 0.3
                chosen = np.argsort(-scores, axis=1)[:, :4].tolist()
                entry = {"id": f"r{number}", "layer": f"layers.{layer}", "num_experts": experts}
                lines.append(json.dumps(entry | {"experts": chosen}))
        log.write_text("\n".join(lines))
        api.import_trace(log, trace)
        return api.trace_balance(trace, ranks=8).plot()["balance"]


def modality() -> Figure:
    """Return which experts see pictures, of a vision-language model with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        save_tiny(Path(folder) / "tiny-vision")
        result = api.routes(f"hf:{folder}/tiny-vision", data="shapes:112", limit=60, count=0, figures=False)
        return result.plot()["modality"]


def picture() -> Figure:
    """Return the overlay of a photograph that comes with Matplotlib, of a vision-language model with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        save_tiny(Path(folder) / "tiny-vision")
        photograph = Path(folder) / "hopper.jpg"
        photograph.write_bytes(Path(mpl.get_data_path(), "sample_data", "grace_hopper.jpg").read_bytes())
        with contextlib.chdir(folder):
            result = api.overlay("hf:tiny-vision", files=[photograph.name], layers="first", figures=False)
        (figure,) = result.plot().values()
    return figure


def texts() -> Figure:
    """Return the overlay of two lines of the license, of a language model with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        lines = license_lines()
        made(Path(folder) / "olmoe-random", words_of=lines)
        (Path(folder) / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
        with contextlib.chdir(folder):  # the figure calls the texts by their path
            result = api.overlay(
                "hf:olmoe-random",
                data="text:lines.txt",
                view="typos",
                severity=0.3,
                count=3,
                layers=("layers.1",),
            )
    return result.plot()["overlay-layers.1"]


def quantized() -> Figure:
    """Return where a language model with random weights routes otherwise once a GGUF file holds it in few bits."""
    with tempfile.TemporaryDirectory() as folder:
        lines, model = license_lines(), Path(folder) / "olmoe-random"
        made(model, words_of=lines)
        write_gguf(model / "q4_0.gguf", model, "olmoe", {"exps": "Q4_0", "": "Q8_0"})
        (Path(folder) / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
        with contextlib.chdir(folder):  # the figure calls the texts by their path
            forms = ["hf:olmoe-random", "hf:olmoe-random,gguf=q4_0.gguf"]
            api.record(forms, data="text:lines.txt", out="traces")
            result = api.analyze_trace(
                ["traces/olmoe-random/clean.parquet", "traces/q4_0.gguf/clean.parquet"]
            )
    return result.plot()["disagreement"]


def data_sets(count: int = 6) -> Figure:
    """Return images of the data sets that are built in, a row each."""
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        panels = figure.subplots(len(SHOWN), count)
        for row, name in zip(panels, SHOWN, strict=True):
            dataset = DATA.get(name)(split="test")
            for number, ax in enumerate(row):
                ax.imshow(np.asarray(dataset.example(number).image), cmap="gray")
                ax.set(xticks=[], yticks=[])
            row[0].set_ylabel(name)
    return figure


def corruptions(across: int = 4, severities: tuple[int, ...] = (1, 3, 5)) -> Figure:
    """Return a rendered shape under all corruptions, at 224 pixels; the last panel is the clean image."""
    image = DATA.get("shapes")(split="test", location="96").example(SHAPE).image
    framing, gap = Framing(224), 6
    names = [*NAMES, "clean"]
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(5.1, 2.7))
        panels = figure.subplots(len(names) // across, across)
        figure.subplots_adjust(left=0.005, right=0.995, bottom=0.005, top=0.955, hspace=0.24, wspace=0.03)
        for ax, name in zip(panels.flat, names, strict=True):
            samples = [framing.clean(image)]
            if name in NAMES:
                view = Corruption(kind=name)
                samples = view.perturb(image, framing=framing, severities=severities, rng=generator(0, name))
            tiles = [
                np.pad(sample.pixels.numpy(), ((0, 0), (0, 0), (0, gap)), constant_values=1)
                for sample in samples
            ]
            ax.imshow(np.concatenate(tiles, axis=2).transpose(1, 2, 0))
            ax.set_title(name, fontsize=5, pad=1.5)
            ax.set_axis_off()
    return figure


def shards() -> Figure:
    """Return how the parts of a run come together."""
    figure = Figure(figsize=(7.6, 2.6))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, 10), ylim=(0, 3.4))
    ax.set_axis_off()
    parts = [(2.4, "--shard 1/3"), (1.4, "--shard 2/3"), (0.4, "--shard 3/3")]
    _box(ax, (0.2, 1.4), 1.9, "1,200 images")
    for height, text in parts:
        _box(ax, (3.1, height), 2.0, text)
        _arrow(ax, (2.1, 1.7), (3.1, height + 0.3))
        _arrow(ax, (5.1, height + 0.3), (6.1, 1.7))
    _box(ax, (6.1, 1.4), 1.4, "merge")
    _arrow(ax, (7.5, 1.7), (8.1, 1.7))
    _box(ax, (8.1, 1.15), 1.7, "the run of\none process", height=1.1)
    return figure


def _box(
    ax: mpl.axes.Axes, corner: tuple[float, float], width: float, text: str, height: float = 0.6
) -> None:
    shape = FancyBboxPatch(
        corner, width, height, boxstyle="round,pad=0,rounding_size=0.12", fc="#eef4f8", ec="#0072B2"
    )
    ax.add_patch(shape)
    ax.text(corner[0] + width / 2, corner[1] + height / 2, text, ha="center", va="center", fontsize=11)


def _arrow(ax: mpl.axes.Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color="#606060"))


if __name__ == "__main__":
    main(sys.argv[1:])
