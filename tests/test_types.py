"""What is checked strictly, and where a file switches rules off at its head."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ROOT / "src/stoker"
NOT_YET_STRICT = {"run"}
"""This only ever shrinks: what is new is strict from its first day."""
WITHOUT_HEADERS = ("backends", "cli", "records", "sim", "ui")
"""Packages that need no untyped library: no file of theirs switches a rule off."""


def test_all_but_what_is_named_is_checked_strictly() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
    kinds = {path.name for path in PACKAGES.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    strict = {path.removeprefix("src/stoker/") for path in settings["strict"]}
    assert kinds - strict == NOT_YET_STRICT


@pytest.mark.parametrize("package", WITHOUT_HEADERS)
def test_no_file_switches_rules_off(package: str) -> None:
    switched_off = [
        path.relative_to(PACKAGES).as_posix()
        for path in (PACKAGES / package).rglob("*.py")
        if any(line.startswith("# pyright:") for line in path.read_text().splitlines())
    ]
    assert switched_off == []
