"""``moeprobe upcycle``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeprobe.cli.commands.vmoe import channels, print_lines
from moeprobe.cli.front.early import check_checkpoints, check_data
from moeprobe.cli.front.environment import print_json
from moeprobe.errors import UserError

if TYPE_CHECKING:
    from moeprobe.models.training.upcycling import Upcycled


def upcycle(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="timm:NAME (weights of timm's hub), timm:NAME@PATH (of a file), or a dense checkpoint of moeprobe.",
        ),
    ],
    blocks: Annotated[
        str, typer.Option(help="Blocks to make sparse, from 0, e.g. 9,11; or last-2 or every-2.")
    ] = "last-2",
    num_experts: Annotated[int, typer.Option(help="Experts of each of these blocks.")] = 8,
    top_k: Annotated[int, typer.Option(help="Experts chosen per token.")] = 2,
    renormalise: Annotated[
        bool,
        typer.Option(
            "--renormalise/--no-renormalise",
            help="Divide a token's weights by their sum over its experts, so that the model starts out as the dense "
            "one.",
        ),
    ] = True,
    noise: Annotated[
        float,
        typer.Option(help="Noise on the copies of each MLP, as a share of its weights' standard deviation."),
    ] = 0.0,
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Resolution in pixels, to which position embeddings are resampled; default: the source's."
        ),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            help="Mean of the normalization, one number or one per channel; default: the source's, or timm's."
        ),
    ] = None,
    std: Annotated[str | None, typer.Option(help="Standard deviation of the normalization.")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set whose classes the head scores, and whose images both models see in the check; default: "
            "classes as in the source, random pixels."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of routers, noise, a fresh head and random pixels.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the new checkpoint.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint in --out.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Make a dense vision transformer sparse: the MLPs of some blocks become experts, which begin as copies.

    Routers start fresh and small. The largest difference of a token from the dense model's is checked and printed. The
    checkpoint is one to probe, and to start a training from (initialise=FOLDER).

    Example: `moeprobe upcycle timm:vit_small_patch16_224 --blocks 9,11 --num-experts 8 --out checkpoints/upcycled`
    """
    if out is None:
        raise UserError("upcycle writes a checkpoint: name its folder with --out checkpoints/NAME.")
    if not source.startswith("timm:"):
        check_checkpoints([source])
    check_data(data, split="test")
    from moeprobe import api

    upcycled = api.upcycle(
        source,
        out,
        blocks=_blocks(blocks),
        data=data,
        seed=seed,
        overwrite=overwrite,
        num_experts=num_experts,
        top_k=top_k,
        renormalise=renormalise,
        noise=noise,
        image_size=image_size,
        mean=None if mean is None else channels(mean, "--mean"),
        std=None if std is None else channels(std, "--std"),
    )
    _print(upcycled, data=data, as_json=json)


def _blocks(text: str) -> list[int] | str:
    """Return numbers of blocks, or the rule that names them."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return [int(part) for part in parts] if all(part.isdecimal() for part in parts) else text


def _print(upcycled: "Upcycled", *, data: str | None, as_json: bool) -> None:
    import dataclasses

    if as_json:
        content = dataclasses.asdict(upcycled) | {
            "folder": str(upcycled.folder),
            "model": upcycled.model.model_dump(),
        }
        print_json(content)
        return
    model, origin = upcycled.model, upcycled.origin
    weights = (
        "renormalized" if model.router and model.router.parameters["renormalise"] else "not renormalized"
    )
    lines = [
        f"Upcycled from {origin['source']}: {upcycled.dense_parameters:,} parameters became "
        f"{upcycled.parameters:,}; {', '.join(upcycled.layers)} have {model.num_experts} experts each, of which a "
        f"token chooses {model.top_k}; weights {weights}.",
        f"Normalization: mean {model.mean}, std {model.std}.",
        f"Largest difference of a token from the dense model's, on {upcycled.images}: {upcycled.difference:.1e} of "
        "the largest entry.",
    ]
    if upcycled.has_fresh_head:
        lines.append(
            "The source has no head, so this one is fresh: what it answers means nothing before a training."
        )
    print_lines(lines, upcycled.folder, data=data)
