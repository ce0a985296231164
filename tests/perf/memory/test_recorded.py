"""The allocator's replay and the memory of kernels, against what torch recorded on a GPU."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec.structs
import pytest

from stoker.perf.catalogue import gpu
from stoker.perf.features.lifetimes import BufferLife, CallInTime, MemoryTimeline, Scratch
from stoker.perf.features.program import trace_program
from stoker.perf.memory.kernel_memory import on_gpu
from stoker.perf.memory.reserve import replay
from stoker.perf.memory.snapshots.snapshot import SnapshotHistory, devices_of, history_of, replay_snapshot
from stoker.perf.memory.snapshots.snapshot_file import parse_snapshot
from stoker.perf.memory.timeline import live_bytes

RECORDED = Path(__file__).parent / "recorded"
MOST = {
    ("perceptron", "default"): 1755.3, ("perceptron", "expandable"): 1554.0, ("residual", "default"): 5540.7,
    ("residual", "expandable"): 3873.4, ("recurrent", "default"): 5756.7, ("recurrent", "expandable"): 5289.0,
}  # fmt: skip
"""Most reserved MB that torch counted in the run."""


def recorded(kind: str, setting: str) -> SnapshotHistory:
    content = gzip.decompress((RECORDED / f"{kind}_{setting}.pickle.gz").read_bytes())
    snapshot = parse_snapshot(content, f"{kind}_{setting}.pickle")
    return history_of(snapshot, devices_of(snapshot)[0])


@pytest.mark.parametrize(("kind", "setting"), MOST)
def test_a_replay_reserves_what_the_gpu_did(kind: str, setting: str) -> None:
    history = recorded(kind, setting)
    found = replay_snapshot(history, expandable=setting == "expandable")
    assert found is not None
    assert found.reserved == int(history.reserved.max())
    assert found.reserved / 1e6 == pytest.approx(MOST[kind, setting], abs=0.1)


@pytest.mark.parametrize(
    ("kind", "bounds"), [("perceptron", (0.025, 0.002)), ("recurrent", (0.01, 0.02))], ids=["perceptron", "recurrent"]
)
def test_a_program_traced_without_a_gpu_takes_what_one_recorded(kind: str, bounds: tuple[float, float]) -> None:
    """Recurrent: cuDNN's pieces for weights and gradients, copies with time first, workspace before what is kept."""
    program = Path(__file__).parents[3] / "benchmarks" / "programs" / "device_steps.py"
    timeline = on_gpu(trace_program([str(program), kind])[1], gpu("H100-SXM"))
    for setting, bound in zip(("default", "expandable"), bounds, strict=True):
        found = replay(timeline, expandable=setting == "expandable", workspace_bytes=timeline.workspace_bytes)
        recording = recorded(kind, setting)
        # What is missing is cuBLASLt's own MiB.
        assert found.requested == pytest.approx(int(recording.requested.max()), rel=0.001)
        assert found.reserved == pytest.approx(int(recording.reserved.max()), rel=bound)


def test_kernels_memory_is_alive_alone_behind_the_outputs_of_its_call() -> None:
    lives = (BufferLife(10, 0, 4, -1, "inputs", "forward", "", ""),
             BufferLife(20, 1, 3, 2, "temporaries", "forward", "a", "train.py:1"),
             BufferLife(5, 2, 4, -1, "temporaries", "forward", "b", "train.py:2"))  # fmt: skip
    calls = (
        CallInTime(1, "conv", "conv", "forward", "a", 1.0),
        CallInTime(2, "relu", "pointwise", "forward", "b", 1.0),
    )
    plain = MemoryTimeline(
        name="t", target="cuda", batch_size=1, begin=1, end=4, buffers=lives, calls=calls,
        scratch=(Scratch(2, 100, "forward", "a", "train.py:1"),),
    )  # fmt: skip
    assert live_bytes(on_gpu(plain, gpu("A100-80GB-SXM"))).tolist() == [10, 30, 130, 30, 35, 15]
    found = on_gpu(plain, gpu("A100-80GB-SXM"))
    assert [call.at for call in found.calls] == [1, 4]
    assert found.workspace_bytes == plain.workspace_bytes
    early = msgspec.structs.replace(plain, scratch=(Scratch(2, 100, "forward", "a", "train.py:1", num_late_outputs=1),))
    assert live_bytes(on_gpu(early, gpu("A100-80GB-SXM"))).tolist() == [10, 110, 130, 30, 35, 15]
    assert on_gpu(found, gpu("A100-80GB-SXM")) == found
    assert on_gpu(plain, gpu("V100-32GB-SXM")) == plain  # other kernels, not known
    assert on_gpu(plain, gpu("H100-SXM")).workspace_bytes == 32 << 20
