"""``moeprobe doctor``."""

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeprobe import __version__
from moeprobe.cli.front.environment import print_json
from moeprobe.cli.front.options import Download
from moeprobe.declarations.fields import arg_of
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError, first_line, option
from moeprobe.runtime.extras import install_command

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# Extras of those who work on moeprobe itself.
_FOR_DEVELOPERS = ("dev", "docs")


@dataclass(frozen=True)
class CheckResult:
    """One thing looked at; ``level`` is ok, note or wrong."""

    level: str
    subject: str
    text: str


def examine() -> list[CheckResult]:
    """Look at everything; nothing is changed."""
    findings = [
        CheckResult(
            "ok",
            "moeprobe",
            f"{__version__} on Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        )
    ]
    findings += _packages()
    if all(finding.level != "wrong" for finding in findings if finding.subject in ("torch", "torchvision")):
        findings += [_torchvision(), *_devices()]
    return findings


def _packages() -> list[CheckResult]:
    """Look for what the installed moeprobe asks for, in the versions that it takes: the required, then extras'."""
    from packaging.requirements import Requirement

    try:
        stated = [Requirement(text) for text in metadata.requires("moeprobe") or ()]
        extras = metadata.metadata("moeprobe").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return [
            CheckResult("note", "packages", "were not looked at: moeprobe is not installed, only imported")
        ]
    required = [_package(requirement, None) for requirement in stated if requirement.marker is None]
    optional = [
        _package(requirement, extra)
        for extra in extras
        if extra not in _FOR_DEVELOPERS
        for requirement in stated
        if requirement.marker is not None and requirement.marker.evaluate({"extra": extra})
    ]
    return required + optional


def _package(required: "Requirement", extra: str | None) -> CheckResult:
    """Return whether a package is there in a version that is taken, and how to get it."""
    name, level = required.name, "wrong" if extra is None else "note"
    missing = "is missing" if extra is None else "is not installed (optional)"
    command = f"pip install -U '{name}{required.specifier}'" if extra is None else install_command(extra)
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return CheckResult(level, name, f"{missing}: {command}")
    if required.specifier.contains(version, prereleases=True):
        return CheckResult("ok", name, version)
    return CheckResult(level, name, f"{version} does not fit {required.specifier}: {command}")


def _torchvision() -> CheckResult:
    from moeprobe.runtime.torchvision_compat import import_with_operators, operators_were_declared

    try:
        import_with_operators("torchvision")
    # A library that was built for another torch fails in as many ways as there are releases.
    except Exception as error:
        text = f"do not fit together, importing torchvision fails: {first_line(error)}"
        return CheckResult("wrong", "torch and torchvision", text)
    if not operators_were_declared():
        return CheckResult("ok", "torch and torchvision", "fit together")
    return CheckResult(
        "note",
        "torch and torchvision",
        "do not fit together: torchvision's C++ library was built for another torch (usually CUDA, and torch for CPU). "
        "For moeprobe there is nothing to do, it works around it; other programs may stop at "
        '"operator torchvision::nms does not exist"',
    )


def _devices() -> list[CheckResult]:
    import torch

    from moeprobe.routing.other_dtype import is_emulated

    threads = f"{torch.get_num_threads()} threads, {os.cpu_count()} cores"
    findings = [CheckResult("ok", "cpu", threads)]
    if is_emulated(torch.device("cpu")):
        findings.append(
            CheckResult(
                "note",
                "bfloat16",
                "this CPU has no instructions for it: passes in bfloat16 are emulated, in up to 1.7 times the time of "
                "float32; models whose weights are bfloat16 take many times as long, so load them with --dtype float32",
            )
        )
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        findings.append(CheckResult("ok", "cuda", ", ".join(names)))
    else:
        findings.append(CheckResult("note", "cuda", "not available"))
    if torch.backends.mps.is_available():
        findings.append(CheckResult("ok", "mps", "available"))
    return findings


def examine_model(source: str, options: "Options") -> list[CheckResult]:
    """Look at what opening a model of ``hf:`` takes; no weights are read.

    Raises:
        UserError: it is no model of ``hf:``.
    """
    from moeprobe.adapters.huggingface.needs import needs_of
    from moeprobe.adapters.open import is_huggingface
    from moeprobe.adapters.schemes import adapter_of
    from moeprobe.runtime.placement import make_placement

    if not is_huggingface(source):
        raise UserError(f"doctor looks at models of hf:; for {source} use moeprobe inspect.")
    _, reference = adapter_of(source)
    needs = needs_of(
        reference,
        dtype=options.dtype,
        placement=make_placement(options.device, options.device_map, options.max_memory, options.offload),
    )
    return [CheckResult(need.level, need.subject, need.text) for need in needs]


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="A model of hf:; what opening it takes is printed instead."),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help=arg_of(Options, "dtype").help)] = None,
    device_map: Annotated[str | None, typer.Option(help=arg_of(Options, "device_map").help)] = None,
    max_memory: Annotated[str | None, typer.Option(help=arg_of(Options, "max_memory").help)] = None,
    offload: Annotated[Path | None, typer.Option(help=arg_of(Options, "offload").help)] = None,
    download: Download = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the installation: packages, problems and devices; or what opening a model takes.

    Of a model, the configuration and the headers of its files are read. The exit code is 2 where it cannot be opened.

    Example: `moeprobe doctor`
    """
    typed = {"dtype": dtype, "device_map": device_map, "max_memory": max_memory, "offload": offload}
    changes: dict[str, Any] = {name: value for name, value in typed.items() if value is not None}
    if model is None and changes:
        raise UserError(
            f"{option(next(iter(changes)))} is about a model; name one: moeprobe doctor hf:MODEL."
        )
    findings = examine() if model is None else examine_model(model, Options(**changes))
    if json:
        print_json([{"level": f.level, "subject": f.subject, "text": f.text} for f in findings])
        # What is wrong with an installation is for the program that reads it.
        if model is None:
            return
    else:
        _print(findings)
    if any(finding.level == "wrong" for finding in findings):
        raise typer.Exit(2)


def _print(findings: list[CheckResult]) -> None:
    from rich.text import Text

    from moeprobe.cli.front.screen import console

    screen = console()
    colors = {"ok": "green", "note": "yellow", "wrong": "red"}
    for finding in findings:
        mark = Text(f"{finding.level:<6}", style=colors[finding.level])
        screen.print(mark.append(finding.subject, style="bold").append(f": {finding.text}", style="default"))
