"""``moeprobe doctor``."""

from typing import Annotated

import typer


def doctor(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check the installation: packages, problems and devices.

    Example: `moeprobe doctor`
    """
    from rich.text import Text

    from moeprobe.cli.front.json_output import print_json
    from moeprobe.cli.front.screen import console
    from moeprobe.runtime.doctor import examine

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
