"""Twenty random kills of what a program's workers on other machines consist of: the same losses, and hardly a wait.

Items and steps are emulated: they sleep. Everything else is real: workers, sessions and hosts are killed or stopped,
the gateway is killed, a link between network namespaces is cut. A partition is a host that is stopped or cut off.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.programs.remote_program import Load
from benchmarks.support.harness import Bar, Options, Report, Spread, run
from benchmarks.support.nodes import HostOn, Machine, machines, refusal
from stoker.wire.secrets import create_secret

BAR = Bar(
    "remote_faults",
    "losses under 20 random kills, and how much longer than usual the program waits after each",
    headline=("losses_equal", "added_wait", "added_wait_partition"),
)
_PROGRAM = Path(__file__).parent / "programs" / "remote_program.py"
_LOAD = Load(item_s=0.1, step_s=0.02, batch_bytes=200_000, seconds=0.0)
_EVERY_S = 7.0
"""A lost host is called again after five seconds."""
_AFTER_S = 5.0
"""Waits are looked at for so long after a kill."""
_SEED = 15
Kill = Callable[[], None]


def measure(options: Options) -> Report:
    """One run that is left alone, one with kills."""
    report = Report()
    kills = options.pick(20, 6, 1)
    if reason := refusal():
        report.note(f"not measured: network namespaces are refused here ({reason})")
        return report
    found, killed = _with_kills(kills)
    load = dataclasses.replace(_LOAD, batches=len(found["losses"]), item_s=0.0, step_s=0.0)
    alone = _result(_command(load, "--workers", "1"))
    report.note(f"emulated: items of {_LOAD.item_s:g} s and steps of {_LOAD.step_s:g} s sleep; seed {_SEED}")
    waits = [came - asked for asked, came in zip(found["asked"], found["came"], strict=False)]
    usual_s = statistics.median(waits)
    added: dict[str, list[float]] = {}
    for name, at_s in killed:
        first = bisect.bisect_left(found["came"], at_s)
        last = bisect.bisect_left(found["came"], at_s + _AFTER_S)
        added.setdefault(name, []).append(max(waits[first : last + 1], default=0.0) - usual_s)
    rows = [[name, str(len(values)), *Spread.of(values).show(2)] for name, values in sorted(added.items())]
    report.table(["added wait, s", "kills", "median", "lowest - highest"], rows)
    report.at_least("losses_equal", "losses equal, of all", [_equal(found["losses"], alone["losses"])], 1.0)
    for key, is_partition, bound in (
        ("added_wait", False, 2 * _LOAD.item_s + 0.5),
        ("added_wait_partition", True, 2.5),
    ):
        values = [max(some) for name, some in added.items() if (name in _PARTITIONS) is is_partition]
        if values:
            what = "longest added wait" + (", partitions" if is_partition else "")
            report.at_most(key, what, [max(values)], bound, 2, " s")
    return report


def _equal(one: list[str], other: list[str]) -> float:
    same = sum(a == b for a, b in zip(one, other, strict=False))
    return same / max(len(one), len(other), 1)


def _command(load: Load, *options: str) -> list[str]:
    return [sys.executable, "-m", "stoker", "run", "--quiet", *options, str(_PROGRAM), json.dumps(vars(load))]


def _result(command: list[str]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command[:4], "--run-dir", f"{folder}/run", *command[4:]], stdout=subprocess.PIPE, check=True
        )
    return json.loads(done.stdout.splitlines()[-1])


_PARTITIONS = ("host stopped", "link cut")


def _with_kills(kills: int) -> tuple[Any, list[tuple[str, float]]]:
    """A program with two machines, and what was killed when (``time.monotonic``)."""
    seconds = 12.0 + _EVERY_S * kills
    load = dataclasses.replace(_LOAD, seconds=seconds)
    randomness = random.Random(_SEED)
    killed: list[tuple[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, machines([1000.0, 1000.0]) as nodes, contextlib.ExitStack() as stack:
        secret = Path(folder) / "secret"
        create_secret(secret)
        hosts = [stack.enter_context(HostOn(node, secret, 4)) for node in nodes]
        addresses = "static:" + ",".join(host.address for host in hosts)
        options = (
            "--backend",
            addresses,
            "--remote-secret-file",
            str(secret),
            "--workers",
            "2",
            "--remote-workers",
            "6",
        )
        command = _command(load, "--run-dir", f"{folder}/run", *options)
        with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
            time.sleep(10.0)
            for _ in range(kills):
                node, host = randomness.choice(list(zip(nodes, hosts, strict=True)))
                choices = _choices(program.pid, node, host)
                name = randomness.choice(sorted(choices))
                killed.append((name, time.monotonic()))
                choices[name]()
                time.sleep(max(0.0, killed[-1][1] + _EVERY_S - time.monotonic()))
            assert program.stdout is not None
            found = json.loads(program.stdout.read().splitlines()[-1])
    return found, killed


def _choices(program: int, node: Machine, host: HostOn) -> dict[str, Kill]:
    below = _below(program)
    there = _below(host.process.pid)

    def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop() -> None:
        sessions = [pid for pid in there if _name(pid) == "stoker_session"]
        kill(sessions, signal.SIGSTOP)
        time.sleep(4.0)
        kill(sessions, signal.SIGCONT)

    def cut() -> None:
        node.cut()
        time.sleep(4.0)
        node.mend()

    named = {
        name: [pid for pid in [*below, *there] if _name(pid) == name] for name in ("stoker_session", "stoker_gateway")
    }
    workers = [pid for pid in there if _name(pid) == "stoker_worker"]
    return {
        "worker there": lambda: kill(workers[:1]),
        "session": lambda: kill(named["stoker_session"]),
        "host": lambda: (kill([host.process.pid]), host.restart())[0],
        "gateway": lambda: kill(named["stoker_gateway"]),
        "worker here": lambda: kill([pid for pid in below if _name(pid) == "stoker_worker"][:1]),
        "host stopped": stop,
        "link cut": cut,
    }


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _below(pid: int) -> list[int]:
    """A process's descendants."""
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return [*children, *(one for child in children for one in _below(child))]


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
