"""The page of a server: ``server.html``, which needs nothing but itself, and its text as ``tables.md``."""

from pathlib import Path

from moeprobe import __version__
from moeprobe.results.layouts.page import environment
from moeprobe.results.layouts.side_by_side import summary
from moeprobe.results.naming import with_names
from moeprobe.studies.report.pictures import read_pictures
from moeprobe.studies.report.render import data_address, policy_hash, template_text
from moeprobe.studies.server.result import ServerResult

HTML, TEXT = "server.html", "tables.md"
_TITLES = {
    "agreement": "Agreement with the model",
    "determinism": "Agreement of the server's runs with the first",
    "mismatch": "Log-probabilities: how much of the mismatch is routing",
}


def page_text(result: ServerResult) -> str:
    """Return the sentences as Markdown."""
    heading = f"# {result.server}, {result.requests:,} requests"
    lines = [heading, "", f"**{result.sentences[0]}**", "", *(f"* {sentence}" for sentence in result.details)]
    return "\n".join([*lines, ""])


def page_html(result: ServerResult) -> str:
    """Return the page: sentences, then the tables and figures of each run."""
    style = template_text("report.css")
    templates = environment("moeprobe.studies.server", autoescape=True)
    templates.filters["address"] = lambda picture: data_address(picture.content, picture.media)
    parts = []
    for name, run in result.runs.items():
        renamed = with_names(run)
        parts.append(
            {
                "name": name,
                "title": _TITLES[name],
                "table": summary(renamed.table, renamed.comparison),
                "pictures": read_pictures(Path(result.folder / name), without=set(), animated=False),
            }
        )
    return templates.get_template("server.html.jinja").render(
        result=result, parts=parts, style=style, style_hash=policy_hash(style), version=__version__
    )
