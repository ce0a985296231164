# pyright: reportUnknownMemberType=false
"""How long two processes of this machine take to sum tensors by gloo."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed

_PROCESSES = 2
_MEETING_S, _MEETINGS = 0.25, 3
"""One meeting of two processes, and how many there are at least."""
_TIMEOUT_S = 60.0


def all_reduce_seconds(sizes: Sequence[int], seconds: float) -> dict[float, float]:
    """Seconds of one all-reduce by bytes of the tensor: the sizes in rotation, by many pairs of processes.

    Sums below a megabyte wait for threads to wake. That delay differs between pairs of processes, 0.35 to 2.2 ms on two
    cores, and hardly varies within one. So many short runs are more precise than a few long ones: means over 24
    repeated within 10 %, medians over 3 within a factor of 2.

    Args:
        sizes: bytes, of float32.
        seconds: to spend, plus 0.2 s for each pair.

    Raises:
        RuntimeError: one of the processes failed.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-exchange-") as folder:
        meeting = str(Path(folder) / "meeting")
        question = json.dumps({"sizes": list(sizes), "seconds": seconds, "meeting": meeting})
        # One thread each: the processes share the machine's cores.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "stoker.perf.machine.exchange"]
        peers = [
            subprocess.Popen(
                [*command, str(rank), question], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for rank in range(_PROCESSES)
        ]
        try:
            said = [peer.communicate(timeout=seconds + _TIMEOUT_S) for peer in peers]
        finally:
            for peer in peers:
                peer.kill()
    for peer, (_, complaint) in zip(peers, said, strict=True):
        if peer.returncode != 0:
            raise RuntimeError(f"a process of the exchange failed:\n{complaint.decode(errors='replace')[-2000:]}")
    answers = [json.loads(out) for out, _ in said]
    # The sum is complete when the slower one has it.
    return {float(size): max(answer[str(size)] for answer in answers) for size in sizes}


def interpolated(points: Sequence[tuple[float, float]], size: float) -> float:
    """Seconds at a size: straight between measurements, as a start and a rate are; beyond the largest by its rate.

    Raises:
        ValueError: nothing was measured.
    """
    if not points:
        raise ValueError("`all_reduce` was not measured; measure again: stoker perf calibrate")
    found = sorted(points)
    if size <= found[0][0]:
        return found[0][1]
    for (left, a), (right, b) in itertools.pairwise(found):
        if size <= right:
            share = (size - left) / (right - left)
            return a * (1 - share) + b * share
    return found[-1][1] * size / found[-1][0]


def _main(rank: int, question: str) -> None:
    """Many runs, each with new processes: their placement by the system differs."""
    asked = json.loads(question)
    torch.set_num_threads(1)
    took: dict[str, list[float]] = {}
    meetings = max(_MEETINGS, round(asked["seconds"] / _MEETING_S))
    asked["seconds"] /= meetings
    for meeting in range(meetings):
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ours)
            with os.fdopen(theirs, "w") as out:
                out.write(json.dumps(_meet(rank, f"{asked['meeting']}{meeting}", asked)))
                out.flush()
                os._exit(0)
        os.close(theirs)
        with os.fdopen(ours) as said:
            found = json.loads(said.read())
        os.waitpid(child, 0)
        for size, seconds in found.items():
            took.setdefault(size, []).append(seconds)
    sys.stdout.write(json.dumps({size: statistics.fmean(times) for size, times in took.items()}))


def _meet(rank: int, place: str, asked: dict[str, Any]) -> dict[int, float]:
    """Lower quartiles: other load makes some sums slower and none faster."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{place}", rank=rank, world_size=_PROCESSES,
        timeout=datetime.timedelta(seconds=_TIMEOUT_S),
    )  # fmt: skip
    tensors = {size: torch.ones(size // 4) for size in asked["sizes"]}
    took: dict[int, list[float]] = {size: [] for size in tensors}
    go_on = torch.ones(1)
    order = random.Random(asked["sizes"][0])  # the same in both processes
    end = time.perf_counter() + asked["seconds"]
    while go_on.item():
        for size in order.sample(list(tensors), len(tensors)):
            tensor = tensors[size]
            distributed.barrier()
            # Several small ones in a row: a single one would mostly measure the end of the barrier.
            count = max(1, min(10, 1_000_000 // size))
            distributed.all_reduce(tensor)
            begun = time.perf_counter()
            for _ in range(count):
                distributed.all_reduce(tensor)
            took[size].append((time.perf_counter() - begun) / count)
            tensor.fill_(1.0)
        # Rank 0 decides when it is over.
        go_on.fill_(float(time.perf_counter() < end))
        distributed.broadcast(go_on, 0)
    return {size: sorted(times)[len(times) // 4] for size, times in took.items()}


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
