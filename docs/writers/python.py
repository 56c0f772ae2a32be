"""What a notebook calls: ``moeprobe.api``, by its signatures and docstrings."""

import inspect
import re
from typing import Any

from moeprobe import api
from moeprobe.api.making import SHARED
from moeprobe.declarations import Panel
from moeprobe.declarations.registry import probes
from writers.markdown import code, docstring, first_sentence, page, signature, table
from writers.stubs import is_made

# What is no measurement; every other function is on the page of measurements.
MODELS = {"load_model", "wrap", "trace", "train", "train_pipeline", "curves"}
# With what they return.
CHECKPOINTS = {
    "import_vmoe", "Imported", "import_swin_moe", "ImportedSwinMoe", "export_vmoe", "Exported", "upcycle", "Upcycled",
}  # fmt: skip
DATA = {"open_data", "open_view", "choose_device", "downloads", "use_plugins"}
STUDIES = {
    "audit",
    "compare",
    "measure_shard",
    "merge",
    "paper",
    "read_audit",
    "report",
    "tails",
    "tradeoff",
}
STRESS = {probe.name for probe in probes() if probe.panel is Panel.STRESS}
PICTURES = {"overlay", "correspond"}
TRACES = {
    "analyze_trace",
    "align_traces",
    "trace_locality",
    # Beside the same of recordings.
    "prefetch",
    "trace_prefetch",
    "trace_batches",
    # Beside the same of recordings.
    "coverage",
    "trace_coverage",
    "drift",
}
RECORDINGS = {"record", "recorded_routing", "import_trace", "import_routed_experts", "check_trace"}
SERVERS = {"check_server", "ServerResult", "mismatch", "indexer", "trace_balance"}
# Classes that a caller makes or hands in; every other class is what a function returns.
GIVEN = {"Checkpoint", "Hooks", "Model", "Models", "Options", "Progress", "UserError"}
TITLES = {
    "probes": "Python: measurements",
    "stress": "Python: attacks, precision and batches",
    "plans": "Python: what a run would take",
    "pictures": "Python: pictures",
    "recordings": "Python: recordings of routing",
    "traces": "Python: questions to recordings",
    "servers": "Python: servers",
    "studies": "Python: comparisons and reports",
    "models": "Python: models",
    "checkpoints": "Python: checkpoints made of other ones",
    "data": "Python: data, views and devices",
    "arguments": "Python: classes that functions take",
    "results": "Python: classes that functions return",
}
_SOURCE = "moeprobe/api"
# Of functions that are made of declarations, those that say what all have in common.
_WHOLE = ("match_ratio", "analyze_trace")


def pages() -> dict[str, str]:
    """Return the page of all names, and one for each kind."""
    kinds: dict[str, list[str]] = {kind: [] for kind in TITLES}
    for name in api.__all__:
        kinds[kind_of(name)].append(name)
    written = {
        f"reference/python-{kind}.md": page(TITLES[kind], _SOURCE, *(section(name) for name in names))
        for kind, names in kinds.items()
    }
    overview = [
        f"## {TITLES[kind].removeprefix('Python: ').capitalize()}\n\n"
        + table(
            ["name", "what it is"],
            [[f"[`{name}`](python-{kind}.md#{name.lower()})", sentence(name)] for name in names],
        )
        for kind, names in kinds.items()
    ]
    introduction = docstring(inspect.getdoc(api) or "").split("\n\n", 1)[1]
    first = page(
        "Python",
        _SOURCE,
        "`from moeprobe import api`; [From Python](../guide/python.md) shows it at work.",
        introduction,
        *overview,
    )
    return {"reference/python.md": first, **written}


def kind_of(name: str) -> str:
    """Return the page that a name is on."""
    by_name = {
        "recordings": RECORDINGS,
        "traces": TRACES,
        "servers": SERVERS,
        "data": DATA,
        "checkpoints": CHECKPOINTS,
    }
    for kind, names in by_name.items():
        if name in names:
            return kind
    if not inspect.isfunction(inspect.unwrap(getattr(api, name))):
        # ``Plan`` is on another page than ``plan``, whose anchor is the same.
        is_plan = name.endswith("Plan") and name != "Plan"
        return "plans" if is_plan else "arguments" if name in GIVEN else "results"
    if name.startswith("plan"):
        return "plans"
    if name in PICTURES:
        return "pictures"
    if name in STRESS:
        return "stress"
    return "models" if name in MODELS else "studies" if name in STUDIES else "probes"


def section(name: str) -> str:
    """Return what is said of one name: how it is called, and its docstring."""
    thing = getattr(api, name)
    if inspect.isclass(thing):
        return f"## {name}\n\n{docstring(text(thing))}"
    if not inspect.isfunction(inspect.unwrap(thing)):
        return f"## {name}\n\n{text(thing)}"
    described = text(thing)
    if is_made(thing) and name not in _WHOLE:
        described = without_shared(described)
    return f"## {name}\n\n```python\n{signature(thing, name)}\n```\n\n{docstring(described)}"


def without_shared(described: str) -> str:
    """Return a docstring without the arguments that all functions have, and with a sentence on them."""
    before, _, after = described.partition("\n\nArgs:\n")
    arguments, _, _ = after.partition("\n\nRaises:\n")
    entries = re.split(r"\n    (?=\S)", arguments.removeprefix("    "))
    own = [entry for entry in entries if entry.partition(":")[0] not in SHARED]
    like = "match_ratio" if entries[0].startswith("models:") else "analyze_trace"
    parts = [before, *(["Args:\n    " + "\n    ".join(own)] if own else [])]
    return "\n\n".join([*parts, f"Other arguments and errors as in ``{like}``."])


def sentence(name: str) -> str:
    """Return the first sentence of what is said of a name."""
    return first_sentence(text(getattr(api, name)))


def text(thing: Any) -> str:
    """Return the docstring of a name; of a type alias, its definition."""
    if inspect.isclass(thing) or inspect.isfunction(inspect.unwrap(thing)):
        return inspect.getdoc(thing) or ""
    return code(re.sub(r"moeprobe\.adapters\.base\.|pathlib\.(_local\.)?", "", str(thing)))
