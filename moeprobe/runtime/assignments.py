"""Names with ``key=value`` after commas: ``random_crop,flip=true``, ``runs/mine,top_k=1``."""

import re

# Commas inside a value, e.g. of [0.1, 0.3], or in the name of a folder, are followed by no key.
_ASSIGNMENT = re.compile(r",(?=\s*[A-Za-z_]\w*\s*=)")


def split_assignments(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return what stands before the first ``,key=``, and the keys and values in their order."""
    name, *assignments = _ASSIGNMENT.split(text)
    parts = [assignment.partition("=") for assignment in assignments]
    return name, [(key.strip(), value.strip()) for key, _, value in parts]
