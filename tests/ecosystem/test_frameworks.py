"""Real frameworks and habits: the same losses under plain python and `stoker run`, without and with data workers."""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.records.events import LoaderOpened

from .harness import PROGRAMS, Both, both

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(200),
    pytest.mark.slow("the first test waits for all programs, which import large frameworks"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="these programs need torch"),
]

PACKAGES = {
    "lightning_fit.py": "lightning",
    "trainer_fit.py": "transformers",
    "accelerate_loop.py": "accelerate",
    "infinite_loop.py": "torch",
    "torch_features.py": "torch",
}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Both]:
    """All programs with the default settings, in one process each way."""

    @functools.cache
    def run() -> Both:
        there = [[program] for program, package in PACKAGES.items() if importlib.util.find_spec(package)]
        return both("several.py", json.dumps(there), cwd=tmp_path_factory.mktemp("together"))

    return run


def loaders_of(found: Both, program: str) -> dict[int, LoaderOpened]:
    """The loaders that the program's own file has made."""
    opened = found.opened()
    places = [str(PROGRAMS / name) for name in PACKAGES]
    others = [loader.site for loader in opened.values() if loader.site.rpartition(":")[0] not in places]
    assert not others, "a place in the program, not in the framework"
    return {number: loader for number, loader in opened.items() if loader.site.startswith(str(PROGRAMS / program))}


@pytest.mark.parametrize(
    ("program", "num_without", "num_with"),
    [
        ("lightning_fit.py", 3, 3),
        ("trainer_fit.py", 3, 2),  # it keeps the evaluation's loader only where workers persist
        ("accelerate_loop.py", 3, 3),
        ("infinite_loop.py", 2, 2),
    ],
)
def test_same_losses(program: str, num_without: int, num_with: int, together: Callable[[], Both]) -> None:
    pytest.importorskip(PACKAGES[program])
    found = together()
    assert "loss" in found.served.partition(f"== {program}\n")[2].partition("== ")[0]
    opened = loaders_of(found, program)
    declared = [loader.declared_workers for loader in opened.values()]
    assert (declared.count(0), declared.count(2)) == (num_without, num_with)
    for number, loader in opened.items():
        if loader.declared_workers:
            assert loader.tier == "elastic", loader
            assert found.workers_started()[number] >= 1
        else:
            assert loader.tier in ("elastic", "process"), loader


def test_compiled_model_autocast_and_accumulation(together: Callable[[], Both]) -> None:
    opened = loaders_of(together(), "torch_features.py").values()
    assert [loader.tier for loader in opened if loader.declared_workers] == ["elastic"] * 2


def test_pinned_tier(tmp_path: Path) -> None:
    """With torch's own assignment and seeds, random flips are those of plain python as well."""
    programs = [["torch_features.py"], ["torch_features.py", "--flip", "0.5"]]
    found = both("several.py", json.dumps(programs), cwd=tmp_path, options=("--quiet", "--tier", "pinned"))
    tiers = [loader.tier for loader in found.opened().values() if loader.declared_workers]
    assert tiers == ["pinned"] * 4
    assert {loader.tier for loader in found.opened().values()} == {"pinned", "process"}


def test_model_compiled_to_machine_code(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch's inductor needs a C++ compiler")
    if " " in sys.prefix:
        pytest.skip("torch's inductor gives the compiler paths without quotes, and this one has a space")
    both("torch_features.py", "--backend", "inductor", "--workers", "2", cwd=tmp_path, at_once=False)
