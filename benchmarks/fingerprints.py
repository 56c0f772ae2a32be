"""What every command writes and says, as hashes: two trees that behave alike have the same.

    python -m benchmarks.fingerprints build/before.json          # in one tree
    python -m benchmarks.fingerprints build/after.json           # in another
    python -m benchmarks.fingerprints build/before.json --against build/after.json

Commands run on committed digits checkpoints, with few images. Kept are the SHA-256 of every table, array and picture,
of what ``run.json`` and sidecars say except versions, times and paths, of every ``--help`` and ``--json``, and of what
about two hundred wrong inputs are answered.
"""

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from moeprobe.cli.app import app
from moeprobe.runtime.files import write_json

REFERENCE = Path(__file__).parents[1] / "checkpoints" / "reference"
MODELS = (
    "digits-baseline-k2-seed0",
    "digits-prc-k2-seed0",
    "digits-baseline-k1-seed0",
    "digits-prc-k1-seed0",
)
# What a command is given apart from checkpoints, a small ``--limit`` and a folder.
COMMANDS: dict[str, list[str]] = {
    "match-ratio": [],
    "noise-sweep": ["--sigmas", "0,0.2"],
    "sweep": ["--view", "brightness"],
    "confidence": [],
    "eval": [],
    "routes": [],
    "overlay": ["--severity", "0.2"],
    "discontinuity": ["--limit", "4"],
    "contagion": [],
    "s-matrix": [],
    "determinism": [],
    "prefetch": [],
    "coverage": ["--need", "16"],
    "precision": ["--formats", "int8"],
    "margins": ["--limit", "20", "--draws", "2"],
    "flips": ["--limit", "20", "--patches", "2"],
    "experts": ["--limit", "20"],
    "regret": ["--limit", "20"],
    "corruptions": ["--corruptions", "fog,zoom_blur", "--severities", "3", "--limit", "20"],
    "attack": ["--limit", "8"],
    "fewshot": ["--shots", "1", "--limit", "40"],
    "align": ["--permutations", "40"],
    "agree": ["--limit", "20"],
    "trace record": [],
    "correspond": ["--count", "2"],
}
# What commands for recordings are given apart from a folder; capitals are files that ``_record`` writes.
RECORDED: dict[str, list[str]] = {
    "trace analyze": ["FIRST", "SECOND"],
    "trace align": ["FIRST", "SECOND", "--permutations", "40"],
    "trace balance": ["FIRST", "--ranks", "2"],
    "trace locality": ["FIRST", "SECOND"],
    "trace prefetch": ["FIRST", "SECOND"],
    "trace batches": ["FIRST", "SECOND"],
    "trace coverage": ["FIRST", "SECOND", "--need", "8"],
    "trace drift": ["FIRST", "SECOND", "THIRD"],
    "trace indexer": ["KEYS", "OTHER_KEYS", "--model-config", "SPARSE"],
    "trace mismatch": ["hf:MODEL", "--tokens", "TOKENS", "--routing", "SERVED"],
}
# Options that are wrong, or have a wrong value, for any command that knows them.
WRONG = (
    ["--no-such-option"],
    *([option, value] for option, value in {
        "--limit": "0", "--seed": "x", "--data": "digitz", "--device": "gpu", "--layers": "nowhere",
        "--batch-size": "0", "--group-images": "0", "--split": "tst", "--workers": "-1", "--view": "randomcrop",
        "--severities": "a", "--capacity": "some",
    }.items()),
    ["--limit", "x"],
)  # fmt: skip
# Keys of JSON that differ from run to run, or from machine to machine.
_VARYING = {
    "versions", "python", "platform", "machine", "git", "git_commit", "commit", "command", "seconds", "wall_seconds",
    "started", "images_per_second", "created", "time", "device", "host", "training_seconds", "step_seconds",
    "load_at_start", "load_at_end", "moeprobe",
}  # fmt: skip


def main() -> None:
    """Write the fingerprints of this tree, or compare those of two."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--against", type=Path, help="fingerprints to compare these with; nothing is run")
    everything = ",".join([*COMMANDS, *RECORDED])
    parser.add_argument("--commands", default=everything, help="comma-separated; default: all")
    options = parser.parse_args()
    if options.against is not None:
        differing = differences(*(json.loads(path.read_text()) for path in (options.file, options.against)))
        print("\n".join(differing) or "the same")
        sys.exit(bool(differing))
    os.environ["COLUMNS"] = "100"
    hashes = fingerprints(options.commands.split(","))
    options.file.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.file, hashes)
    print(f"{len(hashes)} hashes in {options.file}")


def fingerprints(commands: list[str]) -> dict[str, str]:
    """Return the hash of everything that these commands write and print, by what it is."""
    hashes = {f"help {name}": _hash(text) for name, text in _helps()}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, written, printed in lines(commands, root):
            hashes |= _outcome(f"{name} --out", [*written, "--out", str(root / name)], root)
            hashes |= {f"{name}: {path}": text for path, text in _files(root / name)}
            if printed:
                hashes |= _outcome(f"{name} --json", [*printed, "--json"], root)
        if (recordings := root / "recordings").exists():
            compared = [
                "trace",
                "check",
                f"{recordings}/SECOND.parquet",
                "--against",
                f"{recordings}/FIRST.parquet",
            ]
            hashes |= _outcome("trace check --json", [*compared, "--json"], root)
        for line in wrong_inputs(str(REFERENCE / MODELS[0])):
            hashes |= _outcome(f"wrong: {' '.join(line)}".replace(str(REFERENCE), "REFERENCE"), line, root)
    return hashes


def lines(commands: list[str], root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each command with what is typed to write into a folder, and what to print; empty = it prints nothing more.

    The folder of a command is ``root / name``; later commands read those of earlier ones, and recordings in ``root``.
    """
    models = [str(REFERENCE / name) for name in MODELS]
    for name in [name for name in commands if name in COMMANDS]:
        counted = {"--limit", "--count"} & {*COMMANDS[name]}
        extra = COMMANDS[name] if counted else [*COMMANDS[name], "--limit", "24"]
        written = [*name.split(), *models[: 1 if name == "correspond" else 2], *extra]
        printed = [*name.split(), models[2], *extra]
        if name == "align":
            printed = [*name.split(), *models[2:], *extra]
        yield name, written, [] if name in ("trace record", "overlay", "correspond") else printed
    if recorded := [name for name in commands if name in RECORDED]:
        files = _record(root / "recordings")
        for name in recorded:
            words = [*name.split(), *(_filled(word, files) for word in RECORDED[name])]
            yield name, words, words
    if "match-ratio" in commands:
        for name in ("compare", "report"):
            yield name, [name, str(root / "match-ratio")], []


def _filled(word: str, files: dict[str, str]) -> str:
    """Return a word of ``RECORDED`` with the file that it names."""
    kind, colon, name = word.rpartition(":")
    return kind + colon + files.get(name, name)


def _record(folder: Path) -> dict[str, str]:
    """Write small recordings of made-up servers, and return the paths by the names that ``RECORDED`` has for them."""
    import numpy as np

    from moeprobe import api
    from tests.recordings import selecting, serving
    from tests.recordings.test_mismatch import served

    folder.mkdir()
    for number, name in enumerate(("FIRST", "SECOND", "THIRD")):
        lines = []
        for request in range(24):
            ids = serving.routing(request)
            moved = np.random.default_rng(request).random(len(ids)) < 0.1 * number
            ids[moved] = (ids[moved] + number) % 8
            lines.append(serving.vllm(ids) | {"id": f"r{request}"})
        (folder / name).mkdir()
        log, config = serving.write(folder / name, *lines)
        api.import_routed_experts(log, folder / f"{name}.parquet", model_config=config)
    model = folder / "of_server"
    model.mkdir()
    served(model, "olmoe", rerouted=0.2)
    paths = {name: folder / f"{name}.parquet" for name in ("FIRST", "SECOND", "THIRD")} | {
        "MODEL": model / "model",
        "TOKENS": model / "responses.jsonl",
        "SERVED": model / "served.parquet",
        "KEYS": selecting.capture(folder / "keys.jsonl", selecting.selections),
        "OTHER_KEYS": selecting.capture(
            folder / "other-keys.jsonl", lambda seed: selecting.selections(seed, noise=0.2)
        ),
        "SPARSE": selecting.config(folder),
    }
    return {name: str(path) for name, path in paths.items()}


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return what is in one alone, and what differs, a line each."""
    lines = [f"gone: {name}" for name in before if name not in after]
    lines += [f"new: {name}" for name in after if name not in before]
    return lines + [f"differs: {name}" for name in before if name in after and before[name] != after[name]]


def wrong_inputs(model: str) -> Iterator[list[str]]:
    """Yield command lines that must be refused: of each command those of ``WRONG`` whose option it knows."""
    for name, command in _commands():
        known = {flag for parameter in getattr(command, "params", ()) for flag in parameter.opts}
        for options in WRONG:
            if options[0] in known or options[0] == "--no-such-option":
                yield [*name.split(), model, *options]
        yield [*name.split(), "no/such/folder"]


def _helps() -> Iterator[tuple[str, str]]:
    runner = CliRunner()
    yield "moeprobe", runner.invoke(app, ["--help"]).output
    for name, _ in _commands():
        yield name, runner.invoke(app, [*name.split(), "--help"]).output


def _commands() -> Iterator[tuple[str, Any]]:
    """Yield the commands as they are typed, and the groups."""
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        yield name, command
        for inner, inner_command in getattr(command, "commands", {}).items():
            yield f"{name} {inner}", inner_command


def _outcome(what: str, arguments: list[str], root: Path) -> dict[str, str]:
    result = CliRunner().invoke(app, arguments)
    output = result.output
    if "--json" in arguments and result.exit_code == 0:
        output = json.dumps(_without_varying(json.loads(result.stdout)), sort_keys=True)
    text = output.replace(str(root), "ROOT").replace(str(REFERENCE), "REFERENCE")
    return {what: f"{result.exit_code} {_hash(_without_times(text))}"}


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".json":
            text = json.dumps(_without_varying(json.loads(path.read_text())), sort_keys=True)
            # Where the tree lies is no difference: a sidecar names the files of its checkpoints.
            yield name, _hash(text.replace(str(folder.parent), "ROOT").replace(str(REFERENCE), "REFERENCE"))
        elif path.suffix == ".md":
            # The row of a run's settings holds the commit and, after it, machine and seconds.
            text = re.sub(r"\| [0-9a-f]{40}[^\n]*", "", path.read_text())
            yield name, _hash(text.replace(str(folder.parent), "ROOT").replace(str(REFERENCE), "REFERENCE"))
        elif path.suffix in (".csv", ".parquet", ".png", ".npz"):
            content = path.read_bytes().replace(str(folder.parent).encode(), b"ROOT")
            yield name, hashlib.sha256(content).hexdigest()


def _without_varying(content: Any) -> Any:
    """Return JSON without what varies from run to run."""
    if isinstance(content, dict):
        return {key: _without_varying(value) for key, value in content.items() if key not in _VARYING}
    if isinstance(content, list):
        return [_without_varying(item) for item in content]
    return content


def _without_times(text: str) -> str:
    return re.sub(r"\d[\d,]*(\.\d+)? (images/s|seconds|s|min)\b|\d+:\d\d(:\d\d)?", "TIME", text)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    main()
