"""The same training steps by plain torch and with a forced cut, and what came of either, bit for bit."""

from __future__ import annotations

import os
import pickle
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from stoker.graph.choice import reasons
from stoker.graph.choice.cost_model import CutAccounts
from stoker.graph.choice.cut import Prices
from stoker.graph.cut_control import Cutter, CutVerdict
from stoker.graph.dataflow import Cut, Graph
from stoker.graph.replay.stage import Prepared
from stoker.graph.watching.step_watcher import Conductor

FREE = Prices(bytes_per_s=1e15, tensor_s=0.0, verify_s=0.0, worker_s_price=0.0, min_saving_frac=0.0)
STEPS = 16
"""2 skipped, 4 recorded, 3 compared, the others substituted."""
FIRST_SUBSTITUTED = 9

Step = Callable[..., Any]
Program = Callable[[], tuple[Step, Callable[[], Any]]]
"""Makes a step (number of the batch, its tensors) -> results, and a function that gives the state at the end."""
Batches = Callable[[int], tuple[Any, ...]]
Chooser = Callable[[Graph, Prices], Cut]
Worker = Literal["pickled", "one thread", "forked"]


@dataclass
class Outcome:
    """What a run showed."""

    steps: list[Any]
    state: Any
    draws: bytes
    """State of the main random generator at the end."""
    verdicts: list[CutVerdict] = field(default_factory=list[CutVerdict], compare=False)
    prepared: int = field(default=0, compare=False)
    """Batches that came with boundary tensors."""

    @property
    def moved(self) -> int:
        """Most calls moved by a cut that was kept."""
        return max((len(v.cut.moved) for v in self.verdicts if v.outcome == "moved"), default=0)


def frozen(part: Any) -> Any:
    """Results as they are now, comparable bit by bit."""
    if isinstance(part, torch.Tensor):
        plain = part.detach().resolve_conj().resolve_neg()
        raw = plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return (str(plain.dtype), tuple(plain.shape), plain.stride(), part.requires_grad, raw)
    if isinstance(part, dict):
        return {name: frozen(inner) for name, inner in part.items()}
    if isinstance(part, list | tuple):
        return tuple(frozen(inner) for inner in part)
    return repr(part)


def everything(graph: Graph, prices: Prices) -> Cut:
    """A cut of all that can move."""
    return forced(graph, prices, lambda _: True)


def drawn(seed: int, share: float = 0.7) -> Chooser:
    """A cut that no saving explains: some nodes, with all that they depend on."""

    def choose(graph: Graph, prices: Prices) -> Cut:
        chance = random.Random(seed)
        return forced(graph, prices, lambda _: chance.random() < share)

    return choose


def forced(graph: Graph, prices: Prices, wanted: Callable[[int], bool]) -> Cut:
    """A cut of the wanted nodes that can move and whose arguments are moved too."""
    ledger = CutAccounts(graph, prices)
    moved: set[int] = set()
    for node in graph.nodes:
        if wanted(node.number) and node.number in ledger.movable and set(ledger.producers[node.number]) <= moved:
            moved.add(node.number)
    chosen = frozenset(moved)
    boundary = ledger.sent(chosen)
    size = sum(graph.values[value].size_bytes for value in boundary)
    return Cut(chosen, boundary, 1.0, 0.0, size, reasons.reasons(ledger, chosen))


class Source:
    """Stands for a loader whose workers run the stage."""

    def __init__(self, batches: Batches, chooser: Chooser, worker: Worker, conductor: Conductor | None = None) -> None:
        self.verdicts: list[CutVerdict] = []
        self.prepared = 0
        self._batches = batches
        self._worker = worker
        self._stage: bytes = b""
        self.conductor = conductor or Conductor()
        self.cutter = Cutter(self.conductor, self._ship, self.verdicts.append, FREE, tried=False, chooser=chooser)

    def _ship(self, stage: bytes) -> None:
        self._stage = stage

    def ask(self, number: int) -> tuple[Any, ...]:
        """The batch, as a program gets it."""
        self.cutter.asked()
        item = self._made(number)
        self.prepared += isinstance(item, Prepared)
        return self.cutter.delivered(item)

    def _made(self, number: int) -> Any:
        batch = self._batches(number)
        if not self._stage:
            return batch
        if self._worker == "forked":
            return pickle.loads(_in_child(lambda: self._apply(batch)))
        if self._worker == "pickled":
            return pickle.loads(self._apply(batch))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return pickle.loads(self._apply(batch))
        finally:
            torch.set_num_threads(threads)

    def _apply(self, batch: Any) -> bytes:
        """What another process sends: nothing of it shares memory with what is here."""
        with torch._C.DisableTorchFunction(), torch.random.fork_rng(devices=[]):
            return pickle.dumps(pickle.loads(self._stage)(batch))

    def batches(self, count: int, ahead: int = 0) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Batches with their numbers, fetched ``ahead`` of their use."""
        waiting: deque[tuple[int, tuple[Any, ...]]] = deque()
        for number in range(count):
            waiting.append((number, self.ask(number)))
            if len(waiting) > ahead:
                yield waiting.popleft()
        yield from waiting
        self.cutter.asked()


def _in_child(work: Callable[[], bytes]) -> bytes:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        torch.set_num_threads(1)
        try:
            with os.fdopen(writing, "wb") as out:
                out.write(work())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as source:
        sent = source.read()
    os.waitpid(child, 0)
    return sent


def plainly(program: Program, batches: Batches, steps: int = STEPS) -> Outcome:
    """Steps without stoker."""
    torch.manual_seed(5)
    step, state = program()
    results = [frozen(step(number, *batches(number))) for number in range(steps)]
    return Outcome(results, frozen(state()), torch.get_rng_state().numpy().tobytes())


def with_cut(
    program: Program,
    batches: Batches,
    steps: int = STEPS,
    *,
    chooser: Chooser = everything,
    worker: Worker = "pickled",
    ahead: int = 0,
) -> Outcome:
    """The same steps with the cut that ``chooser`` gives."""
    torch.manual_seed(5)
    step, state = program()
    source = Source(batches, chooser, worker)
    results: list[Any] = []
    try:
        for number, batch in source.batches(steps, ahead):
            result = step(number, *batch)
            with torch._C.DisableTorchFunction():
                results.append(frozen(result))
    finally:
        source.cutter.left()
    assert not source.conductor.watching
    assert torch._C._len_torch_function_stack() == 0
    draws = torch.get_rng_state().numpy().tobytes()
    return Outcome(results, frozen(state()), draws, source.verdicts, source.prepared)


def check(
    program: Program,
    batches: Batches,
    steps: int = STEPS,
    *,
    chooser: Chooser = everything,
    worker: Worker = "pickled",
    ahead: int = 0,
) -> Outcome:
    """Both runs are equal bit for bit; returns the one with a cut."""
    cut = with_cut(program, batches, steps, chooser=chooser, worker=worker, ahead=ahead)
    plain = plainly(program, batches, steps)
    for number, (ours, theirs) in enumerate(zip(cut.steps, plain.steps, strict=True)):
        assert ours == theirs, f"step {number} differs"
    assert cut.state == plain.state, "the state at the end differs"
    assert cut.draws == plain.draws, "the main random stream differs"
    return cut
