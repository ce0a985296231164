"""Out of memory: which errors are of that kind, what is counted without running the program, what is said and when."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from stoker.records.memory import AskedMemory, MemoryShare, OutOfMemory
from stoker.run.memory.asked import asked_of
from stoker.run.memory.counting import TensorCount, count_alive
from stoker.run.memory.ending import next_command
from stoker.run.session import _explain_memory  # pyright: ignore[reportPrivateUsage]
from stoker.ui.memory.ended_text import write_end
from tests.warm import programs

MIB = 1 << 20
CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "80000000 bytes. Error code 12 (Cannot allocate memory)"
)
CUDA = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 23.50 GiB of which 1.25 GiB is free."
    " Process 5 has 22.25 GiB memory in use. Of the allocated memory 18.00 GiB is allocated by PyTorch, and 3.50 GiB"
    " is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
GIB = 1 << 30


def said_by(error: BaseException | None) -> AskedMemory | None:
    found = asked_of(error)
    return found[1] if found else None


def test_errors_of_allocators_and_of_others() -> None:
    assert said_by(RuntimeError(CPU)) == AskedMemory(80_000_000, "cpu")
    assert said_by(torch.OutOfMemoryError(CUDA)) == AskedMemory(2 * GIB, "cuda", 1, int(23.5 * GIB), int(3.5 * GIB))
    assert said_by(torch.OutOfMemoryError("something else")) == AskedMemory(None, "cuda")
    wrapped = ValueError("the step failed")
    wrapped.__cause__ = RuntimeError(CPU)
    assert said_by(wrapped) == AskedMemory(80_000_000, "cpu")
    own = type("OutOfMemoryError", (RuntimeError,), {"__module__": "program"})
    others = (None, RuntimeError("shapes"), MemoryError(), own(CUDA), ValueError(CPU), KeyboardInterrupt())
    assert [said_by(error) for error in others] == [None] * len(others)


def test_a_list_of_losses_is_named_with_the_graphs_that_it_keeps() -> None:
    weight = nn.Parameter(torch.zeros(8, 8))
    kept: list[torch.Tensor] = []
    try:
        for _ in range(5):
            hidden = torch.randn(1024, 8) @ weight
            kept.append(hidden.exp().sum())
        del hidden
        raise RuntimeError(CPU)
    except RuntimeError as error:
        _, variables = count_alive(TensorCount("cpu"), error.__traceback__)
    name, size = next((share.name, share.bytes) for share in variables if share.name.startswith("graphs of `kept`"))
    assert name.startswith("graphs of `kept` (test_ending.py:")
    # The product's input and what the exponential keeps, five times.
    assert size == pytest.approx(5 * 2 * 1024 * 8 * 4, rel=0.01)


@given(text=st.text(max_size=80))
def test_any_text_of_such_an_error_is_read(text: str) -> None:
    assert said_by(torch.OutOfMemoryError(text)) is not None
    assert said_by(RuntimeError(f"DefaultCPUAllocator {text}")) is not None


class Holder:
    """An object of the program, with a property that must not be asked."""

    def __init__(self) -> None:
        self.cache = {"a": [torch.zeros(MIB // 4)]}

    @property
    def made(self) -> Any:
        raise AssertionError("code of the program ran")


def _never(_: Any) -> Any:
    raise AssertionError("a hook of the program ran")


def _failing(model: nn.Module) -> None:
    kept = [torch.zeros(MIB) for _ in range(3)]
    holder = Holder()
    x = torch.randn(64, 256)
    out = model(x)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (tensor, "packed"), _never):
        loss = (out.exp() * out).sum()
    del out
    raise RuntimeError(CPU, kept, holder, loss)


def test_counted_by_category_and_variable() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 256))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 256)).sum().backward()
    optimizer.step()
    gc.collect()
    before = TensorCount("cpu")
    counted = [each for each in gc.get_objects() if type(each) in (torch.Tensor, nn.Parameter)]
    mine = {id(each) for each in [*model.parameters(), *model.buffers()]}
    before.take(each for each in counted if id(each) not in mine and each.grad_fn is None)
    traceback: TracebackType | None = None
    try:
        _failing(model)
    except RuntimeError as error:
        traceback = error.__traceback__
    categories, variables = count_alive(TensorCount("cpu"), traceback)
    sums = {share.name: share.bytes for share in categories}
    weights = 4 * sum(each.numel() for each in model.parameters())
    # Other tests of this process may hold some as well.
    assert sums["parameters"] >= weights
    assert sums["gradients"] >= weights
    assert sums["optimizer"] >= 2 * weights
    assert sums["other tensors of modules"] >= 2 * 512 * 4
    shown = {share.name.partition(" ")[0]: share for share in variables}
    assert shown["`kept`"].bytes == 3 * 4 * MIB
    assert shown["`holder`"].bytes == MIB
    first = _failing.__code__.co_firstlineno
    assert shown["`kept`"].name.endswith(f"test_ending.py:{first + 1})")
    if hasattr(torch._C._autograd.SavedTensor, "data"):  # type: ignore[attr-defined]
        assert sums["saved for the backward pass"] >= 2 * 64 * 256 * 4
    assert TensorCount("cuda").take(model.parameters()) == 0


def test_each_storage_counts_once() -> None:
    tensor = torch.zeros(MIB)
    count = TensorCount("cpu")
    assert count.take([tensor, tensor[5:], tensor.view(2, -1)]) == 4 * MIB
    assert count.take([tensor]) == 0
    meta = torch.zeros(5, device="meta")
    assert TensorCount("meta").take([meta]) == 0
    assert count.take([torch.zeros(3).to_sparse(), None, "text"]) == 0


SHARES = st.lists(st.builds(MemoryShare, st.text(max_size=9), st.integers(1, 10**12)), max_size=12)


@given(
    categories=SHARES,
    variables=SHARES,
    size=st.none() | st.integers(0, 10**12),
    idle=st.none() | st.integers(0, 10**12),
)
def test_at_most_ten_lines(
    categories: list[MemoryShare], variables: list[MemoryShare], size: int | None, idle: int | None
) -> None:
    asked = AskedMemory(size, "cuda", 0, 10**12, idle)
    end = OutOfMemory(asked=asked, line="a.py:3", categories=categories, variables=variables, command="stoker memory")
    assert 2 <= len(write_end(end)) <= 10


def test_fragmentation_is_named_where_it_was_that() -> None:
    end = OutOfMemory(asked=AskedMemory(5, "cuda", 0, 9, 6), line="", categories=[], variables=[], command="")
    assert "expandable_segments:True" in write_end(end)[-1]
    assert write_end(end)[0].startswith("out of memory: 0.0 MB asked for on cuda:0, which has")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (("train.py",), "stoker memory train.py"),
        (("my train.py", "--x", "1"), "stoker memory 'my train.py' -- --x 1"),
        (("-m", "package.train", "5"), "stoker memory -m package.train -- 5"),
        (("-c", "import torch"), ""),
        (("-",), ""),
        ((), ""),
    ],
)
def test_the_next_command(program: tuple[str, ...], said: str) -> None:
    assert next_command(program, AskedMemory(5, "cpu", capacity_bytes=10**9)) == said


def test_the_next_command_names_the_memory_of_a_device() -> None:
    command = next_command(("train.py", "5"), AskedMemory(5, "cuda", 0, 23_600_000_000))
    assert command == "stoker memory train.py --memory 23.6GB -- 5"


def test_a_failure_of_the_count_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(sys, "last_value", RuntimeError(CPU), raising=False)
    monkeypatch.setattr("stoker.run.memory.ending.count_alive", fail)
    _explain_memory(("train.py",))
    assert capsys.readouterr().err == (
        "stoker: stoker's count of memory failed (KeyError: 'planted'): what held it is not known; "
        "please report it with the records of this run\n"
    )


PROGRAM = """\
import resource
import sys

import torch

history = []
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 500_000_000, resource.RLIM_INFINITY))
if "caught" in sys.argv:
    try:
        torch.empty(10**12)
    except RuntimeError:
        sys.exit(3)

def step():
    history.append(torch.ones(20_000_000))

while True:
    step()
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "stoker", "run", *words]
    return programs.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


@pytest.mark.integration
@pytest.mark.slow("a program of torch, up to its limit of memory")
def test_a_program_that_ends_without_memory(tmp_path: Path) -> None:
    ended = run(tmp_path, "train.py", "--size", "5")
    assert ended.returncode == 1
    trace, _, words = ended.stderr.partition("stoker: ")
    assert trace.startswith("Traceback (most recent call last):")
    assert "you tried to allocate 80000000 bytes" in trace
    lines = words.splitlines()
    assert lines[0].startswith("out of memory: 80.0 MB asked for at train.py:16 on cpu, which has ")
    assert any("MB in `history` (train.py:6)" in line for line in lines)
    assert lines[-1].endswith("stoker memory train.py -- --size 5")
    assert 3 <= len(lines) <= 10


@pytest.mark.integration
@pytest.mark.slow("a program of torch")
@pytest.mark.parametrize("words", [("train.py", "caught"), ("--quiet", "train.py")], ids=["caught", "quiet"])
def test_nothing_is_said_of_a_caught_error_or_when_quiet(tmp_path: Path, words: tuple[str, ...]) -> None:
    ended = run(tmp_path, *words)
    assert ended.returncode == (3 if "caught" in words else 1)
    assert "out of memory" not in ended.stderr
