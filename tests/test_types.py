"""What is checked strictly, and where a file switches rules off at its head."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ROOT / "src/stoker"
WITHOUT_HEADERS = ("backends", "cli", "core", "records", "run", "scale", "sim", "ui")
"""Packages of which no file switches a rule off, but for the one that names what torch keeps to itself."""
UNTYPED = PACKAGES / "backends/ray"
"""Ray's types are partly unknown, and it is imported nowhere else."""


def test_all_is_checked_strictly() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
    kinds = {path.name for path in PACKAGES.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    strict = {path.removeprefix("src/stoker/") for path in settings["strict"]}
    assert kinds == strict


@pytest.mark.parametrize("package", WITHOUT_HEADERS)
def test_no_file_switches_rules_off(package: str) -> None:
    switched_off = [
        path.relative_to(PACKAGES).as_posix()
        for path in (PACKAGES / package).rglob("*.py")
        if path.name != "torch_private.py"
        and not path.is_relative_to(UNTYPED)
        and any(line.startswith("# pyright:") for line in path.read_text().splitlines())
    ]
    assert switched_off == []
