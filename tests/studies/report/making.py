"""Folders of finished runs, written by hand: small, and with names that no probe would let through."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from moeprobe.judging import words
from moeprobe.results.sidecars import Sidecar
from moeprobe.results.tables import frame
from moeprobe.runtime.files import write_csv

Value = tuple[float, float, float]
NAN = float("nan")
HOSTILE = "<script>alert(1)</script>"

# (layer, tokens, metric, null) -> value and interval of each checkpoint.
MATCH: dict[tuple[str, str, str, str], Sequence[Value]] = {
    ("blocks.3", "patch", "top1_match", ""): [(0.437, 0.418, 0.455), (0.607, 0.587, 0.626)],
    ("blocks.3", "patch", "top1_match_chance", "pooled"): [(0.128, 0.126, 0.129), (0.129, 0.127, 0.131)],
    ("blocks.3", "patch", "top1_match_chance", "image"): [(0.2, 0.19, 0.21), (0.21, 0.2, 0.22)],
    ("blocks.3", "patch", "top1_match_kappa", "pooled"): [(0.354, 0.333, 0.375), (0.549, 0.526, 0.571)],
    ("blocks.3", "prefix", "top1_match", ""): [(0.7, 0.65, 0.75), (0.8, 0.75, 0.85)],
    ("blocks.3", "prefix", "top1_match_kappa", "pooled"): [(0.6, 0.55, 0.65), (0.7, 0.65, 0.75)],
    ("blocks.5", "patch", "top1_match", ""): [(0.41, 0.39, 0.43), (0.52, 0.5, 0.54)],
    ("blocks.5", "patch", "top1_match_chance", "pooled"): [(0.12, 0.11, 0.13), (0.13, 0.12, 0.14)],
    ("blocks.5", "patch", "top1_match_kappa", "pooled"): [(0.33, 0.31, 0.35), (0.45, 0.43, 0.47)],
}
EVAL: dict[tuple[str, str, str, str], Sequence[Value]] = {
    ("", "", "accuracy", ""): [(0.972, 0.953, 0.986), (0.975, 0.956, 0.989)]
}


def row(
    checkpoint: str, key: tuple[str, str, str, str], value: Value, *, flag: str = "", **more: Any
) -> dict[str, Any]:
    layer, tokens, metric, null = key
    return {
        "run": "run", "checkpoint": checkpoint, "dataset": "digits", "split": "test", "layer": layer, "tokens": tokens,
        "metric": metric, "null": null, "value": value[0], "ci_low": value[1], "ci_high": value[2], "images": 360,
        "trials": 5530 if layer else 360, "seed": 0, "flag": flag,
    } | more  # fmt: skip


def minus(one: Value, other: Value) -> Value:
    """A difference with an interval of ± 0.02."""
    difference = one[0] - other[0]
    return difference, difference - 0.02, difference + 0.02


def sidecar(kind: str, checkpoints: Sequence[str], **more: Any) -> Sidecar:
    """What a probe records; ``request`` is added to what was asked, everything else replaces its part."""
    hashes = {name: (name.encode().hex() * 64)[:64] for name in checkpoints}
    request: dict[str, Any] = {
        "kind": kind, "data": "digits", "split": "test", "view": {"name": "random_crop", "flip": False},
        "severities": [], "layers": None, "limit": None, "seed": 0, "trained_capacity": False,
    }  # fmt: skip
    content = {
        "request": request | more.pop("request", {}),
        "command": f"moeprobe {kind} somewhere",
        "checkpoints": {
            name: {"path": f"{name}.safetensors", "sha256": hashes[name], "training": {"seed": 0}}
            for name in checkpoints
        },
        "wall_seconds": 1.25,
        "versions": {"moeprobe": "0.1.0", "torch": "2.13.0"},
        "platform": "Linux x86_64",
        "git_commit": "1" * 40,
    }
    return Sidecar(content | more)


def judged(line: dict[str, Any]) -> dict[str, Any]:
    """A difference judged by itself: its own interval is that of a family of one."""
    low, high, flag = line["ci_low"], line["ci_high"], line["flag"]
    sides = {"higher": low > 0, "lower": high < 0, words.IDENTICAL: line["value"] == low == high == 0}
    word = next((side for side, is_so in sides.items() if is_so), words.NO_DIFFERENCE)
    if low != low:
        word = flag.replace("_", " ") or "unstable"
    return {
        "checkpoint_value": NAN, "reference_value": NAN, "se": NAN, "sim_low": low, "sim_high": high,
        "family_cells": 1, "p": NAN, "p_holm": NAN, "detectable": NAN, "verdict": word,
        "judgement": words.judgement(line["metric"], word), "collapsed": "", "margin": 0.02,
    } | line  # fmt: skip


def frame_of_differences(lines: Sequence[dict[str, Any]]) -> pd.DataFrame:
    return frame([judged(line) for line in lines], judged=True)


def write_run(
    folder: Path,
    kind: str = "match-ratio",
    *,
    checkpoints: Sequence[str] = ("a", "b"),
    values: Mapping[tuple[str, str, str, str], Sequence[Value]] = MATCH,
    pictures: Sequence[str] = ("match-ratio.png",),
    **more: Any,
) -> Path:
    """Write a run whose differences are those of the values, each ± 0.02."""
    rows = [row(name, key, given[i]) for i, name in enumerate(checkpoints) for key, given in values.items()]
    differences = [
        row(name, key, minus(given[i], given[0]), reference=checkpoints[0])
        for i, name in enumerate(checkpoints)
        for key, given in values.items()
        if i
    ]
    return write_rows(folder, kind, rows, differences, checkpoints=checkpoints, pictures=pictures, **more)


def write_rows(
    folder: Path,
    kind: str,
    rows: Sequence[dict[str, Any]],
    differences: Sequence[dict[str, Any]] = (),
    *,
    checkpoints: Sequence[str],
    pictures: Sequence[str] = (),
    **more: Any,
) -> Path:
    """Write a run with these lines in its tables."""
    folder.mkdir(parents=True)
    if rows:
        write_csv(folder / "table.csv", frame(list(rows)))
    if differences:
        write_csv(folder / "comparison.csv", frame_of_differences(differences))
    for name in pictures:
        draw(folder / "figures" / name)
    write_sidecar(folder, sidecar(kind, checkpoints, **more))
    return folder


def write_sidecar(folder: Path, content: Any) -> None:
    (folder / "table.json").write_text(json.dumps(content), encoding="utf-8")


def draw(path: Path, *, gray: int = 128) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (40, 20), gray).save(path)


def write_frames(folder: Path, severities: Sequence[float] = (0.0, 0.1, 0.2)) -> Path:
    """Write an overlay with a picture per severity, as ``overlay --animate`` does."""
    (folder / "figures").mkdir(parents=True)
    frames = []
    for number, severity in enumerate(severities):
        name = f"figures/overlay-blocks.3-{number:03d}.png"
        draw(folder / name, gray=40 * number)
        frames.append({"severity": severity, "file": name})
    draw(folder / "figures" / "overlay-blocks.3.gif")
    draw(folder / "figures" / "overlay-blocks.3-strip.png")
    patches = "checkpoint,layer,image_id,row,column,clean_expert,perturbed_expert,compared,changed\n"
    patches += "".join(f"a,blocks.3,digits/7,0,{i},1,{i % 2 + 1},True,{i % 2 == 1}\n" for i in range(4))
    (folder / "patches.csv").write_text(patches, encoding="utf-8")
    # Not in order: the slider goes by the severity.
    write_sidecar(folder, sidecar("overlay", ["a"], frames={"blocks.3": frames[::-1]}))
    return folder


def write_overlay(
    folder: Path,
    *,
    severities: Sequence[float] = (0.0, 0.2),
    layers: Sequence[str] = ("blocks.1", "blocks.3"),
    checkpoints: Sequence[str] = ("a", "b"),
    images: Sequence[str] = ("digits/7", "digits/8"),
) -> Path:
    """Write an overlay of 2 x 2 patches: the last patch of b changes from expert 1 to 2 at the strongest severity."""
    draw(folder / "figures" / "overlay-blocks.1.png")
    header = "checkpoint,layer,severity,image_id,row,column,clean_expert,perturbed_expert,clean_patch"
    sets = "perturbed_set,perturbed_gates,perturbed_margin,clean_set,clean_gates,clean_margin"
    lines = [f"{header},clean_patch_expert,compared,changed,{sets}"]
    for name, layer, severity, image, patch in itertools.product(
        checkpoints, layers, severities, images, range(4)
    ):
        changed = (name, severity, patch) == (checkpoints[-1], max(severities), 3)
        expert = 2 if changed else 1
        lines.append(
            f"{name},{layer},{severity},{image},{patch // 2},{patch % 2},1,{expert},{patch},1,True,{changed},"
            f"{expert} 0,0.500 0.250,0.125,1 3,0.625 0.125,0.25"
        )
    (folder / "patches.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pixels = Image.new("L", (8 * (1 + len(severities)), 8 * len(images)))
    for step in range(1 + len(severities)):
        pixels.paste(80 * step, (8 * step, 0, 8 * step + 8, 8 * len(images)))
    pixels.save(folder / "pixels.png")
    write_sidecar(folder, sidecar("overlay", checkpoints, severity_unit="noise σ, in units of 1"))
    return folder


def write_classes(folder: Path) -> Path:
    """Write a run of ``routes``: in blocks.3 of b, expert 2 has much of two classes, and little of two."""
    write_run(folder, "routes", pictures=())
    shares = {"": 0.25, "cat": 0.5, HOSTILE: 0.375, "dog": 0.125, "owl": 0.0625}
    lines = ["checkpoint,layer,tokens,class,expert,value,ci_low,ci_high,images,trials,majority"]
    for layer, tokens, expert in (
        ("blocks.3", "patch", 2),
        ("blocks.3", "prefix", 2),
        ("blocks.7", "patch", 2),
    ):
        lines += [
            f"b,{layer},{tokens},{name},{expert},{share},{share - 0.01},{share + 0.01},20,80,0.1"
            for name, share in shares.items()
        ]
    (folder / "classes.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def write_text_overlay(folder: Path) -> Path:
    """Write an overlay of one text: "a shop" becomes "a sh|op", whose second token changes from expert 1 to 3."""
    draw(folder / "figures" / "overlay-layers.0.png")
    columns = (
        "checkpoint,layer,severity,image_id,token,word,clean_word,perturbed_expert,clean_token,clean_token_expert,"
        "compared,changed,perturbed_set,perturbed_gates,perturbed_margin,clean_set,clean_gates,clean_margin"
    )
    where = "a,layers.0"
    lines = [
        f"{where},0.0,lines/0,0,a,a,1,0,1,True,False,1,0.500,,1,0.500,",
        f"{where},0.0,lines/0,1, shop, shop,1,1,1,True,False,1,0.250,,1,0.250,",
        f"{where},0.2,lines/0,0,a,a,1,0,1,True,False,1,0.500,,1,0.500,",
        f"{where},0.2,lines/0,1, sh, shop,3,1,1,True,True,3,0.500,,1,0.250,",
        f"{where},0.2,lines/0,2,op,,3,,,False,False,3,0.500,,,,",
    ]
    (folder / "tokens.csv").write_text("\n".join([columns, *lines]) + "\n", encoding="utf-8")
    write_sidecar(folder, sidecar("overlay", ["a"], severity_unit="typos: share of words"))
    return folder


def hostile(folder: Path) -> Path:
    """A run in which whatever can carry a name carries a script."""
    key = (HOSTILE, "patch", "top1_match_kappa", "pooled")
    lines = [
        row(
            name,
            (HOSTILE, "patch", *which),
            (0.5, 0.4, 0.6),
            **{"class": HOSTILE, "router": HOSTILE, "flag": HOSTILE},
        )
        for name in (HOSTILE, f"{HOSTILE}2")
        for which in (("top1_match_kappa", "pooled"), (HOSTILE, HOSTILE), ("accuracy", ""))
    ]
    lines += [line | {"class": ""} for line in lines]
    differences = [row(f"{HOSTILE}2", key, (0.1, 0.05, 0.15), reference=HOSTILE)]
    return write_rows(
        folder, "match-ratio", lines, differences, checkpoints=[HOSTILE, f"{HOSTILE}2"],
        pictures=[f"{HOSTILE.replace('/', '|')}](x) 100%.png"],
        request={"data": HOSTILE, "view": {"name": HOSTILE, HOSTILE: HOSTILE}, HOSTILE: [HOSTILE]},
        command=f"moeprobe {HOSTILE} `{HOSTILE}`", platform=HOSTILE, versions={HOSTILE: HOSTILE},
    )  # fmt: skip
