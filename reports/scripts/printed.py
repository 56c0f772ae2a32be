"""Put what commands really print into the guides, and copy the figures that these commands draw.

    python -m reports.scripts.printed [PAGE …]

A block begins with ``<!-- printed by: moeprobe … -->`` and ends with ``<!-- end -->``. Before ``-->`` may be a part of
the output: ``; lines 1-3``, ``; sentences`` (before the first table), ``; table 1`` (with its title), ``; to table 1``,
or ``; after table 1``. The commands run in one folder, page after page. There ``checkpoints/demo-baseline`` and
``checkpoints/demo-prc`` are the reference checkpoints, so no number depends on a training of today. It takes minutes,
so no test repeats it. Of named pages only these are written; the commands of those before them are run, too.
"""

import contextlib
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from moeprobe.recordings.readers.base import decode_base64, npy

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# In the order in which a reader would run their commands: later pages use what earlier ones wrote.
PAGES = (
    "../README.md",
    "guide/first-steps.md",
    "guide/own-model.md",
    "guide/checkpoints.md",
    "guide/comparing.md",
    "guide/data.md",
    "guide/routes.md",
    "guide/regret.md",
    "guide/recorded-routing.md",
    "guide/recipes.md",
    "guide/expert-parallel.md",
    "guide/counts.md",
    "guide/other-forms.md",
    "guide/locality.md",
    "guide/two-forms.md",
    "guide/prefetch.md",
    "guide/batches.md",
    "guide/coverage.md",
    "guide/reports.md",
    "guide/plugins.md",
    "guide/many-machines.md",
    "guide/tradeoff.md",
    "guide/training.md",
    "concepts/aligned-experts.md",
    "concepts/experts.md",
)
# Figures that the commands draw: the file in docs/img, and where a command wrote it.
FIGURES = {
    "guide-match.png": "reports/my-match/figures/match-ratio.png",
    "guide-noise.png": "reports/my-noise/figures/routing.png",
    "guide-forest.png": "reports/my-compare/figures/forest.png",
    "regret.png": "reports/regret/figures/regret.png",
    "guide-own-model.png": "reports/mine/figures/routing.png",
    "guide-drift.png": "reports/my-drift/figures/drift.png",
    "locality.png": "reports/locality/figures/locality.png",
    "prefetch.png": "reports/prefetch/figures/prefetch.png",
    "batches.png": "reports/batches/figures/batches.png",
    "coverage.png": "reports/coverage/figures/coverage.png",
    "align.png": "reports/my-align/figures/align.png",
    "two-forms.png": "reports/agree/figures/agree.png",
    "counts.png": "reports/load/figures/balance.png",
    "router-logits.png": "reports/logits/figures/confidence.png",
}
WIDTH = 118
_BLOCK = re.compile(
    r"<!-- printed by: (?P<command>[^\n;]+)(?:; (?P<part>[\w -]+))? -->\n.*?<!-- end -->", re.DOTALL
)


def main() -> None:
    """Run the commands of all pages, and write the pages that are named, or all."""
    chosen = sys.argv[1:] or list(PAGES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for page in PAGES[: 1 + max(map(PAGES.index, chosen))]:
            path = DOCS / page
            text = path.read_text(encoding="utf-8")
            for file, content in files(text):
                (folder / file).write_text(content, encoding="utf-8")
            marks = [match[0] for match in _BLOCK.finditer(text)]
            filled = [block(match, folder) for match in _BLOCK.finditer(text)]
            text = path.read_text(encoding="utf-8")  # it may have been edited meanwhile
            for before, after in zip(marks, filled, strict=True):
                text = text.replace(before, after)
            if page in chosen:
                path.write_text(text, encoding="utf-8")
            for figure, source in FIGURES.items():
                if (folder / source).exists():
                    shrink(folder / source, DOCS / "img" / figure)


def prepare(folder: Path) -> None:
    """Put what the guides begin with where they have it.

    These are the checkpoints, a real server's responses and configuration, the same responses as counts and under other
    keys, and router logits.
    """
    for name in ("baseline", "prc"):
        kept = ROOT / "checkpoints" / "reference" / f"digits-{name}-k2-seed0"
        shutil.copytree(kept, folder / "checkpoints" / f"demo-{name}")
    served = ROOT / "tests" / "recordings" / "servers"
    responses = gzip.decompress((served / "bfloat16.jsonl.gz").read_bytes())
    (folder / "responses.jsonl").write_bytes(responses)
    (folder / "model").mkdir()
    shutil.copyfile(served / "olmoe.json", folder / "model" / "config.json")
    answers = [json.loads(line)["choices"][0] for line in responses.splitlines()]
    write_counts(folder / "expert_counts.csv", answers)
    write_rollouts(folder / "rollouts.jsonl", answers)
    write_logits(folder / "logits.pt", folder / "olmoe-random")


def write_counts(path: Path, answers: Sequence[dict[str, Any]]) -> None:
    """Write how often each expert was chosen by each answer of a server, a step each, and no token."""
    lines = ["step,layer_id,expert_id,count"]
    for step, answer in enumerate(answers):
        for layer, chosen in enumerate(experts_of(answer).transpose(1, 0, 2)):
            experts, counts = np.unique(chosen, return_counts=True)
            lines += [
                f"{step},{layer},{expert},{count}" for expert, count in zip(experts, counts, strict=True)
            ]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def write_rollouts(path: Path, answers: Sequence[dict[str, Any]]) -> None:
    """Write the answers of a server as a trainer of one's own might: under other keys, as nested lists."""
    lines = [
        json.dumps(
            {
                "question": answer["prompt_token_ids"],
                "reply": answer["token_ids"],
                "extra": {"moe": experts_of(answer).tolist()},
            }
        )
        for answer in answers
    ]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def experts_of(answer: dict[str, Any]) -> np.ndarray:
    """Return the experts ``(T, L, K)`` of T tokens in L layers that a server sent of an answer."""
    what = "routed_experts"
    return npy(decode_base64(answer[what], what), what, axes="tokens, layers and experts")


def write_logits(path: Path, model: Path) -> None:
    """Write the router logits of a small model with random weights on lines of the license, and the model itself."""
    import torch

    from reports.scripts.regenerate_precision import license_lines, made

    with contextlib.chdir(ROOT):
        texts = license_lines()
    made(model, words_of=texts)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    encoded = AutoTokenizer.from_pretrained(model)(texts, padding=True, return_tensors="pt")
    inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
    with torch.inference_mode():
        output = AutoModelForCausalLM.from_pretrained(model)(**inputs, output_router_logits=True)
    torch.save({"router_logits": output.router_logits, **inputs}, path)


def files(text: str) -> Iterator[tuple[str, str]]:
    """Yield the files that a page prints: code blocks whose first line is a comment with a name."""
    for code in re.findall(r"```(?:python|yaml)\n(.*?)```", text, flags=re.DOTALL):
        name = re.match(r'(?:# |""")([\w.]+\.(?:py|yaml))', code)
        if name:
            yield name[1], code


def block(match: re.Match[str], folder: Path) -> str:
    """Return a block with what its command prints now."""
    program, *words = shlex.split(match["command"])
    if program != "moeprobe":
        raise SystemExit(f"Not a command of moeprobe: {match['command']}")
    print(match["command"], flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "moeprobe", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": str(WIDTH)},
        capture_output=True,
        text=True,
        check=False,
    )
    output = (done.stdout + done.stderr).replace(f"{folder.resolve()}/", "")
    printed = [line for part in output.splitlines() for line in wrapped(part.rstrip())]
    if match["part"]:
        printed = chosen_part(printed, match["part"])
    if not printed:
        raise SystemExit(f"Nothing is left to print: {match[0].splitlines()[0]}")
    mark = match[0].split("\n", 1)[0]
    return "\n".join([mark, "```text", *printed, "```", "<!-- end -->"])


def chosen_part(printed: list[str], part: str) -> list[str]:
    """Return some lines of an output, by the names that the docstring of this module has."""
    words = part.split()
    if words[0] == "lines":
        first, last = map(int, words[1].split("-"))
        return printed[first - 1 : last]
    number = 1 if part == "sentences" else int(words[-1])
    begins = [index for index, line in enumerate(printed) if line.startswith("┏")]
    ends = [index for index, line in enumerate(printed) if line.startswith("└")]
    begin, end = begins[number - 1] - 1, ends[number - 1] + 1  # a title of one line stands above
    parts = {
        "sentences": printed[:begin],
        "table": printed[begin:end],
        "to": printed[:end],
        "after": printed[end:],
    }
    return parts[words[0]]


def wrapped(line: str) -> list[str]:
    """Return a sentence in lines of a readable length; tables, lists and empty lines stay as they are."""
    if not line or "   " in line or any(character in line for character in "│┃━─┏└"):
        return [line]
    return textwrap.wrap(line, WIDTH, break_long_words=False, break_on_hyphens=False)


def shrink(source: Path, target: Path, *, is_photograph: bool = False) -> None:
    """Copy a figure with 256 colors, which is all that a chart needs; see ``in_256_colors``."""
    with Image.open(source) as image:
        in_256_colors(image, is_photograph=is_photograph).save(target, optimize=True)


def in_256_colors(image: Image.Image, *, is_photograph: bool = False) -> Image.Image:
    """Return a picture with a palette, which takes a third of the bytes, and looks the same.

    In a photograph the colors that few pixels have are as near as the others; in a chart they would take the place of
    shades of its lines.
    """
    if is_photograph:
        return image.convert("RGB").quantize(
            256, Image.Quantize.MAXCOVERAGE, kmeans=4, dither=Image.Dither.NONE
        )
    return image.convert("RGB").quantize(256, dither=Image.Dither.NONE)


if __name__ == "__main__":
    main()
