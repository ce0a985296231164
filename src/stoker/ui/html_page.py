"""What all pages share: one self-contained document, figures with their legends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from stoker.ui.report_style import STYLE_SHEET


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plot with its words."""

    title: str
    unit: str
    legend: list[tuple[str, str]]
    """Class and name of each series; empty where the title says it all."""
    drawing: str


def render_page(title: str, body: str, style: str = "") -> str:
    """The document: no script, no network, light and dark by the reader's system.

    Args:
        title: of the window, as text.
        body: of the page, as HTML.
        style: rules beyond those that all pages share.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # The page may hold paths and names of the user's: it must not be able to send them anywhere.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{STYLE_SHEET}{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def draw_legend(entries: Sequence[tuple[str, str]]) -> str:
    """Names of series beside their colours."""
    items = "".join(f'<span><i class="{kind}"></i>{escape(name)}</span>' for kind, name in entries)
    return f'<div class="legend">{items}</div>'


def draw_figure(figure: Figure) -> str:
    """A plot on a card, below its title and legend."""
    return (
        f'<figure class="card"><h3>{escape(figure.title)} <span class="unit small">{escape(figure.unit)}</span></h3>'
        f"{draw_legend(figure.legend)}"
        f'<div class="canvas">{figure.drawing}</div></figure>'
    )
