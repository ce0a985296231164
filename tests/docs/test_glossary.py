"""The map of folders in CONTRIBUTING has every folder of the package, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "stoker"
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def folders_there() -> set[str]:
    return {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")} - {"."}


def folders_described() -> set[str]:
    table = TEXT[TEXT.index("| folder |") :].partition("\n\n")[0]
    return {name for row in table.splitlines()[2:] for name in re.findall(r"`([\w/]+)`", row.split("|")[1])}


def test_every_folder_is_described() -> None:
    missing = sorted(folders_there() - folders_described())
    assert not missing, f"CONTRIBUTING.md, Layers: no row for {', '.join(missing)}"
    gone = sorted(folders_described() - folders_there())
    assert not gone, f"CONTRIBUTING.md, Layers: no such folder as {', '.join(gone)}"


def test_a_word_is_explained_once() -> None:
    rows = TEXT[TEXT.index("| word |") :].splitlines()[2:]
    words = [word.strip() for row in rows for word in re.split("[,;]", row.split("|")[1])]
    assert sorted(set(words)) == sorted(words)
