"""Names say what a thing is: no word that says nothing is the whole of one, and no class is called like another."""

import ast
from collections import Counter, defaultdict
from pathlib import Path

from tests.sources import tree_of

PACKAGE = Path(__file__).parents[1] / "moeprobe"
# Participles, pronouns and the like, which say nothing when they are the whole name.
EMPTY = frozenset(
    [
        "found",
        "said",
        "kept",
        "held",
        "known",
        "given",
        "asked",
        "own",
        "one",
        "ones",
        "about",
        "place",
        "places",
        "there",
        "here",
        "shown",
        "told",
        "wanted",
        "more",
        "most",
        "some",
        "rest",
        "whole",
        "both",
        "other",
        "others",
        "sound",
        "alike",
        "weighed",
        "routed",
        "counted",
        "recorded",
        "captured",
        "scored",
        "settled",
        "marked",
        "moved",
        "brought",
        "undrawn",
        "made_up",
        "of_all",
        "of_some",
        "of_shares",
        "any_of",
        "below",
        "touched",
        "wishes",
        "wish",
        "asks",
        "says",
        "fits",
        "due",
        "made",
        "taken",
        "left",
        "told",
        "drawn",
        "named",
        "used",
        "chosen",
        "seen",
        "done",
    ]
)
# How many are left of an earlier habit. The numbers may only become smaller.
LEFT = {"functions": 3, "parameters": 12, "variables": 87}


def trees() -> dict[Path, ast.Module]:
    return {path.relative_to(PACKAGE): tree_of(path) for path in sorted(PACKAGE.rglob("*.py"))}


def empty_names(tree: ast.Module) -> list[tuple[str, str, int]]:
    """Kind, name and line of what has an empty word for a name."""
    names: list[tuple[str, str, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(("functions", node.name, node.lineno))
            names += [
                ("parameters", each.arg, node.lineno) for each in (*node.args.args, *node.args.kwonlyargs)
            ]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(("variables", node.id, node.lineno))
    return [(kind, name, line) for kind, name, line in names if name.strip("_") in EMPTY]


def test_no_more_names_that_say_nothing() -> None:
    places = [
        (kind, f"{path}:{line} {name}")
        for path, tree in trees().items()
        for kind, name, line in empty_names(tree)
    ]
    counts = Counter(kind for kind, _ in places)
    for kind, most in LEFT.items():
        listed = "\n".join(place for its_kind, place in places if its_kind == kind)
        assert counts[kind] <= most, f"{counts[kind]} {kind}, {most} before; name what they are:\n{listed}"


def test_the_check_itself_sees_an_empty_name() -> None:
    tree = ast.parse("def found(own):\n    for one in own:\n        _kept = one\n")
    assert [name for _, name, _ in empty_names(tree)] == ["found", "own", "one", "_kept"]


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path))
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert not twice
