"""The planned allocator of eager CUDA: the policy, and the C++ that follows it request by request.

The library is built here and calls a stand-in for CUDA's runtime, which takes the host's memory: what is replaced are
the device's entry points. The requests are those of real CUDA steps where their traces are, and drawn ones.
"""

from __future__ import annotations

import ctypes
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.code.compiling import build_library
from stoker.train.arena.eager.library import SOURCE, WANTED, Library
from stoker.train.arena.eager.planning import MemoryEvent, StepPlan, plan_step
from stoker.train.arena.eager.policy import OrdinaryBlocks, PlannedRequest, StepPolicy, rounded
from tests.perf.memory.snapshots import read_trace

TRACES = ["medium_128", "medium_256", "medium_512", "medium_1024"]


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CUDA's entry points over the host's memory."""
    path = tmp_path_factory.mktemp("cudart") / "libfake_cudart.so"
    build_library(Path(__file__).with_name("fake_cudart.cpp"), path, wanted=WANTED)
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, built once."""
    path = tmp_path_factory.mktemp("built") / "arena.so"
    build_library(SOURCE, path, wanted=WANTED)
    return path


@pytest.fixture
def library(built: Path, fake: Path, tmp_path: Path) -> Library:
    """A copy for each test: a library holds one allocator."""
    return Library(Path(shutil.copy(built, tmp_path / "arena.so")), str(fake))


def steps_of_trace(name: str, count: int) -> Iterator[list[MemoryEvent]]:
    """The recorded step over and over: what one leaves behind, the next frees as the trace frees its like."""
    trace = read_trace(name)
    numbers = itertools.count(1)
    now = {address: (next(numbers), requested) for address, requested, _ in trace["alive"]}
    yield [MemoryEvent("allocate", number, size) for number, size in now.values()]
    for _ in range(count):
        # Blocks that live when the trace begins, by size: those that the step before left.
        found: list[MemoryEvent] = []
        for action, address, size in trace["events"]:
            if action == "a":
                now[address] = next(numbers), size
                found.append(MemoryEvent("allocate", *now[address]))
            elif action == "f":
                found.append(MemoryEvent("free", now.pop(address)[0]))
        now = paired(now, trace["alive"])
        yield found


def paired(now: dict[int, tuple[int, int]], alive: list[list[int]]) -> dict[int, tuple[int, int]]:
    """What lives at the step's end, under the addresses that the trace begins with."""
    by_size: dict[int, list[tuple[int, int]]] = {}
    for number, size in sorted(now.values()):
        by_size.setdefault(size, []).append((number, size))
    return {address: by_size[size].pop(0) for address, size, _ in alive}


class Law:
    """The policy and ordinary blocks, as the allocator joins them."""

    def __init__(self) -> None:
        self.policy: StepPolicy | None = None
        self.blocks = OrdinaryBlocks()
        self.alive: dict[int, tuple[int, int | None]] = {}
        self.inside: dict[int, int] = {}  # start and end of what lies in the arena
        self.arena = 0

    def plan(self, plan: StepPlan) -> None:
        self.blocks.release()
        self.policy, self.arena = StepPolicy(plan.requests), plan.nbytes

    def allocate(self, number: int, nbytes: int) -> int | None:
        offset = self.policy.allocate(nbytes) if self.policy is not None else None
        if offset is None:
            self.blocks.allocate(nbytes)
        else:
            end = offset + rounded(nbytes)
            assert end <= self.arena
            overlapping = [start for start, stop in self.inside.items() if start < end and offset < stop]
            assert not overlapping, "two live blocks overlap"
            self.inside[offset] = end
        self.alive[number] = nbytes, offset
        return offset

    def free(self, number: int) -> None:
        nbytes, offset = self.alive.pop(number)
        if offset is None:
            self.blocks.free(nbytes)
        else:
            assert self.policy is not None
            self.policy.free(offset)
            del self.inside[offset]


def drive(law: Law, library: Library, steps: list[list[MemoryEvent]], plan_after: int) -> StepPlan | None:
    """Gives both the same requests, compares what each gets, and plans after some steps."""
    addresses: dict[int, int] = {}
    plan: StepPlan | None = None
    for count, step in enumerate(steps, 1):
        for event in step:
            if event.kind == "allocate":
                wanted = law.allocate(event.number, event.nbytes)
                addresses[event.number] = library.allocate(event.nbytes)
                assert library.place_of(addresses[event.number]) == wanted
            elif event.number in addresses:
                law.free(event.number)
                library.free(addresses.pop(event.number))
        library.end_step()
        if law.policy is not None:
            law.policy.begin_step()
        if count == plan_after:
            plan = plan_step(library.events())
            assert library.plan(plan)
            law.plan(plan)
        counts, reserved, most = library.counts()
        assert law.policy is None or counts == law.policy.counts
        assert reserved == law.blocks.reserved + law.arena <= most
    return plan


@pytest.mark.parametrize("name", TRACES)
def test_real_steps_go_by_the_plan(library: Library, name: str) -> None:
    law = Law()
    plan = drive(law, library, list(steps_of_trace(name, 4)), 3)
    assert plan is not None
    assert law.policy is not None
    counts = law.policy.counts
    assert counts.deviations == 0
    assert counts.left_out == 0
    assert counts.planned > 2 * 5000
    assert plan.nbytes <= 1.03 * plan.bound


@pytest.mark.parametrize("name", TRACES[:1])
def test_another_step_deviates_and_is_counted(library: Library, name: str) -> None:
    """Of a real step: requests of other sizes, some left out, some that live too long."""
    *first, other, last = steps_of_trace(name, 5)
    kept = {event.number for at, event in enumerate(other) if event.kind == "allocate" and at % 97 == 0}
    changed = [event for at, event in enumerate(other) if event.kind != "allocate" or at % 53]
    asked = {event.number for event in changed if event.kind == "allocate"}
    known = {event.number for step in first for event in step}
    changed = [
        event._replace(nbytes=event.nbytes * 2) if at % 31 == 0 and event.kind == "allocate" else event
        for at, event in enumerate(changed)
        if event.kind == "allocate" or (event.number in asked | known and event.number not in kept)
    ]
    law = Law()
    drive(law, library, [*first, changed, last], 3)
    assert law.policy is not None
    counts = law.policy.counts
    assert counts.unexpected > 50
    assert counts.occupied > 0
    assert counts.left_out > 50


sizes = st.sampled_from([1, 512, 700, 1024, 5000, 1 << 20])
PLANS = st.lists(st.tuples(sizes, st.one_of(st.none(), st.integers(0, 12))), max_size=12)
REQUESTS = st.lists(
    st.tuples(st.sampled_from(["allocate", "allocate", "free", "step"]), sizes, st.integers(0, 99)), max_size=40
)


@given(PLANS, REQUESTS)
def test_whatever_plan_and_requests_nothing_overlaps(
    plan: list[tuple[int, int | None]], requests: list[tuple[str, int, int]]
) -> None:
    """Also where the plan itself is wrong."""
    law = Law()
    law.policy = StepPolicy([PlannedRequest(rounded(size), at if at is None else at * 512) for size, at in plan])
    law.arena = 1 << 30
    numbers: list[int] = []
    for count, (kind, size, which) in enumerate(requests):
        if kind == "allocate":
            law.allocate(count, size)
            numbers.append(count)
        elif kind == "free" and numbers:
            law.free(numbers.pop(which % len(numbers)))
        elif kind == "step":
            law.policy.begin_step()
    counts = law.policy.counts
    allocated = sum(kind == "allocate" for kind, _, _ in requests)
    assert counts.planned + counts.outliving + counts.deviations == allocated


def test_gradients_live_across_the_end_of_a_step() -> None:
    """They are freed where the next step begins, and share bytes with activations all the same."""
    numbers = itertools.count(1)
    events: list[MemoryEvent] = []
    gradient = next(numbers)
    events += [MemoryEvent("allocate", gradient, 4096), MemoryEvent("step")]
    for _ in range(2):
        events.append(MemoryEvent("free", gradient))
        activation, gradient = next(numbers), next(numbers)
        events += [
            MemoryEvent("allocate", activation, 8192),
            MemoryEvent("free", activation),
            MemoryEvent("allocate", gradient, 4096),
        ]
        events.append(MemoryEvent("step"))
    plan = plan_step(events)
    assert [each.offset for each in plan.requests] == [0, 0]
    assert plan.nbytes == plan.bound == 8192


def test_what_stays_for_good_gets_ordinary_blocks() -> None:
    events = [
        MemoryEvent("step"),
        MemoryEvent("allocate", 1, 600),
        MemoryEvent("allocate", 2, 600),
        MemoryEvent("free", 1),
        MemoryEvent("step"),
    ]
    assert plan_step(events).requests == (PlannedRequest(1024, 0), PlannedRequest(1024, None))
    with pytest.raises(ValueError, match="two complete steps, got 1"):
        plan_step(events[:-1])


def test_memory_that_another_stream_used_is_waited_for(library: Library, fake: Path) -> None:
    waits = ctypes.CDLL(str(fake)).fake_waits
    first = library.allocate(512, stream=1)
    library.record_stream(first, 2)
    before = waits()
    library.free(first, stream=1)
    assert waits() == before + 1
    # Blocks of one stream are not given to another.
    other = library.allocate(512, stream=2)
    assert other != first
    assert library.allocate(512, stream=1) == first


def test_a_full_device_gets_back_what_is_kept(library: Library, fake: Path) -> None:
    device = ctypes.CDLL(str(fake))
    limit, held = device.fake_limit, device.fake_held
    limit.argtypes, held.restype = [ctypes.c_longlong], ctypes.c_longlong
    first = library.allocate(1 << 20)
    library.free(first)
    _, reserved, _ = library.counts()
    assert reserved == 1 << 20
    limit(held() + 4096)
    try:
        assert library.allocate(1 << 19)  # another size: the kept block is given back first
    finally:
        limit(-1)
    assert library.counts()[1] == 1 << 19
