"""Tables of runs from before metrics of load counted all K choices, under the names that their numbers have now.

Such a table calls the load of first choices ``load_entropy``, a name that now means all choices.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moeprobe.results.sums import FORMAT

if TYPE_CHECKING:
    from pandas import DataFrame

_LOADS = ("load_entropy", "dead_experts", "expert_share", "max_violation", "load_cv", "load_gini")
# What is called so now that had these names: where K > 1, and for any K.
_FIRST = {name: f"{name}_first" for name in _LOADS}
_ALL = {f"{name}_any": name for name in _LOADS}
# The first number that says a format; sidecars of before have none.
_EARLIEST = 1


def is_earlier(sidecar: Mapping[str, Any]) -> bool:
    """Whether a run was written in an earlier format than this version writes."""
    number = sidecar.get("format", _EARLIEST)
    return isinstance(number, int) and number < FORMAT


def with_present_names(table: "DataFrame", sidecar: Mapping[str, Any]) -> "DataFrame":
    """Return a table whose metrics of load have the names that they have in the present format."""
    if not is_earlier(sidecar) or not {"metric", "top_k"} <= set(table):
        return table
    metrics = table["metric"]
    # Some tables of runs without a number have the present names.
    if metrics.isin(_FIRST.values()).any():
        return table
    import pandas as pd  # whoever has a table has loaded it

    has_several = pd.to_numeric(table["top_k"], errors="coerce") > 1
    names = [
        _FIRST.get(name, name) if several else name
        for name, several in zip(metrics, has_several, strict=True)
    ]
    return table.assign(metric=[_ALL.get(old, new) for old, new in zip(metrics, names, strict=True)])
