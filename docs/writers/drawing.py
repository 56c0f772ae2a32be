"""Flowcharts of pages as SVG, for the site: GitHub draws Mermaid itself, a site without a network cannot.

Only what the pages use is understood: ``A --> B``, chains, ``node[label]`` and ``node["label"]``, ``TD``, ``LR``.
"""

import re
from html import escape
from itertools import pairwise

# In pixels: height of a box, room for a character and around a label, gaps along the arrows and around it all, room for
# arrows that bend, where a row ends.
_HEIGHT, _CHARACTER, _AROUND = 34, 7.6, 26
_ALONG, _ACROSS = 44, 26
_MARGIN, _WIDEST = 80, 900
_STYLE = (
    ".flow{max-width:100%;height:auto}"
    ".flow text{font:14px sans-serif;text-anchor:middle;dominant-baseline:central;fill:#1a1a1a}"
    ".flow rect{fill:#eceff8;stroke:#4051b5;rx:4}.flow path{fill:none;stroke:#70757f;stroke-width:1.3}"
)
_HEAD = (
    '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" style="fill:#70757f;stroke:none"/></marker>'
)

# A flowchart in a page.
FLOWCHART = re.compile(r"```mermaid\n(?P<chart>.*?)```", re.DOTALL)

Box = tuple[float, float, float]  # center x, center y, width


def svg(chart: str) -> str:
    """Return a flowchart as SVG: nodes in ranks, each below (or right of) all that point to it."""
    head, *lines = chart.strip().splitlines()
    sideways = head.split()[-1] == "LR"
    labels, arrows = parsed(lines)
    boxes = placed(ranks(labels, arrows), labels, sideways=sideways)
    right = max(x + width / 2 for x, _, width in boxes.values()) + (_ACROSS if sideways else _MARGIN)
    middle = sum(x for x, _, _ in boxes.values()) / len(boxes) - 1
    bottom = max(y for _, y, _ in boxes.values()) + _HEIGHT / 2 + _ACROSS
    drawn = [
        f'<div><svg class="flow" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right:g} {bottom:g}" '
        f'width="{right:g}" height="{bottom:g}">',
        f"<style>{_STYLE}</style><defs>{_HEAD}</defs>",
        '<rect width="100%" height="100%" style="fill:#fff;stroke:none"/>',
        *(arrow(boxes[start], boxes[end], middle=middle, sideways=sideways) for start, end in arrows),
    ]
    for name, (x, y, width) in boxes.items():
        drawn.append(
            f'<rect x="{x - width / 2:g}" y="{y - _HEIGHT / 2:g}" width="{width:g}" height="{_HEIGHT}"/>'
        )
        drawn.append(f'<text x="{x:g}" y="{y:g}">{escape(labels[name])}</text>')
    return "\n".join([*drawn, "</svg></div>"]) + "\n"


def parsed(lines: list[str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return node -> label, and the arrows, both in the order of the text."""
    labels: dict[str, str] = {}
    arrows = []
    for line in lines:
        chain = []
        for node in line.strip().split(" --> "):
            match = re.fullmatch(r'(?P<name>[\w.]+)(?:\["?(?P<label>.*?)"?\])?', node)
            assert match is not None, f"not understood: {node}"
            if match["label"] or match["name"] not in labels:
                labels[match["name"]] = match["label"] or match["name"]
            chain.append(match["name"])
        arrows += pairwise(chain)
    return labels, arrows


def ranks(labels: dict[str, str], arrows: list[tuple[str, str]]) -> list[list[str]]:
    """Return the nodes of each rank: one more than the highest rank that points to it."""
    rank = dict.fromkeys(labels, 0)
    for _ in labels:
        for start, end in arrows:
            rank[end] = max(rank[end], rank[start] + 1)
    return [[name for name in labels if rank[name] == number] for number in range(max(rank.values()) + 1)]


def placed(ranked: list[list[str]], labels: dict[str, str], *, sideways: bool) -> dict[str, Box]:
    """Return where each node is drawn: ranks one after the other, the nodes of a rank around the middle."""
    widths = {name: len(label) * _CHARACTER + _AROUND for name, label in labels.items()}
    boxes: dict[str, Box] = {}
    top = _ACROSS + _HEIGHT / 2
    if sideways:
        left, row = float(_ACROSS), (_HEIGHT + _ALONG) * max(map(len, ranked))
        for names in ranked:
            column = max(widths[name] for name in names)
            if left + column > _WIDEST:
                left, top = float(_ACROSS), top + row
            for place, name in enumerate(names):
                boxes[name] = (left + column / 2, top + place * (_HEIGHT + _ALONG), widths[name])
            left += column + _ALONG
        return boxes
    rows = [sum(widths[name] + _ALONG for name in names) - _ALONG for names in ranked]
    for number, names in enumerate(ranked):
        left = _MARGIN + (max(rows) - rows[number]) / 2
        for name in names:
            boxes[name] = (left + widths[name] / 2, top + number * (_HEIGHT + _ALONG), widths[name])
            left += widths[name] + _ALONG
    return boxes


def arrow(start: Box, end: Box, *, middle: float, sideways: bool) -> str:
    """Return an arrow from the edge of one box to that of another; over a rank it bends away from the middle."""
    (x1, y1, width1), (x2, y2, width2) = start, end
    if sideways and x2 > x1:
        x1, x2 = x1 + width1 / 2, x2 - width2 / 2
        path = f"M{x1:g},{y1:g} C{x1 + 20:g},{y1:g} {x2 - 20:g},{y2:g} {x2:g},{y2:g}"
    else:
        steps = 1 if sideways else round((y2 - y1) / (_HEIGHT + _ALONG))
        bend = 75.0 * (steps - 1) * (1 if x1 >= middle else -1)
        y1, y2 = y1 + _HEIGHT / 2, y2 - _HEIGHT / 2
        path = f"M{x1:g},{y1:g} C{x1 + bend:g},{y1 + 25:g} {x2 + bend:g},{y2 - 25:g} {x2:g},{y2:g}"
    return f'<path marker-end="url(#head)" d="{path}"/>'
