"""Where the site differs from GitHub: links out of docs are names of files, and flowcharts are drawn here.

The site holds what is in docs and nothing else, and fetches nothing: Material would load Mermaid from a CDN.
"""

import posixpath
import re
from typing import Any

from writers.drawing import FLOWCHART, svg

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?!https?:|#|mailto:)(?P<target>[^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page with flowcharts as SVG, and with paths in place of links to files outside docs."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def name(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match["target"]))
        if path.startswith("docs/"):
            return match[0]
        text = match["text"]
        return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"

    return _LINK.sub(name, FLOWCHART.sub(lambda match: svg(match["chart"]), markdown))
