"""Mistakes planted into all of stoker that only looks, chooses, compares, counts and reports: no program notices.

Each function in turn raises wherever it is called, in the training process and in data workers forked from it; the
programs' losses are those of plain python to the last bit.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from stoker.core import places
from stoker.feed import scaling
from stoker.feed.loader import moved
from stoker.feed.purity import objects, probe, tiers
from stoker.feed.shell import memory, watch
from stoker.feed.state import probing, trial, window
from stoker.graph import cut_control
from stoker.graph.choice import cut
from stoker.graph.recording import common_graph, recorder
from stoker.graph.replay import verifier
from stoker.graph.watching import attention, step_watcher
from stoker.run.loaders import cutting, serving, steps
from stoker.scale import budget, job
from tests.faults.serve import served

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MODULES = (
    objects, tiers, probe, probing, trial, memory, watch, window, scaling, budget, job, steps, cutting, cut_control,
    step_watcher, recorder, verifier, common_graph, cut, attention, places,
)  # fmt: skip
CLASSES = (serving.LoaderEvents, moved.Looks)
FALLBACKS = {
    # What stands for a choice that failed.
    "stoker.feed.purity.tiers.left_to_torch", "stoker.feed.purity.tiers.as_declared",
    "stoker.feed.purity.tiers.Choice.__init__", "stoker.feed.scaling.Decision.__init__",
    "stoker.feed.state.probing.Probing.give_up", "stoker.feed.state.trial.Trial.give_up",
    # What hands a batch on, and what keeps mistakes in.
    "stoker.graph.cut_control.Cutter.batch_of",
    *(f"stoker.run.loaders.cutting._Careful.{name}" for name in vars(cutting._Careful)),
    # Made with what serves all loaders: where that fails, nothing is served, as tests of the hook show.
    "stoker.run.loaders.steps.StepClock.__init__", "stoker.scale.budget.CpuLedger.__init__",
}  # fmt: skip


class Rows:
    """Small samples; ``slow`` ones take long enough to be worth a process (emulated work, a sleep)."""

    sample_s = 0.003

    def __init__(self, length: int, *, slow: bool = False) -> None:
        self.length = length
        self.slow = slow

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.slow:
            time.sleep(self.sample_s)
        return torch.full((8,), float(index))


class Kept(Rows):
    """Depends on what was made before, so that it is pinned."""

    last = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.last, before = index, self.last
        return torch.full((8,), float(before))


PROGRAMS: dict[str, Callable[[], DataLoader[Any]]] = {
    "elastic": lambda: DataLoader(Rows(40), batch_size=4, num_workers=2, shuffle=True),  # type: ignore[arg-type]
    "pinned": lambda: DataLoader(Kept(24), batch_size=4, num_workers=2),  # type: ignore[arg-type]
    "without workers": lambda: DataLoader(Rows(240, slow=True), batch_size=8),  # type: ignore[arg-type]
}
STEPS = {"elastic": 12, "pinned": 6, "without workers": 6}
"""Of each of two epochs; the cut is found within 12."""


def train(program: str) -> list[float]:
    """Losses of a small model, whose steps hold a few stateless calls."""
    torch.manual_seed(3)
    loader, model = PROGRAMS[program](), torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    losses: list[float] = []
    for _ in range(2):
        for step, batch in enumerate(loader):
            if step == STEPS[program]:
                break
            loss = model((batch * 2 + 1).log1p()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


def functions_of(module: ModuleType) -> Iterator[tuple[Any, str, str]]:
    """Owner, name and path of every function of a module and of its classes."""
    owners: list[Any] = [module, *(c for _, c in inspect.getmembers(module, inspect.isclass))]
    for owner in owners:
        if owner is not module and owner.__module__ != module.__name__:
            continue
        yield from members_of(owner, module.__name__)


def members_of(owner: Any, module: str) -> Iterator[tuple[Any, str, str]]:
    for name, value in list(vars(owner).items()):
        path = f"{module}.{owner.__qualname__}.{name}" if inspect.isclass(owner) else f"{module}.{name}"
        if isinstance(value, FunctionType) and value.__module__ == module and path not in FALLBACKS:
            yield owner, name, path


ALL = {path: (owner, name) for module in MODULES for owner, name, path in functions_of(module)} | {
    path: (owner, name) for cls in CLASSES for owner, name, path in members_of(cls, cls.__module__)
}


def plant(path: str, name: str, calls: list[int]) -> Callable[..., Any]:
    """A function that raises, and stands in the module of the one that it replaces."""
    names = {"__name__": path.rpartition(".")[0], "calls": calls}
    exec(f"def {name}(*_, **__):\n    calls.append(1)\n    raise RuntimeError('planted')", names)
    return names[name]


@pytest.mark.slow("a run for each mistake")
@pytest.mark.parametrize(
    ("program", "each"),
    [("elastic", True), *((program, False) for program in PROGRAMS)],
    ids=["one of each module", *PROGRAMS],
)
def test_no_planted_mistake_reaches_a_program(program: str, each: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train(program)
    before = set(children(0.0))
    harmed: dict[str, str] = {}
    reached = 0
    with monkeypatch.context() as patched:
        patched.setattr(Rows, "sample_s", 0.02)  # looking at each call makes those of stoker slow
        used = used_by(program)
    if program != "elastic":  # there its steps were followed
        used = [path for path in used if "stoker.graph." not in path]
    if each:
        used = [next(paths) for _, paths in itertools.groupby(used, module_of)]
    for path in used:
        owner, name = ALL[path]
        calls: list[int] = []
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, plant(path, name, calls))
            try:
                with served(workers=2 if program == "without workers" else None) as record:
                    found = train(program)
            except Exception as error:
                harmed[path] = repr(error)
                continue
        reached += bool(calls)
        if left := set(children(1.0, before)):
            harmed[path] = f"leaves {left}"
        if found != expected:
            harmed[path] = "other losses"
        told = [event for event in record.notices() if "planted" in event]
        if calls and len(set(told)) > 3:
            harmed[path] = f"told {len(told)} times"
    assert not harmed, f"{len(harmed)}: {harmed}"
    assert reached > (10 if each else 20)


def module_of(path: str) -> str:
    """The module of a function."""
    function = vars(ALL[path][0])[ALL[path][1]]
    return str(inspect.unwrap(function).__module__)


def children(patience_s: float, known: Collection[int] = ()) -> list[int]:
    """Processes that this one has started and that live on, but for the ``known`` ones."""
    deadline = time.monotonic() + patience_s
    while True:
        text = Path("/proc/self/task", str(os.getpid()), "children").read_text(encoding="ascii")
        found = [int(pid) for pid in text.split() if int(pid) not in known]
        if not found or time.monotonic() >= deadline:
            return found
        time.sleep(0.01)  # the kernel tells nobody of another's end


def used_by(program: str) -> list[str]:
    """The functions that are called when a program is served, in the training process."""
    codes = {}
    for path, (owner, name) in ALL.items():
        function = vars(owner)[name]
        codes[inspect.unwrap(function).__code__] = path
    seen: set[str] = set()

    def look(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in codes:
            seen.add(codes[frame.f_code])

    sys.setprofile(look)
    try:
        with served() as record:
            train(program)
    finally:
        sys.setprofile(None)
    assert not record.notices()
    assert record.tiers()[-1] == ("pinned" if program == "pinned" else "elastic")
    return sorted(seen | {path for path in ALL if path.startswith("stoker.feed.purity.probe.")})
