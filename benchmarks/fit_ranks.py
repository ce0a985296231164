"""`stoker run --fit auto` on six DDP trainings over 2 and 4 gloo ranks, against ten set-ups by hand. Bytes are counted.

All ranks share this machine's cores. In network namespaces each rank has a link of its own at a stated rate.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from benchmarks.programs.rank_kinds import KINDS, STEPS, train
from benchmarks.support.harness import Bar, Options, Report, run
from benchmarks.support.nodes import Machine, NoNamespaces, switched
from benchmarks.support.ranks import on_ranks
from stoker.core.patching import Patches
from stoker.records.fitting import FitRun, Keeps
from stoker.records.fitting_file import read_fits
from stoker.train.fitting.live_bytes import LiveBytes
from stoker.train.fitting.recomputing import recompute

BAR = Bar(
    "fit_ranks",
    "what any of ten set-ups of DDP, ZeRO-1 and FSDP2 by hand fits, `--fit auto` fits on 2 and 4 ranks; peaks within "
    "3 % of the prediction, states at most 1/N + 2 %, losses within 1e-5 of DDP; a step at 50 and 400 Mbit/s takes at "
    "most 1.1 times the quickest set-up that fits",
    headline=("fitted", "prediction", "losses", "step"),
)
PROGRAM = Path(__file__).parent / "programs" / "rank_kinds.py"
_LATER, _TIMED = 5, 10
"""Steps that are over before seconds count, three of which are counted, and steps of a timed training."""
_LIMIT_S = 900.0

Blocks = Callable[[list[nn.Module]], list[nn.Module]]


@dataclass(frozen=True)
class SetUp:
    """What a person writes.

    Attributes:
        shares: ``ddp``, ``zero1``, ``fsdp2``, or ``whole``: FSDP2 whose units stay gathered.
        chosen: which blocks are recomputed.
        keeps: what they keep.
        bucket_mb: most gradients that DDP sums at once.
    """

    shares: str
    chosen: Blocks = lambda blocks: []
    keeps: Keeps = "nothing"
    bucket_mb: float = 25


def _all(blocks: list[nn.Module]) -> list[nn.Module]:
    return blocks


HAND = {
    "ddp": SetUp("ddp"),
    "ddp, all": SetUp("ddp", _all),
    "ddp, every second": SetUp("ddp", lambda blocks: blocks[::2]),
    "ddp, products": SetUp("ddp", _all, "products"),
    "zero1": SetUp("zero1"),
    "zero1, all": SetUp("zero1", _all),
    "zero1, products": SetUp("zero1", _all, "products"),
    "fsdp2": SetUp("fsdp2"),
    "fsdp2, all": SetUp("fsdp2", _all),
    "fsdp2, gathered once": SetUp("whole"),
}
"""What is shared, which blocks a person recomputes, and what they keep."""
OTHER_BUCKETS = "ddp, other buckets"
"""DDP that sums the same gradients in another order of ranks: how far its losses are from its own by rounding alone."""
_SETUPS = {**HAND, OTHER_BUCKETS: SetUp("ddp", bucket_mb=0.1)}


def _prepared(setup: SetUp, patches: Patches) -> Callable[[nn.Module], tuple[nn.Module, Optimizer]]:
    def prepare(model: nn.Module) -> tuple[nn.Module, Optimizer]:
        blocks = [each for each in model.modules() if type(each).__name__ in ("Attention", "Residual", "Dense")]
        for block in setup.chosen(blocks):
            recompute(block, setup.keeps, patches)
        if setup.shares in ("fsdp2", "whole"):
            from torch.distributed.fsdp import fully_shard

            for block in blocks:
                fully_shard(block, reshard_after_forward=setup.shares == "fsdp2")
            fully_shard(model)
            return model, torch.optim.AdamW(model.parameters(), lr=1e-3)
        replica = DistributedDataParallel(model, bucket_cap_mb=cast("int", setup.bucket_mb))
        if setup.shares == "zero1":
            from torch.distributed.optim import ZeroRedundancyOptimizer  # which scripts a module, and warns of that

            made: Any = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)
            return replica, cast("Optimizer", made)
        return replica, torch.optim.AdamW(model.parameters(), lr=1e-3)

    return prepare


def by_hand(kind: str, setup: SetUp, *, counts: bool) -> dict[str, Any]:
    """What one rank found of a set-up; with its counted peak if asked for."""
    # Not taken back: the model goes with the set-up, and FSDP2 has its own classes over these.
    patches = Patches("set-up by hand")
    with warnings.catch_warnings(), LiveBytes() if counts else contextlib.nullcontext() as live:
        warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # nothing writes to outputs here
        found = train(kind, _prepared(setup, patches), STEPS if counts else _TIMED)
    return {**found, "peak": live.peak if live is not None else 0}


def hand_on_ranks(
    ranks: int, kind: str, setups: Sequence[str], nodes: Sequence[Machine] = ()
) -> dict[str, list[dict[str, Any]]]:
    """What ranks found of set-ups, one after another; counted on loopback, and timed on machines."""

    def work(_: int) -> dict[str, dict[str, Any]]:
        return {name: by_hand(kind, _SETUPS[name], counts=not nodes) for name in setups}

    enter = [node.enter for node in nodes[:ranks]]
    environ = [{"GLOO_SOCKET_IFNAME": node.inner} for node in nodes[:ranks]]
    found = on_ranks(ranks, work, timeout_s=_LIMIT_S, enter=enter, environ=environ)
    return {name: [each[name] for each in found] for name in setups}


def automatic(
    ranks: int, kind: str, budget: int, folder: Path, nodes: Sequence[Machine] = ()
) -> tuple[list[dict[str, Any]], FitRun] | None:
    """What each rank of the program wrote, and its fit; None if it was refused."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    environ |= {"OMP_NUM_THREADS": "1"}
    own = ["-m", "stoker", "run", "--fit", "auto", "--device-memory", f"{budget}B", "--quiet"]
    own += ["--run-dir", str(folder / "run")]
    program = [str(PROGRAM), kind, str(folder / "out"), *([str(_TIMED)] if nodes else [])]
    errors = folder / "errors"
    with errors.open("w") as stream:
        if nodes:
            status = _on_machines(own, program, environ, nodes[:ranks], stream)
        else:
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
            done = subprocess.run(
                [sys.executable, *own, *launcher, *program], env=environ, cwd=folder, stderr=stream, timeout=_LIMIT_S,
                check=False,
            )  # fmt: skip
            status = done.returncode
    if status == 2:
        return None
    if status:
        raise RuntimeError(errors.read_text())
    (found,) = read_fits(folder / "run").runs
    return [json.loads((folder / f"out.{rank}").read_text()) for rank in range(ranks)], found


def _on_machines(
    own: Sequence[str], program: Sequence[str], environ: dict[str, str], nodes: Sequence[Machine], errors: Any
) -> int:
    """Starts a rank on each machine, as a launcher would; returns the worst status."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        port = int(sock.getsockname()[1])
    common = {
        **environ, "WORLD_SIZE": str(len(nodes)), "MASTER_ADDR": nodes[0].address, "MASTER_PORT": str(port),
        "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0",
    }  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank, node in enumerate(nodes):
            place = {**common, "RANK": str(rank), "GLOO_SOCKET_IFNAME": node.inner}
            started.append(subprocess.Popen([*node.inside, sys.executable, *own, *program], env=place, stderr=errors))
        first = started[0].wait(_LIMIT_S)
        if first:
            return first
        return max(each.wait(_LIMIT_S) for each in started)
    finally:
        for each in started:
            each.kill()
            each.wait()


def _far(found: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]]) -> float:
    pairs = (zip(one["losses"], other["losses"], strict=True) for one, other in zip(found, plain, strict=True))
    return max(abs(ours - theirs) / abs(theirs) for each in pairs for ours, theirs in each)


def _step_s(found: Sequence[dict[str, Any]]) -> float:
    return statistics.median(found[0]["seconds"][_LATER:])


def measure(options: Options) -> Report:
    """Each program, number of ranks and budget; then some of them over links of stated rates."""
    report = Report()
    torch.set_num_threads(1)
    kinds = options.pick(tuple(KINDS), ("decoder", "deep"), ("deep",))
    counts = options.pick((2, 4), (2,), (2,))
    shares = options.pick((0.8, 0.6, 0.0), (0.7, 0.0), (0.6,))
    setups = options.pick(tuple(_SETUPS), tuple(_SETUPS), ("ddp", "fsdp2, all", OTHER_BUCKETS))
    rows: list[list[str]] = []
    fitted: list[float] = []
    errors: list[float] = [0.0]
    states: list[float] = [0.0]
    apart: list[float] = [0.0]
    peaks: dict[tuple[str, int], dict[str, int]] = {}
    for kind in kinds:
        for ranks in counts:
            hand = hand_on_ranks(ranks, kind, setups)
            rounding = _far(hand.pop(OTHER_BUCKETS), hand["ddp"])
            peaks[kind, ranks] = {name: max(each["peak"] for each in found) for name, found in hand.items()}
            plain, least = peaks[kind, ranks]["ddp"], min(peaks[kind, ranks].values())
            for share in shares:
                budget = int(share * plain) if share else least
                fits = [name for name, peak in peaks[kind, ranks].items() if peak <= budget]
                with tempfile.TemporaryDirectory() as place:
                    found = automatic(ranks, kind, budget, Path(place))
                fitted.append(float(found is not None or not fits))
                row = [kind, str(ranks), f"{share:.1f}" if share else "least", f"{budget / 1e6:.2f}", str(len(fits))]
                if found is None:
                    rows.append(report.as_it_comes([*row, "refused", "", "", "", ""]))
                    continue
                written, fit = found
                apart.append(far := _far(written, hand["ddp"]))
                if fit.counted_bytes:
                    errors.append(100 * abs(fit.counted_bytes / fit.predicted_bytes - 1))
                if {"zero1", "fsdp2"} & set(fit.applied):
                    whole = hand["ddp"][0]["states"]
                    states.append(100 * (max(each["states"] for each in written) / whole - 1 / ranks))
                measures = ", ".join(dict.fromkeys(each.kind for each in fit.plan.measures)) or "nothing"
                row += [measures, f"{fit.counted_bytes / 1e6:.2f}", f"{errors[-1]:.2f} %", f"{far:.1e}"]
                rows.append(report.as_it_comes([*row, f"{rounding:.1e}"]))
    head = ["program", "ranks", "budget", "MB", "fit by hand", "auto", "counted MB", "off by", "losses"]
    report.table([*head, OTHER_BUCKETS], rows)
    report.at_least("fitted", "whether auto fits each budget that a set-up by hand fits", [min(fitted)], 1.0)
    report.at_most("prediction", "worst difference of counted and predicted peak", [max(errors)], 3.0, unit=" %")
    report.at_most("states", "most that a rank's states are above 1/N", [max(states)], 2.0, unit=" %")
    report.at_most("losses", "relative difference of losses to DDP's, in 1e-5", [1e5 * max(apart)], 1.0)
    _over_links(options, report, peaks)
    return report


def _over_links(options: Options, report: Report, peaks: dict[tuple[str, int], dict[str, int]]) -> None:
    """Steps of auto over those of the quickest set-up by hand that fits, at stated rates."""
    rates = options.pick((50.0, 400.0), (400.0,), ())
    if not rates:
        return
    rows: list[list[str]] = []
    ratios: list[float] = []
    try:
        for rate in rates:
            most = max(ranks for _, ranks in peaks)
            with switched([rate] * most) as nodes:
                for (kind, ranks), found in peaks.items():
                    budget = int(0.7 * found["ddp"])
                    fits = [name for name, peak in found.items() if peak <= budget]
                    if not fits:
                        continue
                    timed = {name: _step_s(each) for name, each in hand_on_ranks(ranks, kind, fits, nodes).items()}
                    with tempfile.TemporaryDirectory() as place:
                        ours = automatic(ranks, kind, budget, Path(place), nodes)
                    quickest = min(timed, key=timed.__getitem__)
                    if ours is None:
                        continue
                    ratios.append(_step_s(ours[0]) / timed[quickest])
                    measures = ", ".join(dict.fromkeys(each.kind for each in ours[1].plan.measures)) or "nothing"
                    row = [kind, str(ranks), f"{rate:.0f}", quickest, f"{1e3 * timed[quickest]:.0f}", measures]
                    rows.append(report.as_it_comes([*row, f"{ratios[-1]:.2f}"]))
    except NoNamespaces as error:
        report.skip(str(error))
        return
    report.table(["program", "ranks", "Mbit/s", "quickest by hand", "ms", "auto", "times as long"], rows)
    if ratios:
        report.at_most("step", "a step of auto over that of the quickest set-up by hand that fits", [max(ratios)], 1.1)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
