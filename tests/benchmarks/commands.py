"""Running the benchmark of speed in tests."""

from typer.testing import CliRunner, Result

from benchmarks.speed.command import command


def bench_command(*arguments: object) -> Result:
    """Run ``python -m benchmarks.speed`` inside this process."""
    return CliRunner().invoke(command, ["bench", *(str(argument) for argument in arguments)])
