"""The generated pages of the reference are what the code gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import generate
from stoker.cli.main import COMMANDS
from stoker.run.settings import KEYS

PAGES = generate.pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_what_the_code_gives(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page], "run `make docs` and commit the pages"


def test_all_commands_and_settings_are_there() -> None:
    commands, settings = (PAGES[generate.REFERENCE / name] for name in ("commands.md", "settings.md"))
    for command in COMMANDS:
        assert f"\n## stoker {command.name}" in commands
    for key in KEYS:
        assert f"\n| `{key.name}` | " in settings
