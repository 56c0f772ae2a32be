"""``moeprobe doctor``."""

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated

import typer

from moeprobe import __version__

_REQUIRED = (
    "torch", "torchvision", "timm", "numpy", "scipy", "pandas", "pyarrow", "pillow", "matplotlib", "scikit-learn",
    "safetensors", "msgpack", "pydantic", "pyyaml", "typer", "rich", "jinja2",
    "threadpoolctl",
)  # fmt: skip
_OPTIONAL = {
    "datasets": "huggingface",
    "tensorboard": "tensorboard",
    "tensorstore": "orbax",
    "transformers": "hf",
}


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
    findings += [_installed(name) for name in _REQUIRED]
    findings += [_optional(name, extra) for name, extra in _OPTIONAL.items()]
    if all(finding.level == "ok" for finding in findings[:3]):
        findings += [_torchvision(), *_devices()]
    return findings


def _installed(name: str) -> CheckResult:
    try:
        return CheckResult("ok", name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return CheckResult("wrong", name, f"is missing; install moeprobe again, or: pip install {name}")


def _optional(name: str, extra: str) -> CheckResult:
    try:
        return CheckResult("ok", name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return CheckResult("note", name, f"is not installed (optional): pip install 'moeprobe[{extra}]'")


def _torchvision() -> CheckResult:
    from moeprobe.runtime.torchvision_compat import import_with_operators, operators_were_declared

    try:
        import_with_operators("torchvision")
    # A library that was built for another torch fails in as many ways as there are releases.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        return CheckResult(
            "wrong", "torch and torchvision", f"do not fit together, importing torchvision fails: {reason}"
        )
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

    threads = f"{torch.get_num_threads()} threads, {os.cpu_count()} cores"
    findings = [CheckResult("ok", "cpu", threads)]
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        findings.append(CheckResult("ok", "cuda", ", ".join(names)))
    else:
        findings.append(CheckResult("note", "cuda", "not available"))
    if torch.backends.mps.is_available():
        findings.append(CheckResult("ok", "mps", "available"))
    return findings


def doctor(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check the installation: packages, problems and devices.

    Example: `moeprobe doctor`
    """
    from rich.text import Text

    from moeprobe.cli.front.json_output import print_json
    from moeprobe.cli.front.screen import console

    findings = examine()
    if json:
        print_json([{"level": f.level, "subject": f.subject, "text": f.text} for f in findings])
        return
    screen = console()
    colors = {"ok": "green", "note": "yellow", "wrong": "red"}
    for finding in findings:
        mark = Text(f"{finding.level:<6}", style=colors[finding.level])
        screen.print(mark.append(finding.subject, style="bold").append(f": {finding.text}", style="default"))
    if any(finding.level == "wrong" for finding in findings):
        raise typer.Exit(2)
