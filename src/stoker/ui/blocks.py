"""Blocks of lines on a terminal: paragraphs, lists under a title, what to type next."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.ui.report_text import Style


def wrap(text: str, style: Style, code: int = 0, *, indent: str = "") -> list[str]:
    """Lines of a paragraph.

    Args:
        text: of the paragraph.
        style: what the terminal shows.
        code: ANSI style of all lines; 0 for none.
        indent: of all lines but the first.
    """
    lines = style.wrap(text, style.width, indent=indent)
    return [style.paint(line, code) for line in lines] if code else lines


def titled(title: str, lines: Sequence[str], style: Style) -> list[str]:
    """Lines under their title; nothing where there are none."""
    return [style.paint(style.clean(title), 36), *lines] if lines else []


def join(blocks: Sequence[Sequence[str]], style: Style, command: str) -> str:
    """The blocks that have lines, blank lines between them, with the command that shows more, if there is one."""
    following = [style.paint("Next  ", 1) + style.paint(style.clean(command), 36)] if command else []
    return "\n\n".join("\n".join(block) for block in (*blocks, following) if block) + "\n"
