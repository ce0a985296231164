"""Memory snapshots of torch: files of strangers, the history undone from the end, replays, lines."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import ConfigError
from stoker.perf.memory.snapshots.snapshot import (
    BACKWARD,
    SnapshotHistory,
    devices_of,
    history_of,
    replay_snapshot,
    short_lines,
)
from stoker.perf.memory.snapshots.snapshot_file import CudaSnapshot, is_pickle, parse_snapshot, read_snapshot
from stoker.perf.memory.snapshots.snapshot_report import snapshot_report
from stoker.records.memory import SnapshotReport
from stoker.ui.memory.snapshot_text import render_snapshot
from tests.perf.memory.snapshots import Recorder, event_of, read_trace, segments_of, snapshot_of_trace

MIB = 1 << 20


def parsed(plain: dict[str, Any]) -> CudaSnapshot:
    return parse_snapshot(pickle.dumps(plain), "snapshot.pickle")


class _Command:
    """What a hostile file holds: a call of any function."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("echo it ran > ran.txt",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "plain data"),
        (b"no pickle", "plain data"),
        (pickle.dumps({"segments": []})[:-3], "plain data"),
        (b"\x80\x04r\xff\xff\xff\x7f.", "plain data"),
        (pickle.dumps(_Command()), r"it names posix.system"),
        (pickle.dumps({"segments": [_Command()]}, protocol=0), r"it names posix.system"),
        (pickle.dumps({"segments": {1, 2}.__class__}), r"it names (builtins|__builtin__).set"),
        (pickle.dumps([1]), "expected `object`, got `array`"),
        (pickle.dumps({"segments": 3}), r"expected `array`, got `int` at `\$.segments`"),
        (pickle.dumps({"segments": segments_of([(-1, 2)], [])}), r">= 0 at `\$.segments\[0\].address`"),
        (pickle.dumps({"segments": [], "device_traces": [[event_of("alloc", 0, 1 << 60)]]}), r"at `\$.device_traces"),
    ],
)
def test_files_that_are_no_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.pickle").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"(?s)^`a.pickle` must be .*{said}.*\[STOKER1001\]$") as error:
        read_snapshot(Path("a.pickle"))
    assert "\n" not in str(error.value)
    assert not Path("ran.txt").exists()


@given(content=st.binary(max_size=60), cut=st.integers(0, 200), value=st.integers(0, 255))
def test_damaged_files_give_one_error(content: bytes, cut: int, value: int) -> None:
    recorder = Recorder(expandable=False)
    recorder.allocate(5)
    whole = pickle.dumps(recorder.snapshot())
    place = cut % len(whole)
    for damaged in (content, whole[:place], whole[:place] + bytes([value]) + whole[place + 1 :]):
        try:
            snapshot_report(parse_snapshot(damaged, "a"), "a")
        except ConfigError:
            pass


def test_a_file_that_is_not_there_and_one_without_memory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must be a file that can be read: No such file"):
        read_snapshot(tmp_path / "none.pickle")
    with pytest.raises(ConfigError, match=r"`a` must hold memory of a device"):
        snapshot_report(parsed({"segments": [], "device_traces": [[]]}), "a")
    (tmp_path / "train.py").write_text("import torch")
    (tmp_path / "dump").write_bytes(pickle.dumps({}))
    assert [is_pickle(tmp_path / name) for name in ("a.pickle", "a.pkl", "train.py", "dump", "none")] == [
        True, True, False, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "least_equal"), [("medium_128", 1), ("medium_256", 1), ("medium_512", 0.87), ("medium_1024", 1)]
)
def test_snapshots_of_real_steps(name: str, least_equal: float) -> None:
    trace = read_trace(name)
    snapshot = parsed(snapshot_of_trace(trace))
    history = history_of(snapshot, 0)
    assert history.requested.max() == trace["peak_requested"]
    assert history.reserved.max() == trace["reserved"]
    replayed = replay_snapshot(history, expandable=False)
    assert replayed is not None
    assert replayed.reserved == trace["reserved"]
    assert replayed.equal >= least_equal * replayed.requests
    grown = replay_snapshot(history, expandable=True)
    assert grown is not None
    assert trace["peak_requested"] <= grown.reserved < trace["reserved"]


REQUESTS = st.lists(st.one_of(st.integers(1, 64 * MIB), st.integers(-20, 0)), min_size=1, max_size=60)


def recorded(requests: list[int], *, expandable: bool) -> Recorder:
    """Positive numbers are requests, negative ones frees, and 0 empties the cache."""
    recorder, live = Recorder(expandable=expandable), list[int]()
    for number, request in enumerate(requests, start=1):
        if request > 0:
            live.append(recorder.allocate(request, number))
        elif request == 0:
            recorder.empty_cache()
        elif live:
            recorder.free(live.pop(request % len(live)))
    return recorder


@given(requests=REQUESTS, skipped=st.integers(0, 200), expandable=st.booleans())
def test_the_history_is_what_was_recorded(requests: list[int], skipped: int, expandable: bool) -> None:
    recorder = recorded(requests, expandable=expandable)
    skipped %= len(recorder.events) + 1
    snapshot = parsed(recorder.snapshot(skipped))
    if not devices_of(snapshot):
        return
    history = history_of(snapshot, 0)
    course = recorder.lives[skipped:]
    found = list(zip(history.requested.tolist(), history.reserved.tolist(), strict=True))[1:]
    assert [size for size, _ in found] == [size for size, _ in course]
    if not expandable:  # one that grows does so and serves a request in one call
        assert [size for _, size in found] == [size for _, size in course]
    _no_overlaps(history)
    report = snapshot_report(snapshot, "a")
    assert sum(part.bytes for part in report.parts) == report.reserved_bytes
    assert min(part.bytes for part in report.parts) >= 0
    assert sum(share.bytes for share in report.lines) == report.peak_bytes == max(history.requested)
    assert max(sum(moment.bytes) for moment in report.moments) == report.peak_bytes
    if not skipped:
        assert all(each.line.startswith("/home/x/train.py:") for each in history.buffers)


def _no_overlaps(history: SnapshotHistory) -> None:
    for at in range(len(history.events) + 1):
        alive = sorted(history.alive(at), key=lambda each: each.address)
        assert all(one.address + one.held <= two.address for one, two in pairwise(alive))


@given(requests=REQUESTS)
def test_a_replay_from_the_first_request_is_exact(requests: list[int]) -> None:
    recorder = recorded([1, *requests], expandable=False)
    history = history_of(parsed(recorder.snapshot()), 0)
    replayed = replay_snapshot(history, expandable=False)
    assert replayed is not None
    assert (replayed.reserved, replayed.equal) == (recorder.replay.peak_reserved, replayed.requests)


@given(requests=REQUESTS)
def test_expandable_segments_recorded_and_replayed_are_equal(requests: list[int]) -> None:
    recorder = recorded([1, *requests], expandable=True)
    history = history_of(parsed(recorder.snapshot()), 0)
    assert history.expandable
    replayed = replay_snapshot(history, expandable=True)
    assert replayed is not None
    assert replayed.reserved == recorder.replay.peak_reserved == history.reserved.max()


def test_out_of_memory_tells_who_asked_and_what_held_it() -> None:
    recorder = Recorder(expandable=False)
    kept = [recorder.allocate(24 * MIB, 3), recorder.allocate(30 * MIB, 4)]
    recorder.free(kept[0])
    frames = [{"filename": "/home/x/train.py", "line": 9, "name": "main"}]
    recorder.events.append({
        "action": "oom", "size": 40 * MIB, "device_free": 7 * MIB, "stream": 0, "frames": frames, "time_us": 0
    })  # fmt: skip
    recorder.free(kept[1])
    report = snapshot_report(parsed(recorder.snapshot()), "a.pickle")
    assert (report.asked_bytes, report.asked_line, report.free_bytes) == (40 * MIB, "train.py:9", 7 * MIB)
    assert (report.peak_bytes, report.reserved_bytes) == (30 * MIB, 54 * MIB)
    assert [(share.name, share.bytes) for share in report.lines] == [("train.py:4", 30 * MIB)]
    assert {part.name: part.bytes for part in report.parts} == {
        "tensors": 30 * MIB, "rounding": 0, "free between tensors": 0, "unused segments": 24 * MIB,
    }  # fmt: skip
    text = render_snapshot(report)
    assert "OUT OF MEMORY  train.py:9 asked for 41.9 MB, with 7.3 of the device free; 31.5 MB requested" in text


def test_lines_of_stacks() -> None:
    library = {"filename": "/usr/lib/python3/dist-packages/torch/_tensor.py", "line": 9, "name": "backward"}
    engine = {"filename": "??", "line": 0, "name": "torch::autograd::Engine::evaluate_function()"}
    own = {"filename": "/a/model.py", "line": 5, "name": "forward"}
    stacks: list[list[Any]] = [[engine, library, own], [engine], [library], ["odd", own], []]
    plain = segments_of([(0, 20 * MIB)], [(512 * place, 512, 100) for place in range(len(stacks))])
    for block, frames in zip(plain[0]["blocks"], stacks, strict=True):
        block["frames"] = frames
    found = history_of(parsed({"segments": plain}), 0)
    assert [each.line for each in found.buffers] == ["/a/model.py:5", BACKWARD, "", "/a/model.py:5", ""]
    assert short_lines(["/a/model.py:5", "/b/model.py:6", "/b/train.py:1", BACKWARD, ""]) == {
        "/a/model.py:5": "/a/model.py:5", "/b/model.py:6": "/b/model.py:6", "/b/train.py:1": "train.py:1",
        BACKWARD: BACKWARD, "": "",
    }  # fmt: skip


def test_streams_and_pools_do_not_serve_each_other() -> None:
    recorder = Recorder(expandable=False)
    recorder.free(recorder.allocate(30 * MIB))
    recorder.allocate(30 * MIB)
    snapshot = recorder.snapshot()
    # The second request is of another stream, and the segment that it got too.
    second = event_of("segment_alloc", 1 << 50, 30 * MIB) | {"stream": 7}
    events: list[dict[str, Any]] = snapshot["device_traces"][0]
    events[-1:] = [second, event_of("alloc", 1 << 50, 30 * MIB) | {"stream": 7}]
    snapshot["segments"] = segments_of([(1 << 40, 30 * MIB)], []) + [
        each | {"stream": 7} for each in segments_of([(1 << 50, 30 * MIB)], [(1 << 50, 30 * MIB, 30 * MIB)])
    ]
    history = history_of(parsed(snapshot), 0)
    replayed = replay_snapshot(history, expandable=False)
    assert replayed is not None
    assert (replayed.reserved, replayed.equal, replayed.requests) == (60 * MIB, 2, 2)


def test_the_report_is_json_and_back() -> None:
    recorder = Recorder(expandable=True)
    recorder.allocate(3 * MIB, 2)
    report = snapshot_report(parsed(recorder.snapshot() | {"allocator_settings": {"max_split_size": 5}}), "a")
    assert msgspec.json.decode(msgspec.json.encode(report), type=SnapshotReport) == report
    assert report.notes == ["replays leave out other settings of the allocator: max_split_size"]
