"""The shared parts of all pages: one self-contained document, and its building blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

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
        # The page may hold the user's paths and names: it must not be able to send them anywhere.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{STYLE_SHEET}{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def draw_prose(text: str) -> str:
    """Sentences as HTML: what stands between backquotes, as names and commands do in a terminal, is set as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def draw_header(command: str, title: str, *lines: str) -> str:
    """The top of a page: which command wrote it, about what, and lines of facts, the later ones smaller."""
    facts = "".join(
        f'<p class="{"soft small" if number else "soft"}">{escape(line)}</p>' for number, line in enumerate(lines)
    )
    return f'<header><p class="brand">{command}</p><h1>{escape(title)}</h1>{facts}</header>'


def draw_section(title: str, body: str, about: str = "", kind: str = "") -> str:
    """A section under its title.

    Args:
        title: as text.
        body: as HTML.
        about: what the body shows, as text.
        kind: class of the section.
    """
    words = f'<p class="soft small level">{escape(about)}</p>' if about else ""
    start = f'<section class="{kind}">' if kind else "<section>"
    return f"{start}<h2>{escape(title)}</h2>{words}{body}</section>"


def draw_answer(question: str, answer: str, more: str, kind: str = "plain") -> str:
    """The card that answers the page's question in a sentence, with more below as HTML."""
    return (
        f'<section class="card verdict {kind}"><p class="soft small">{escape(question)}</p>'
        f'<p class="text">{escape(answer)}</p>{more}</section>'
    )


def draw_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """A table of texts; the columns ``numbers`` are aligned to the right."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if place in numbers else ''}>{escape(text)}</{tag}>" for place, text in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"


def draw_list(items: Iterable[str], kind: str = "") -> str:
    """A list of texts; nothing where there are none."""
    listed = "".join(f"<li>{draw_prose(item)}</li>" for item in items)
    start = f'<ul class="{kind}">' if kind else "<ul>"
    return f"{start}{listed}</ul>" if listed else ""


def draw_facts(facts: Iterable[tuple[str, str]]) -> str:
    """A list of names with descriptions, both as text."""
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(text)}</dd>' for name, text in facts)}</dl>"


def draw_tiles(tiles: Iterable[tuple[str, str, str, str]]) -> str:
    """Figures to be seen first: of each its name, value, unit, and a remark."""
    cards = "".join(
        f'<div class="card tile"><p class="name">{escape(name)}</p><p class="value">{escape(value)} '
        f'<small>{escape(unit)}</small></p><p class="soft small">{escape(note)}</p></div>'
        for name, value, unit, note in tiles
    )
    return f'<section class="tiles">{cards}</section>'


class BarPart(NamedTuple):
    """A part of a bar.

    Attributes:
        kind: its class, which colours it.
        frac: its share of the bar.
        title: what pointing at it shows.
        text: its label, if there is room.
    """

    kind: str
    frac: float
    title: str
    text: str


LABELLED_FRAC = 0.09
"""A part of a bar narrower than this has no room for its figure."""


def draw_bar(parts: Iterable[BarPart], labelled_frac: float = LABELLED_FRAC) -> str:
    """Shares as one bar; those of nothing are left out, and the texts of those below ``labelled_frac``."""
    spans = "".join(
        f'<span class="{part.kind}" style="flex:{part.frac:.5f} 1 0" title="{escape(part.title)}">'
        f"{escape(part.text) if part.frac >= labelled_frac else ''}</span>"
        for part in parts
        if part.frac > 0
    )
    return f'<div class="bar">{spans}</div>'


def draw_legend(entries: Sequence[tuple[str, str]]) -> str:
    """Names of series with their colours."""
    items = "".join(f'<span><i class="{kind}"></i>{escape(name)}</span>' for kind, name in entries)
    return f'<div class="legend">{items}</div>'


def draw_figure(figure: Figure) -> str:
    """A plot on a card, below its title and legend."""
    return (
        f'<figure class="card"><h3>{escape(figure.title)} <span class="unit small">{escape(figure.unit)}</span></h3>'
        f"{draw_legend(figure.legend)}"
        f'<div class="canvas">{figure.drawing}</div></figure>'
    )
