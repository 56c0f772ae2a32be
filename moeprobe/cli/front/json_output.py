"""What ``--json`` prints."""

import json

from moeprobe.runtime.characters import harmless_json


def print_json(content: object) -> None:
    """Print JSON in one line; letters of any language stay as they are, and what steers a terminal is escaped."""
    print(harmless_json(json.dumps(content, ensure_ascii=False)))
