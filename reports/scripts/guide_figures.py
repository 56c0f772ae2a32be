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
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from moeprobe import api
from moeprobe.inputs.corruptions import NAMES
from moeprobe.inputs.images import Framing
from moeprobe.inputs.views.corruption import Corruption
from moeprobe.results.figures import STYLE, save
from moeprobe.results.palette import COLORS
from moeprobe.runtime.catalog import DATA
from moeprobe.runtime.seeds import generator
from reports.scripts.printed import shrink
from reports.scripts.regenerate_precision import license_lines, made
from tests.adapters import tiny_texts
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
        "large-models": large_models,
        "long-inputs": long_inputs,
        "own-routers": own_routers,
        "spread-models": spread_models,
    }
    for name in names or pictures:
        [path] = save(pictures[name](), IMAGES / name)
        shrink(path, path)


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


def large_models() -> Figure:
    """Return whose weights are in memory in each pass of a sweep of three models that count as large."""
    from moeprobe.adapters import residence
    from moeprobe.adapters.huggingface import HuggingfaceAdapter

    networks: dict[str, Any] = {}
    passes: list[dict[str, int]] = []
    trace = HuggingfaceAdapter.trace

    def record(model: HuggingfaceAdapter, *args: Any, **more: Any) -> Any:
        networks[Path(model.model.name_or_path).name] = model.model
        passes.append(
            {
                name: sum(part.nbytes for part in network.parameters() if not part.is_meta)
                for name, network in networks.items()
            }
        )
        return trace(model, *args, **more)

    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        mock.patch.object(residence, "SMALL", 0),
        mock.patch.object(HuggingfaceAdapter, "trace", record),
    ):
        Path("lines.txt").write_text("\n".join(tiny_texts.texts()), encoding="utf-8")
        for name, layers in zip("ABC", (2, 3, 1), strict=True):
            tiny_texts.olmoe(Path(f"model {name}"), num_hidden_layers=layers)
        names = sorted(path.name for path in Path().glob("model *"))
        api.sweep([f"hf:{name}" for name in names], data="text:lines.txt", view="typos", figures=False)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 2.8), layout="constrained")
        ax = figure.subplots()
        number = np.arange(1, len(passes) + 1)
        for name, color in zip(names, COLORS, strict=False):
            in_memory = [sizes.get(name, 0) / 1e3 for sizes in passes]
            ax.bar(number, in_memory, width=1, color=color, label=name)
        ax.set(xlabel="forward pass of the run", ylabel="weights in memory, KB")
        figure.legend(loc="outside upper center", ncols=len(names))
    return figure


def long_inputs() -> Figure:
    """Return the memory that a text takes, by its length, of the table on the page."""
    page = (ROOT / "docs" / "guide" / "long-inputs.md").read_text(encoding="utf-8")
    header, *rows = (
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in page.splitlines()
        if line.startswith("| tokens |") or " MiB |" in line
    )
    sizes = np.array([[int(cell.removesuffix(" MiB").replace(",", "")) for cell in row[1:]] for row in rows])
    lengths = [int(row[0].replace(",", "")) for row in rows[1:]]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.0), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for column, name in enumerate(header[1:]):
            what, _, how = name.partition(", ")
            ax, color = panels[column // 2], COLORS[column % 2]
            ax.plot(lengths, sizes[1:, column], "o-", color=color, label=how)
            ax.set(title=what, xlabel="tokens of the text", xscale="log")
            ax.set_xticks(lengths, [f"{length:,}" for length in lengths])
            ax.minorticks_off()
        for ax in panels:
            ax.axhline(sizes[0].min(), color="#808080", linestyle="--", label="without a text")
        panels[0].set(ylabel="highest memory, MiB", ylim=(0, None))
        panels[0].yaxis.set_major_formatter("{x:,.0f}")
        panels[0].legend()
    return figure


def own_routers() -> Figure:
    """Return the class scores of a model with random weights that repeats choices: its own, and those of digits."""
    from tests.adapters import zoo
    from tests.adapters.test_hooks_replay import HandingMoe

    places = {"logits": 1, "indices": 2, "weights": 0}
    model = api.Hooks(zoo.vit(HandingMoe), routers="blocks.*.mlp.gate", read=places, **zoo.VIT)
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    scores, own = model.trace(images)
    assert scores is not None
    with tempfile.TemporaryDirectory() as folder:
        api.record([api.wrap(model, name="handing")], data="digits", limit=len(images), out=folder)
        digits = api.recorded_routing(Path(folder) / "handing" / "clean.parquet")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for ax, gates in zip(panels, ("recomputed", "replayed"), strict=True):
            for routing, name, color in (
                (digits, "experts of the digits", COLORS[0]),
                (own, "own experts", COLORS[1]),
            ):
                forced = model.replay(images, routing, gates=gates)
                ax.plot(scores.flatten(), forced.flatten(), "o", color=color, markersize=4, label=name)
            ax.axline((0, 0), slope=1, color="#808080", linewidth=0.8, zorder=0)
            ax.set(title=f'gates="{gates}"', xlabel="class score, free choice")
        panels[0].set_ylabel("class score, forced choice")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def spread_models(processes: int = 4, experts: int = 8) -> Figure:
    """Return which part of an OLMoE each process holds, by the plans of transformers."""
    from transformers import OlmoeConfig, OlmoeForCausalLM

    with torch.device("meta"):
        model = OlmoeForCausalLM(OlmoeConfig(num_hidden_layers=1, num_experts=experts))
    plans = {"replicas": {}, "experts": model.ep_plan, "tensor": model.tp_plan}
    # Parameters that stand for a part of the model, from its input to its output.
    parts = {
        "embeddings": "model.embed_tokens",
        "attention": "model.layers.0.self_attn.q_proj",
        "router": "model.layers.0.mlp.gate",
        "experts": "model.layers.0.mlp.experts.down_proj",
        "head": "lm_head",
    }
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(7.6, 3.6), layout="constrained")
        panels = figure.subplots(1, len(plans), sharey=True)
        for ax, (share, plan) in zip(panels, plans.items(), strict=True):
            row = 0
            for part, parameter in parts.items():
                style = next((plan[pattern] for pattern in plan if fnmatch(parameter, pattern)), "")
                for number in range(experts if part == "experts" else 1):
                    for process in range(processes):
                        held = _held(style, process / processes, number / experts, 1 / processes)
                        _cell(ax, process, row, *held)
                    row += 1
            ax.set(title=f"--parallel {share}", xlabel="process", xlim=(-0.05, processes), ylim=(row, 0))
            ax.set_xticks(np.arange(processes) + 0.45, range(processes))
            ax.tick_params(length=0)
            for spine in ax.spines.values():
                spine.set_visible(False)
        names = [f"expert {number}" for number in range(experts)]
        labels = [name for part in parts for name in (names if part == "experts" else [part])]
        panels[0].set_yticks(np.arange(row) + 0.45, labels)
    return figure


def _held(style: str, begin: float, expert: float, share: float) -> tuple[float, float]:
    """Return where the part that a process holds of something begins, and its width, of 1."""
    if style == "grouped_gemm":  # whole experts, as many for each process, one after the other
        return (0.0, float(begin <= expert < begin + share))
    return (begin, share) if style else (0.0, 1.0)


def _cell(ax: mpl.axes.Axes, column: int, row: int, begin: float, width: float, size: float = 0.9) -> None:
    """Draw a box whose filled part is held."""
    ax.add_patch(Rectangle((column + begin * size, row), width * size, size, fc="#0072B2", lw=0))
    ax.add_patch(Rectangle((column, row), size, size, fill=False, ec="#808080", lw=0.8))


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
