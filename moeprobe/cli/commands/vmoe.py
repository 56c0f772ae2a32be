"""``moeprobe import vmoe`` and ``moeprobe export vmoe``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeprobe.cli.front.environment import print_json
from moeprobe.cli.front.options import numbers
from moeprobe.errors import UserError

if TYPE_CHECKING:
    from moeprobe.models.checkpoints.swin_moe import ImportedSwinMoe
    from moeprobe.models.checkpoints.vmoe import Imported
    from moeprobe.models.config import ModelConfig

# Options of both imports.
_Destination = Annotated[Path, typer.Argument(metavar="DST", help="Folder of the new checkpoint.")]
_CapacityFactor = Annotated[str, typer.Option(help="Capacity factor in training; none = no limit.")]
_EvalCapacityFactor = Annotated[
    str, typer.Option(help="Capacity factor in evaluation (see --capacity trained); none = no limit.")
]
_GroupImages = Annotated[int, typer.Option(help="Images that compete for the same capacity.")]
_Mean = Annotated[str, typer.Option(help="Mean of the normalization, one number or one per channel.")]
_Classes = Annotated[
    str | None,
    typer.Option(help="Data set whose classes the model scores, for accuracies; default: unknown."),
]
_Replace = Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint in DST.")]
_JsonSummary = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]


def import_vmoe(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="PREFIX",
            help="P of the files P.index and P.data-00000-of-…, a flax msgpack file, or Orbax's folder.",
        ),
    ],
    folder: _Destination,
    top_k: Annotated[int, typer.Option(help="Experts chosen per token.")] = 2,
    capacity_factor: _CapacityFactor = "1.05",
    eval_capacity_factor: _EvalCapacityFactor = "none",
    group_images: _GroupImages = 8,
    batch_priority: Annotated[
        bool, typer.Option("--batch-priority", help="Tokens with larger gates are served first.")
    ] = False,
    bfloat16_dispatch: Annotated[
        bool, typer.Option("--bfloat16-dispatch", help="Experts receive and return bfloat16.")
    ] = False,
    mean: _Mean = "0.5",
    std: Annotated[
        str,
        typer.Option(
            help="Standard deviation of the normalization; 0.5 for both gives V-MoE's range of [-1, 1]."
        ),
    ] = "0.5",
    crop_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of the shorter side kept in the center crop (0.875 at 224 px); default: squash."
        ),
    ] = None,
    classes: _Classes = None,
    overwrite: _Replace = False,
    json: _JsonSummary = False,
) -> None:
    """Convert a checkpoint of V-MoE (or PRC) to one of moeprobe, without JAX.

    Sizes are read from the parameters; the options give what leaves no trace in them. From a training state only the
    parameters are used.

    Example: `moeprobe import vmoe ckpt_46449 checkpoints/vmoe-s32 --eval-capacity-factor 4 --bfloat16-dispatch`
    """
    from moeprobe import api
    from moeprobe.cli.front.screen import Bar

    with Bar("arrays") as bar:
        imported = api.import_vmoe(
            source,
            folder,
            classes=classes,
            overwrite=overwrite,
            watcher=bar,
            top_k=top_k,
            capacity_factor=factor(capacity_factor, "--capacity-factor"),
            eval_capacity_factor=factor(eval_capacity_factor, "--eval-capacity-factor"),
            group_images=group_images,
            batch_priority=batch_priority,
            bfloat16_dispatch=bfloat16_dispatch,
            mean=channels(mean, "--mean"),
            std=channels(std, "--std"),
            crop_fraction=crop_fraction,
        )
    _print_imported(imported, as_json=json)


def export_vmoe(
    checkpoint: Annotated[str, typer.Argument(help="A run folder or a .safetensors file, of a V-MoE.")],
    prefix: Annotated[
        Path, typer.Argument(metavar="PREFIX", help="Beginning of the files' names: PREFIX.index …")
    ],
    shards: Annotated[int, typer.Option(help="Number of data shards that the experts are spread over.")] = 1,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a checkpoint of this prefix.")
    ] = False,
    json: _JsonSummary = False,
) -> None:
    """Write a V-MoE's parameters in the format of V-MoE's program: an index and data shards of msgpack.

    Example: `moeprobe export vmoe checkpoints/demo-prc exported/demo-prc --shards 4`
    """
    from moeprobe import api
    from moeprobe.cli.front.screen import console

    exported = api.export_vmoe(checkpoint, prefix, shards=shards, overwrite=overwrite)
    files = [str(file) for file in exported.files]
    if json:
        print_json({"files": files, "parameters": exported.parameters, "bytes": exported.nbytes})
        return
    screen = console()
    screen.print(
        f"{exported.parameters:,} parameters, {exported.nbytes:,} bytes. The format has no place for top-k, capacity, "
        "normalization and classes.",
        soft_wrap=True,
    )
    listed = files if len(files) <= 6 else [*files[:4], "…", files[-1]]
    screen.print(f"Written: {', '.join(listed)}", soft_wrap=True)


def _print_imported(imported: "Imported", *, as_json: bool) -> None:
    import dataclasses

    sizes, model = imported.sizes, imported.model
    if as_json:
        content: dict[str, Any] = {
            "folder": str(imported.folder),
            "parameters": imported.parameters,
            "dtypes": imported.dtypes,
            "sizes": dataclasses.asdict(sizes),
            "model": model.model_dump(),
            "classes": imported.classes,
            "ignored": imported.ignored,
        }
        print_json(content)
        return
    layers = ", ".join(f"blocks.{layer}" for layer in sizes.layers)
    head = f"pre-logits of width {sizes.pre_logits}" if sizes.pre_logits else "without pre-logits"
    lines = [
        f"Found: {imported.parameters:,} parameters ({', '.join(imported.dtypes)}); {sizes.depth} blocks of width "
        f"{sizes.width} with {sizes.num_heads} heads; {sizes.num_experts} experts of hidden width {sizes.hidden_width} "
        f"in {layers}; patches of {sizes.patch_size} at {sizes.image_size} pixels; {sizes.num_classes:,} classes, "
        f"{head}.",
        f"Not in the file, as the options have it: {_routing_of(model)}; bfloat16 dispatch "
        f"{_yes_or_no(model.bfloat16_dispatch)}; {_inputs_of(imported)}.",
    ]
    if imported.ignored:
        parts = [f"{name!r} ({count})" for name, count in list(imported.ignored.items())[:8]]
        lines.append(f"Ignored, as it is no parameter: {', '.join(parts)}.")
    print_lines(lines, imported.folder)


# What imports share.


def _routing_of(model: "ModelConfig") -> str:
    return (
        f"top-k {model.top_k}; capacity factor {model.capacity_factor} in training, {model.eval_capacity_factor} in "
        f"evaluation; groups of {model.group_images} images; batch priority {_yes_or_no(model.batch_priority)}"
    )


def _inputs_of(imported: "Imported | ImportedSwinMoe") -> str:
    classes = "unknown" if imported.classes is None else f"as in {imported.classes}"
    return f"mean {imported.model.mean}, std {imported.model.std}; classes {classes}"


def _yes_or_no(is_on: bool | None) -> str:
    return "yes" if is_on else "no"


def print_lines(lines: list[str], folder: Path, *, data: str | None = None) -> None:
    """Print the import, its place, and the next step, on the data that are known."""
    from moeprobe.cli.front.screen import console
    from moeprobe.runtime.files import display_path

    folder = display_path(folder)
    lines += [
        f"Written to {folder}/: last.safetensors, last.json",
        f"Next: moeprobe noise-sweep {folder} --data {data or 'NAME:LOCATION'} --out reports/{folder.name}",
    ]
    for line in lines:
        console().print(line, soft_wrap=True)


def factor(text: str, option: str) -> float | str:
    """Return a capacity factor: a number, or "none"."""
    if text == "none":
        return text
    values = numbers(text, option)
    assert values is not None
    if len(values) != 1:
        raise UserError(f"{option} takes one number, or none; got {text!r}.")
    return values[0]


def channels(text: str, option: str) -> list[float]:
    """Return a number per channel."""
    values = numbers(text, option)
    assert values is not None
    if len(values) not in (1, 3):
        raise UserError(f"{option} takes one number, or three with commas between; got {text!r}.")
    return list(values) * (3 // len(values))


# ``moeprobe import swin-moe``.


def import_swin_moe(
    source: Annotated[
        Path, typer.Argument(metavar="PREFIX", help="P of the files P.rank0, P.rank1, …, or one of them.")
    ],
    folder: _Destination,
    top_k: Annotated[int, typer.Option(help="Experts chosen per token (TOP_VALUE).")] = 1,
    capacity_factor: _CapacityFactor = "1.25",
    eval_capacity_factor: _EvalCapacityFactor = "none",
    group_images: _GroupImages = 8,
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
    mean: _Mean = "0.485,0.456,0.406",
    std: Annotated[str, typer.Option(help="Standard deviation of the normalization.")] = "0.229,0.224,0.225",
    crop_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of the shorter side kept in the center crop (0.875 in Swin-MoE's program); default: squash."
        ),
    ] = None,
    classes: _Classes = None,
    overwrite: _Replace = False,
    json: _JsonSummary = False,
) -> None:
    """Convert a Swin-MoE checkpoint, which has a file per training rank, to one of moeprobe.

    Nothing in the files is executed. Sizes are read from the parameters; the options give what leaves no trace in them.

    Example: `moeprobe import swin-moe ckpt.pth checkpoints/swin-moe --eval-capacity-factor 1.25 --crop-fraction 0.875`
    """
    from moeprobe import api
    from moeprobe.cli.front.screen import Bar

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

    sizes, model = imported.sizes, imported.model
    if as_json:
        content = {
            "folder": str(imported.folder),
            "files": [str(file) for file in imported.files],
            "ranks": imported.ranks,
            "parameters": imported.parameters,
            "sizes": dataclasses.asdict(sizes),
            "model": model.model_dump(),
            "classes": imported.classes,
        }
        print_json(content)
        return
    renormalized = model.router is not None and model.router.parameters["renormalise"]
    lines = [
        f"Found: {imported.parameters:,} parameters of {imported.ranks} ranks; stages of "
        f"{', '.join(map(str, sizes.depths))} blocks with {', '.join(map(str, sizes.num_heads))} heads and windows of "
        f"{', '.join(map(str, sizes.windows))}, the first of width {sizes.width}; {sizes.num_experts} experts, chosen "
        f"by {sizes.router}, in {len(sizes.layers)} blocks ({', '.join(map(str, sizes.layers))}, counted through all "
        f"stages); patches of {sizes.patch_size} at {sizes.image_size} pixels; {sizes.num_classes:,} classes.",
        f"Not in the files, as the options have it: {_routing_of(model)}; {_inputs_of(imported)}; weights "
        f"{'' if renormalized else 'not '}renormalized.",
    ]
    print_lines(lines, imported.folder)
