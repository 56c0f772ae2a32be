"""How many faults would the tests find? Small changes of the statistics and the verdicts, drawn at random.

    python -m benchmarks.mutants build/mutants [--mutants 420] [--seed 0] [--out reports/mutants]

A mutant is the package with one small change in one function: ``<`` for ``<=``, ``+`` for ``-``, another number or
string, ``None`` for an argument or a value, an argument left out. A test that fails kills it. A mutant that survives
is a fault that no test would find, or it is equivalent: nothing that a caller can see depends on the change.

The changes are those of mutmut (https://mutmut.readthedocs.io), and so are the processes that run, for each mutant, the
tests that reach the changed function. ``make mutants`` installs it. It leaves out decorated functions (also
properties), annotations, docstrings and what stands outside of functions. Of each file as many mutants are drawn as its
share of all, and at least ``FEWEST``; the overall share weights files by the numbers of their mutants.

``--out`` gets a row per file in ``table.csv``, a row per survivor in ``survivors.csv``, and facts in ``table.json``.
The column ``reason`` is written by hand; a survivor that was there before keeps what was written.
"""

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.metrics.stats.proportions import score_interval
from moeprobe.results.sidecars import provenance
from moeprobe.runtime.characters import restore
from moeprobe.runtime.files import write_csv, write_json

ROOT = Path(__file__).parents[1]
MUTATED = ("moeprobe/metrics/stats", "moeprobe/judging")
# Those of other folders reach what the first two leave out: whole runs, reports and audits.
TESTS = (
    "tests/metrics",
    "tests/judging",
    "tests/contracts/test_analyses.py",
    "tests/results/test_summaries.py",
    "tests/results/test_many_images.py",
    "tests/results/test_unseen.py",
    "tests/results/test_gate.py",
    "tests/studies/report/test_conclusion.py",
    "tests/studies/report/test_words.py",
    "tests/studies/test_audit.py",
    "tests/studies/test_hand_pairs.py",
    "tests/studies/test_plan.py",
    "tests/probes/test_align.py",
    "tests/probes/test_prefetch.py",
    "tests/probes/test_precision.py",
    "tests/recordings/test_trace_balance.py",
    "tests/recordings/test_batches.py",
    "tests/recordings/test_indexer.py",
    "tests/cli/test_summary_output.py",
)
MUTANTS = 420
FEWEST = 6
# What tests read beside the package.
_READ = (".git", "benchmarks", "checkpoints", "configs", "docs", "reports", "CHANGELOG.md", "README.md")
# A column that is written by hand.
_REASON = "reason"
LOG = "mutmut.log"
_KEY = ["file", "function", "change"]
# How a mutant's process ends, by mutmut's own table. 33: no test reaches the function; the last: signals, and limits of
# time.
_SURVIVED, _KILLED = {0, 5, 33}, {1, 3, 36, 24, -24, 152, 255, -11}


@dataclass(frozen=True)
class Mutant:
    """One change of a function.

    Attributes:
        name: by which mutmut knows it.
        file: relative to the repository.
        line: of the code that is changed, before the change.
        function: that holds it, of a class with its name: ``Load.influence``.
        change: code before and after.
    """

    name: str
    file: str
    line: int
    function: str
    change: str


def draw(file: str, number: int, *, seed: int, folder: Path) -> list[Mutant]:
    """Draw mutants of a file and write them, all in one file, to where mutmut looks for them.

    Args:
        file: relative to the repository.
        number: of mutants; all where there are fewer.
        seed: of the draw, which no other file changes.
        folder: in which mutmut runs.
    """
    from libcst.metadata import MetadataWrapper, PositionProvider
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.mutation.file_mutation import combine_mutations_to_source, compute_function_hashes
    from mutmut.utils.format_utils import get_mutant_name

    source = (ROOT / file).read_text(encoding="utf-8")
    module, mutations, classes, functions = _mutations(file)
    rng = np.random.default_rng([seed, *file.encode()])
    chosen = np.sort(rng.choice(len(mutations), min(number, len(mutations)), replace=False))
    drawn = [mutations[index] for index in chosen]
    # The names are in the order of the code, which is the order of the mutations.
    mutated = combine_mutations_to_source(module, drawn, classes, functions)
    names = [get_mutant_name(Path(file), name) for name in mutated.mutant_names]
    path = folder / "mutants" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(mutated.code, encoding="utf-8")
    data = SourceFileMutationData(path=file)
    data.meta_path = folder / data.meta_path
    data.exit_code_by_key = dict.fromkeys(names)
    data.hash_by_function_name = compute_function_hashes(source)
    data.save()
    positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
    return [
        Mutant(
            name=name,
            file=file,
            line=positions[mutation.original_node].start.line,
            function=_function_of(name),
            change=" → ".join(
                " ".join(module.code_for_node(node).split())
                for node in (mutation.original_node, mutation.mutated_node)
            ),
        )
        for name, mutation in zip(names, drawn, strict=True)
    ]


def _function_of(name: str) -> str:
    """Return the function that mutmut's name of a mutant holds: ``x_f__mutmut_1``, or ``xǁClassǁf__mutmut_1``."""
    function = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    return function.removeprefix("xǁ").replace("ǁ", ".") if "ǁ" in function else function.removeprefix("x_")


@functools.cache
def _mutations(file: str) -> tuple[Any, list[Any], set[str], set[str]]:
    """Return a file's tree, its mutations in functions, and the classes and functions without any, as mutmut does."""
    import libcst
    from mutmut.mutation.file_mutation import create_mutations

    module, mutations, classes, functions = create_mutations(file, (ROOT / file).read_text(encoding="utf-8"))
    in_functions = [
        one for one in mutations if isinstance(one.contained_by_top_level_function, libcst.FunctionDef)
    ]
    return module, in_functions, classes, functions


def prepare(folder: Path) -> None:
    """Make the folder in which mutmut runs: links to the repository, and mutmut's configuration."""
    shutil.rmtree(folder / "mutants", ignore_errors=True)
    (folder / "mutants").mkdir(parents=True)
    for name in ("moeprobe", "tests", "pyproject.toml"):
        _link(folder / name, ROOT / name)
    for name in _READ:
        _link(folder / "mutants" / name, ROOT / name)
    with_examples = [
        f"tests/test_doctests.py::test_examples_of_docstrings[{Path(file).relative_to('moeprobe')}]"
        for file in files()
        if ">>> " in (ROOT / file).read_text(encoding="utf-8")
    ]
    lists = {
        "source_paths": ["moeprobe"],
        "only_mutate": [f"{name}/*" for name in MUTATED],
        "pytest_add_cli_args": ["-m", "not slow", "-p", "no:cacheprovider"],
        "pytest_add_cli_args_test_selection": [*TESTS, *with_examples],
    }
    text = "".join(f"{name}=\n" + "".join(f"    {one}\n" for one in many) for name, many in lists.items())
    (folder / "setup.cfg").write_text(f"[mutmut]\nuse_git_change_detection=false\n{text}", encoding="utf-8")


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def files() -> list[str]:
    """Return the files that are mutated, relative to the repository."""
    return [
        str(path.relative_to(ROOT))
        for folder in MUTATED
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "__init__.py"
    ]


def run(folder: Path) -> dict[str, bool]:
    """Run the tests against every mutant; returns which were killed, by name.

    One process at a time. A mutant is killed, too, where the tests that reach it take fifteen times as long.
    """
    # Processes that tests start import the mutated package, too.
    paths = [str((folder / "mutants").resolve()), *(path for path in sys.path if path)]
    # Git, which some tests ask, is not to write into the repository from another folder.
    settings = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "GIT_OPTIONAL_LOCKS": "0"}
    code = "from mutmut.__main__ import cli; cli()"
    command = [sys.executable, "-c", code, "run", "--max-children", "1"]
    # A line is written over many times while it runs.
    with (folder / LOG).open("w", encoding="utf-8") as log:
        subprocess.run(command, cwd=folder, env=os.environ | settings, check=True, stdout=log)
    found: dict[str, bool] = {}
    for path in sorted((folder / "mutants").rglob("*.meta")):
        codes = json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
        if None in codes.values():
            raise RuntimeError(f"mutmut left mutants of {path.stem} untried; see {LOG}")
        if unknown := set(codes.values()) - _SURVIVED - _KILLED:
            raise RuntimeError(f"mutants of {path.stem} ended with {unknown}, which is no verdict; see {LOG}")
        found |= {name: code in _KILLED for name, code in codes.items()}
    return found


def counts(mutants: Sequence[Mutant], killed: dict[str, bool], numbers: dict[str, int]) -> pd.DataFrame:
    """Return a row per file: all of its mutants, those drawn, and those killed."""
    rows = pd.DataFrame(
        {"file": mutant.file, "drawn": 1, "killed": int(killed[mutant.name])} for mutant in mutants
    )
    table = rows.groupby("file", sort=False).sum().reset_index()
    table.insert(1, "mutants", table["file"].map(numbers))
    return table


def share(table: pd.DataFrame) -> tuple[float, float, float]:
    """Return the share of all mutants that are killed, and its 95 % interval (Wilson's, by its stratified error).

    Args:
        table: with ``mutants``, ``drawn`` and ``killed`` of each file.
    """
    weights = table["mutants"] / table["mutants"].sum()
    shares = table["killed"] / table["drawn"]
    value = float((weights * shares).sum())
    variances = shares * (1 - shares) / (table["drawn"] - 1) * (1 - table["drawn"] / table["mutants"])
    error = float(np.sqrt((weights**2 * variances).sum()))
    return value, *score_interval(value, error, int(table["drawn"].sum()))


def survivors(mutants: Sequence[Mutant], killed: dict[str, bool], before: Path) -> pd.DataFrame:
    """Return a row per survivor, with the reason that an earlier table has for it."""
    rows = [
        {"file": one.file, "line": one.line, "function": one.function, "change": one.change}
        for one in mutants
        if not killed[one.name]
    ]
    table = pd.DataFrame(rows, columns=["file", "line", "function", "change"])
    if not before.exists():
        return table.assign(**{_REASON: ""})
    known = pd.read_csv(before, keep_default_na=False)[[*_KEY, _REASON]].map(restore)
    # A reason is of one mutant: of two with one key, nobody knows which it was written for.
    known = known.drop_duplicates(_KEY, keep=False)
    table = table.merge(known, how="left", on=_KEY).fillna({_REASON: ""})
    table.loc[table.duplicated(_KEY, keep=False), _REASON] = ""
    return table


def main() -> None:
    """Draw mutants, run the tests against each, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the mutated package lies; replaced")
    parser.add_argument("--mutants", type=int, default=MUTANTS, help="mutants in all, about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of table.csv, survivors.csv and table.json")
    given = parser.parse_args()
    prepare(given.folder)
    os.chdir(given.folder)  # where mutmut reads its configuration
    numbers = {file: len(_mutations(file)[1]) for file in files()}
    total = sum(numbers.values())
    mutants = [
        mutant
        for file, number in numbers.items()
        for mutant in draw(
            file, max(FEWEST, round(given.mutants * number / total)), seed=given.seed, folder=Path()
        )
    ]
    print(f"{len(mutants)} of {total:,} mutants")
    killed = run(Path())
    os.chdir(ROOT)
    table = counts(mutants, killed, numbers)
    value, low, high = share(table)
    print(f"{value:.1%} killed (95 % interval {low:.1%} to {high:.1%})")
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        left = survivors(mutants, killed, given.out / "survivors.csv")
        write_csv(given.out / "table.csv", table)
        write_csv(given.out / "survivors.csv", left)
        facts = {"seed": given.seed, "share": value, "share_low": low, "share_high": high, "tests": TESTS}
        write_json(given.out / "table.json", facts | provenance())


if __name__ == "__main__":
    main()
