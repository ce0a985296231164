"""Habits of speech that readers stumble over do not come back: in documents, docstrings, messages and comments."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "stoker"
DOCUMENTS = (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
PACKAGES = (
    "backends",
    "cache",
    "cli",
    "core",
    "deploy",
    "feed",
    "graph",
    "perf",
    "records",
    "run",
    "scale",
    "serve",
    "sim",
    "train",
    "ui",
    "wire",
)
OWN = r"\bof (its|their|his|our) own"
HABITS = {
    rf"{OWN}(?=[.,;:)]|$| (a|and|as|at|by|for|from|in|is|on|or|so|that|to|where|which|with)\b)": "separate, private",
    r"\bbeside\b(?!:)": "next to, besides, in addition to, overlaps with",
    r"\bwhoever\b": "name who it is",
    r"\b(is|are|was|were|be|been|being) told\b(?! (apart|from))": "gets, receives, is called with; the active voice",
    r"\b(said|told) of\b": "facts about, metadata of",
    r"\bfor want of\b": "without, because there is no",
    r"\banew\b": "again, or a verb: restart, rebuild, rewrite",
    r"\blet go (of|by)\b": "release, unmap, close, skip",
    r"\b(somebody|anybody)\b": "name who it is",
    r"\bgo(es)? on (at|with|without|where)\b": "continue, resume",
}
HEADLESS = re.compile("Of ")
"""A docstring that begins so has no subject."""

STRING_OR_COMMENT = re.compile(
    r"""(?s:"{3}(?:[^\\]|\\.)*?"{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|#(?P<comment>.*)"""
)
"""Strings are matched so that a ``#`` in them begins no comment; ``tokenize`` finds the same, in ten times as long."""
DIRECTIVE = re.compile(r" ?(noqa|type:|pyright:)")


def strings_of(source: str) -> Iterator[tuple[int, str, bool]]:
    """Line, text and whether it is a docstring, of each string of a module."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value, id(node) in alone


def comments_of(source: str) -> list[tuple[int, str]]:
    """First line and text of each comment of a module; comments on consecutive lines are one."""
    found: list[tuple[int, str]] = []
    last = -1
    for match in STRING_OR_COMMENT.finditer(source):
        text = match["comment"]
        if text is None or DIRECTIVE.match(text):
            continue
        line = source.count("\n", 0, match.start()) + 1
        found.append((line, text) if line != last + 1 else (found[-1][0], found.pop()[1] + text))
        last = line
    return found


def plain(text: str) -> str:
    """The text on one line, without code."""
    return " ".join(re.sub(r"``.*?``|`[^`\n]*`", "`", text).split())


@functools.cache
def texts() -> list[tuple[str, str, bool]]:
    """Place, words and whether it is a docstring, of each paragraph, string and comment."""
    found: list[tuple[str, str, bool]] = []
    for page in DOCUMENTS:
        line = 1
        for paragraph in page.read_text(encoding="utf-8").split("\n\n"):
            found.append((f"{page.relative_to(ROOT)}:{line}", plain(paragraph), False))
            line += paragraph.count("\n") + 2
    for package in PACKAGES:
        for module in sorted((SOURCE / package).rglob("*.py")):
            name = module.relative_to(SOURCE).as_posix()
            source = module.read_text(encoding="utf-8")
            found += [(f"{name}:{line}", plain(text), is_doc) for line, text, is_doc in strings_of(source)]
            found += [(f"{name}:{line}", plain(text), False) for line, text in comments_of(source)]
    return found


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_does_not_come_back(habit: str) -> None:
    search = re.compile(habit, re.IGNORECASE).search
    found = [f"{place}: {hit[0]!r}" for place, text, _ in texts() if (hit := search(text))]
    assert not found, f"better: {HABITS[habit]}\n" + "\n".join(found)


def test_a_docstring_has_a_subject() -> None:
    found = [f"{place}: {text[:80]}" for place, text, is_doc in texts() if is_doc and HEADLESS.match(text)]
    assert not found, "\n".join(found)


def test_habits_are_recognised_and_good_words_are_not() -> None:
    bad = "It runs in a process of its own, beside the worker; whoever asks for data is told."
    good = "It calls one of its own methods, besides `beside`; the two cannot be told apart."
    assert sum(bool(re.search(habit, plain(bad))) for habit in HABITS) == 4
    assert not any(re.search(habit, plain(good)) for habit in HABITS)


def test_comments_are_read() -> None:
    source = 'a = "# no"  # of\n# its own\nb = 1  # noqa: E501\n"""\n# no \\""" # no\n"""\nc = \'"\'  # yes\n'
    assert comments_of(source) == [(1, " of its own"), (7, " yes")]
