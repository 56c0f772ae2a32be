"""Words that tables, help and messages use, as the code declares them."""

from moeprobe.metrics.declaration import NULLS
from moeprobe.results.columns import VERDICTS
from moeprobe.results.terms import TERMS, GlossaryEntry
from writers.markdown import code, inline, page, table


def pages() -> dict[str, str]:
    """Return the page of all terms."""
    text = page(
        "Terms",
        "results/terms.py and results/columns.py",
        "Words that tables, help texts and messages use; `moeprobe explain NAME` prints the same, and explains "
        "[metrics](metrics.md), [columns](columns.md), [plug-ins](plugins.md), commands and options too.",
        table(["term", "also", "meaning"], map(row, TERMS)),
        "## Chance levels",
        table(
            ["chance level", "what chance is"], ([name, inline(null.about)] for name, null in NULLS.items())
        ),
        "## Verdicts\n\nWhat `moeprobe compare` says of a difference:",
        table(["verdict", "what it means"], ([f"*{word}*", about] for word, about in VERDICTS.items())),
    )
    return {"reference/terms.md": text}


def row(term: GlossaryEntry) -> list[str]:
    """Return a term, its other names, and what it means with a link to where more is said."""
    also = ", ".join(code(one) if one.startswith("[") else one for one in term.also)
    return [term.name, also, f"{inline(term.about)} [More](../{term.page})"]
