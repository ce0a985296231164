"""Two machines feed a program that its own two data workers starve: over fast and slow links, and one machine slow.

Links are real (network namespaces, ``tc tbf``), items and the step are emulated: they sleep. The number of workers
there is found by the policy; those here are two. The rate is that of the last eight of thirty seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.programs.remote_program import SLOWNESS, Load
from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, ratios, run
from benchmarks.support.nodes import HostOn, carried, machines, refusal
from stoker.wire.secrets import create_secret

BAR = Bar(
    "remote_feed",
    "rate with two other machines after 30 s, of what the step, or cores here and links, can give",
    headline=("of_best_1000", "of_best_200", "of_alone_20", "of_without_slow"),
)
_PROGRAM = Path(__file__).parent / "programs" / "remote_program.py"
_LOAD = Load(item_s=0.24, step_s=0.02, batch_bytes=2_000_000, seconds=30.0)
_CORES = 8
_LAST_S = 8.0
_CALM_S = 10.0
"""Programs without other machines are measured after two seconds of so many."""


def measure(options: Options) -> Report:
    """All arms in alternation, a process each."""
    report = Report()
    if reason := refusal():
        report.note(f"not measured: network namespaces are refused here ({reason})")
        return report
    seconds = options.pick(_LOAD.seconds, _LOAD.seconds, 4.0)
    load = dataclasses.replace(_LOAD, seconds=seconds)
    calm = dataclasses.replace(load, seconds=options.pick(_CALM_S, _CALM_S, 4.0))
    links: dict[float, list[float]] = {1000.0: [], 200.0: []}

    def over(megabits: float) -> float:
        with machines([megabits] * 2) as nodes:
            links.setdefault(megabits, []).append(sum(carried(node, 1.0) for node in nodes) / load.batch_bytes)
        return _rate(load, [megabits] * 2)

    runs = {
        "step": lambda: _rate(dataclasses.replace(calm, item_s=0.0), []),
        "alone": lambda: _rate(calm, []),
        "1000 Mbit/s": lambda: over(1000.0),
        "200 Mbit/s": lambda: over(200.0),
        "20 Mbit/s": lambda: _rate(load, [20.0] * 2),
        "one, 1000 Mbit/s": lambda: _rate(load, [1000.0]),
        "and a slow one": lambda: _rate(load, [1000.0] * 2, slow=True),
    }
    found = alternate(options.rounds, runs)
    report.note(
        f"emulated: items of {load.item_s:g} s and steps of {load.step_s:g} s sleep, {_CORES} items at a time on each "
        f"machine; batches of {load.batch_bytes / 1e6:g} MB, over links of network namespaces"
    )
    report.table(
        ["batches/s", "median", "lowest - highest"], [[name, *Spread.of(found[name]).show(1)] for name in found]
    )
    for megabits, key in ((1000.0, "1000"), (200.0, "200")):
        best = [min(*limits) for limits in zip(found["step"], _sums(found["alone"], links[megabits]), strict=True)]
        what = f"{key} Mbit/s, of min(step, 2 workers here + links)"
        report.at_least(f"of_best_{key}", what, ratios(found[f"{key} Mbit/s"], best), 0.95)
    report.at_least(
        "of_alone_20", "20 Mbit/s, of 2 workers here alone", ratios(found["20 Mbit/s"], found["alone"]), 0.98
    )
    with_slow = ratios(found["and a slow one"], found["one, 1000 Mbit/s"])
    report.at_least("of_without_slow", "with one that is 10x slower, of without it", with_slow, 0.95)
    return report


def _sums(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _rate(load: Load, megabits: Sequence[float], *, slow: bool = False) -> float:
    """Batches a second at the end of a program's run, with machines behind such links; the last one may be slow."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        options = ["--workers", str(load.workers), "--quiet", "--run-dir", f"{folder}/run"]
        if megabits:
            secret = Path(folder) / "secret"
            create_secret(secret)
            nodes = stack.enter_context(machines(megabits))
            slowness = [{SLOWNESS: "10"} if slow and node is nodes[-1] else None for node in nodes]
            hosts = [
                stack.enter_context(HostOn(node, secret, _CORES, environ)).address
                for node, environ in zip(nodes, slowness, strict=True)
            ]
            options += ["--backend", "static:" + ",".join(hosts), "--remote-secret-file", str(secret)]
        command = [sys.executable, "-m", "stoker", "run", *options, str(_PROGRAM), json.dumps(dataclasses.asdict(load))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    times: list[float] = [at_s - found["asked"][0] for at_s in found["came"]]
    from_s = load.seconds - (_LAST_S if load.seconds > _CALM_S else 0.75 * load.seconds)
    late = [at_s for at_s in times if from_s < at_s <= load.seconds]
    return len(late) / (load.seconds - from_s)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
