"""``moeprobe import swin-moe``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeprobe.cli.importing import channels, factor

if TYPE_CHECKING:
    from moeprobe.models.checkpoints.swin_moe import ImportedSwinMoe


def import_swin_moe(
    source: Annotated[
        Path, typer.Argument(metavar="PREFIX", help="P of the files P.rank0, P.rank1, …, or one of them.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="DST", help="Folder of the new checkpoint.")],
    top_k: Annotated[int, typer.Option(help="Experts chosen per token (TOP_VALUE).")] = 1,
    capacity_factor: Annotated[
        str, typer.Option(help="Capacity factor in training; none = no limit.")
    ] = "1.25",
    eval_capacity_factor: Annotated[
        str, typer.Option(help="Capacity factor in evaluation (see --capacity trained); none = no limit.")
    ] = "none",
    group_images: Annotated[int, typer.Option(help="Images that compete for the same capacity.")] = 8,
    batch_priority: Annotated[
        bool,
        typer.Option(
            "--batch-priority/--no-batch-priority",
            help="Tokens with larger gates are served first (USE_BPR).",
        ),
    ] = True,
    renormalise: Annotated[
        bool,
        typer.Option(
            "--renormalise", help="Divide a token's weights by their sum over its experts (NORMALIZE_GATE)."
        ),
    ] = False,
    image_size: Annotated[
        int | None, typer.Option(help="Resolution in pixels; default: read from the attention masks.")
    ] = None,
    mean: Annotated[
        str, typer.Option(help="Mean of the normalization, one number or one per channel.")
    ] = "0.485,0.456,0.406",
    std: Annotated[str, typer.Option(help="Standard deviation of the normalization.")] = "0.229,0.224,0.225",
    crop_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of the shorter side kept in the center crop (0.875 in Swin-MoE's program); default: squash."
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(help="Data set whose classes the model scores, for accuracies; default: unknown."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint in DST.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Convert a Swin-MoE checkpoint, which has a file per training rank, to one of moeprobe.

    Nothing in the files is executed. Sizes are read from the parameters; the options give what leaves no trace in them.

    Example: `moeprobe import swin-moe ckpt.pth checkpoints/swin-moe --eval-capacity-factor 1.25 --crop-fraction 0.875`
    """
    from moeprobe import api
    from moeprobe.cli.screen import Bar

    with Bar("files") as bar:
        imported = api.import_swin_moe(
            source,
            folder,
            image_size=image_size,
            renormalise=renormalise,
            classes=classes,
            overwrite=overwrite,
            watcher=bar,
            top_k=top_k,
            capacity_factor=factor(capacity_factor, "--capacity-factor"),
            eval_capacity_factor=factor(eval_capacity_factor, "--eval-capacity-factor"),
            group_images=group_images,
            batch_priority=batch_priority,
            mean=channels(mean, "--mean"),
            std=channels(std, "--std"),
            crop_fraction=crop_fraction,
        )
    _print(imported, as_json=json)


def _print(imported: "ImportedSwinMoe", *, as_json: bool) -> None:
    import dataclasses
    import json

    from moeprobe.cli.screen import console

    sizes, model, folder = imported.sizes, imported.model, imported.folder
    if as_json:
        content = {
            "folder": str(folder),
            "files": [str(file) for file in imported.files],
            "ranks": imported.ranks,
            "parameters": imported.parameters,
            "sizes": dataclasses.asdict(sizes),
            "model": model.model_dump(),
            "classes": imported.classes,
        }
        print(json.dumps(content, ensure_ascii=False))
        return
    classes = "unknown" if imported.classes is None else f"those of {imported.classes}"
    renormalized = model.router is not None and model.router.parameters["renormalise"]
    lines = [
        f"Found: {imported.parameters:,} parameters of {imported.ranks} ranks; stages of "
        f"{', '.join(map(str, sizes.depths))} blocks with {', '.join(map(str, sizes.num_heads))} heads and windows of "
        f"{', '.join(map(str, sizes.windows))}, the first of width {sizes.width}; {sizes.num_experts} experts, chosen "
        f"by {sizes.router}, in {len(sizes.layers)} blocks ({', '.join(map(str, sizes.layers))}, counted through all "
        f"stages); patches of {sizes.patch_size} at {sizes.image_size} pixels; {sizes.num_classes:,} classes.",
        f"Not in the files, as the options have it: top-k {model.top_k}; capacity factor {model.capacity_factor} in "
        f"training, {model.eval_capacity_factor} in evaluation; groups of {model.group_images} images; batch priority "
        f"{'yes' if model.batch_priority else 'no'}; mean {model.mean}, std {model.std}; classes {classes}; weights "
        f"{'' if renormalized else 'not '}renormalized.",
        f"Written to {folder}/: last.safetensors, last.json",
        f"Next: moeprobe noise-sweep {folder} --data NAME:LOCATION --out reports/{folder.name}",
    ]
    for line in lines:
        console().print(line, soft_wrap=True)
