"""What is said of the key routes of classes: numbers that follow from all layers together, and from no single one.

The route of a class is the expert that most of its tokens have, layer by layer; ``probes/routes`` computes it.
"""

from typing import Literal

from moeprobe.metrics.declaration import Metric

_IMAGES = "of the images' labels"


def _metrics(
    name: str,
    description: str,
    label: str,
    *,
    tail: str,
    unit: Literal["whole", "other"] = "whole",
    permutations: str = _IMAGES,
) -> tuple[Metric, Metric, Metric]:
    """Return a number, its mean by permutation, and its p."""
    return (
        Metric(name, about=description, label=label, unit=unit, of_labels=True),
        Metric(
            f"{name}_permuted",
            about=f"{name}: mean over 1,000 permutations {permutations}; its range holds 95 % of them",
            label="by permutation", unit="other", below=name, of_labels=True,
        ),
        Metric(
            f"{name}_p",
            about=f"share of permutations {permutations} in which {name} is at least as {tail} as observed; the "
            "observed order counts as one of them",
            label="p", unit="probability", below=name, of_labels=True, margin=False,
        ),
    )  # fmt: skip


DISTINCT = _metrics(
    "distinct_routes",
    "how many of the classes' key routes differ; a key route is the expert of most tokens of a class in each MoE layer",
    "different key routes of classes",
    tail="large",
)
LARGEST = _metrics(
    "largest_route_group",
    "how many classes share the most common key route",
    "classes of the most common key route",
    tail="small",
)
SUPERCLASSES = _metrics(
    "route_superclass_information",
    "adjusted mutual information of the classes' key routes and the data set's published groups of classes: 1 where "
    "classes share a route if and only if they share a group, 0 on average by chance",
    "key routes and superclasses",
    tail="large",
    unit="other",
    permutations="of the superclasses over the classes",
)

measures = (*DISTINCT, *LARGEST, *SUPERCLASSES)
