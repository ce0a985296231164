"""Real frameworks and habits: the same losses under plain python and `stoker run`, without and with data workers."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from .harness import PROGRAMS, both

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="these programs need torch"),
]


@pytest.mark.parametrize(
    ("program", "package", "num_without", "num_with"),
    [
        ("lightning_fit.py", "lightning", 3, 3),
        ("trainer_fit.py", "transformers", 3, 2),  # it keeps the evaluation's loader only where workers persist
        ("accelerate_loop.py", "accelerate", 3, 3),
        ("infinite_loop.py", "torch", 2, 2),
    ],
)
def test_same_losses(program: str, package: str, num_without: int, num_with: int, tmp_path: Path) -> None:
    pytest.importorskip(package)
    found = both(program, cwd=tmp_path)
    opened = found.opened()
    declared = [loader.declared_workers for loader in opened.values()]
    assert (declared.count(0), declared.count(2)) == (num_without, num_with)
    for number, loader in opened.items():
        assert loader.site.startswith(str(PROGRAMS / program)), "a place in the program, not in the framework"
        if loader.declared_workers:
            assert loader.tier == "elastic", loader
            assert found.workers_started()[number] >= 1
        else:
            assert loader.tier in ("elastic", "process"), loader


@pytest.mark.parametrize("tier", ["auto", "pinned"])
def test_compiled_model_autocast_and_accumulation(tier: str, tmp_path: Path) -> None:
    found = both("torch_features.py", cwd=tmp_path, options=("--tier", tier))
    tiers = [loader.tier for loader in found.opened().values() if loader.declared_workers]
    assert tiers == ["elastic" if tier == "auto" else "pinned"] * 2


def test_model_compiled_to_machine_code(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch's inductor needs a C++ compiler")
    both("torch_features.py", "--backend", "inductor", "--workers", "2", cwd=tmp_path, at_once=False)


def test_random_transforms_in_the_pinned_tier(tmp_path: Path) -> None:
    """With torch's own assignment and seeds, random flips are those of plain python as well."""
    found = both("torch_features.py", "--flip", "0.5", cwd=tmp_path, options=("--tier", "pinned"))
    assert {loader.tier for loader in found.opened().values()} == {"pinned", "process"}
