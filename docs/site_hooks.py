"""Where the site differs from GitHub: links out of docs are names of files, and flowcharts are drawn here.

The site holds what is in docs and nothing else, and fetches nothing: Material would load Mermaid from a CDN.
"""

import posixpath
import re
from typing import Any

from writers.drawing import FLOWCHART, svg

# What the plug-in "offline" would load from a CDN.
_SHIM = re.compile(r"src=\"https:[^\"]*iframe-worker[^\"]*\"")
_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
# A number and the ends of its interval.
_INTERVAL = re.compile(r"([-+−]?[\d.,]+) \[([-+−]?[\d.,]+), ([-+−]?[\d.,]+)\]")
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


def on_page_content(html: str, **_: Any) -> str:
    """Return a page whose intervals in tables stay on one line."""
    return _CELL.sub(lambda cell: _INTERVAL.sub(r"\1&nbsp;[\2,&nbsp;\3]", cell[0]), html)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Return a built page whose search works from a folder, by our own script instead of one from elsewhere."""
    script = posixpath.relpath("offline_worker.js", posixpath.dirname(page.url) or ".")
    return _SHIM.sub(f'src="{script}"', output)


def on_post_template(output_content: str, *, template_name: str, **_: Any) -> str:
    """Return the page of a missing page without what would be loaded from elsewhere; it is never read from a folder."""
    return _SHIM.sub("", output_content)
