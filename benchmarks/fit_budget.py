"""`stoker run --fit auto` on eight trainings and four budgets, against ten set-ups by hand. Bytes are counted."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.programs.fit_kinds import KINDS, loss_of
from benchmarks.support.harness import Bar, Options, Report, alternate, ratios, run
from stoker.core.patching import Patches
from stoker.records.fitting import FitRun, Keeps
from stoker.records.fitting_file import read_fits
from stoker.train.fitting.live_bytes import LiveBytes
from stoker.train.fitting.optimizing import UsedUp
from stoker.train.fitting.recomputing import recompute

BAR = Bar(
    "fit_budget",
    "what any of ten set-ups by hand fits, `--fit auto` fits; counted peaks within the budget and within 1 % of the "
    "prediction; losses equal bit for bit; a step takes at most 1.05 times the quickest that fits",
    headline=("fitted", "prediction", "step"),
)
PROGRAM = Path(__file__).parent / "programs" / "fit_kinds.py"
_LATER = 4
"""Steps that are over before seconds count: three are counted."""

Choose = Callable[[list[nn.Module]], list[nn.Module]]
HAND: dict[str, tuple[Choose, Keeps, bool]] = {
    "plain": (lambda blocks: [], "nothing", False),
    "all": (lambda blocks: blocks, "nothing", False),
    "every second": (lambda blocks: blocks[::2], "nothing", False),
    "every third": (lambda blocks: blocks[::3], "nothing", False),
    "first half": (lambda blocks: blocks[: len(blocks) // 2], "nothing", False),
    "products": (lambda blocks: blocks, "products", False),
    "used up": (lambda blocks: [], "nothing", True),
    "all, used up": (lambda blocks: blocks, "nothing", True),
    "second, used up": (lambda blocks: blocks[::2], "nothing", True),
    "products, used up": (lambda blocks: blocks, "products", True),
}
"""Which blocks a person recomputes, what they keep, and whether the optimizer steps inside the backward pass."""


def by_hand(kind: str, setup: str, *, counts: bool) -> tuple[list[float], int, float]:
    """Losses, counted peak (0 if it is not counted) and seconds of a later step of a set-up."""
    choose, keeps, used_up = HAND[setup]
    torch.manual_seed(0)
    model, data, size = KINDS[kind]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    used = UsedUp(optimizer) if used_up else None
    blocks = [each for each in model.modules() if type(each).__name__ in ("Attention", "Residual", "Dense")]
    batches = list(DataLoader(data, batch_size=size))
    losses: list[float] = []
    seconds: list[float] = []
    with Patches("set-up by hand") as patches, LiveBytes() if counts else contextlib.nullcontext() as live:
        for block in choose(blocks):
            recompute(block, keeps, patches)
        while batches:  # as the program does, it holds one batch at a time
            x, y = batches.pop(0)
            begun = _now()
            loss = loss_of(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seconds.append(_now() - begun)
            losses.append(loss.item())
    if used is not None:
        used.close()
    return losses, live.peak if live is not None else 0, statistics.median(seconds[_LATER:])


def _now() -> float:
    return time.perf_counter()


def automatic(kind: str, budget: int, folder: Path) -> tuple[dict[str, list[float]], FitRun] | None:
    """What the program wrote, and its fit; None if it was refused."""
    out = folder / "out.json"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    environ |= {"OMP_NUM_THREADS": "1"}  # as the set-ups by hand: two threads add in another order
    options = ["--fit", "auto", "--device-memory", f"{budget}B", "--quiet", "--run-dir", str(folder / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "run", *options, str(PROGRAM), kind, str(out)], env=environ, cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 2:
        return None
    if done.returncode:
        raise RuntimeError(done.stderr)
    (found,) = read_fits(folder / "run").runs
    return json.loads(out.read_text()), found


def measure(options: Options) -> Report:
    """Each program and budget."""
    report = Report()
    torch.set_num_threads(1)
    kinds = options.pick(tuple(KINDS), ("decoder", "averaged", "wide"), ("averaged",))
    shares = options.pick((0.9, 0.7, 0.5, 0.0), (0.7, 0.0), (0.7,))
    rounds = options.pick(options.rounds, 1, 1)
    rows: list[list[str]] = []
    fitted: list[float] = []
    errors: list[float] = [0.0]
    over: list[float] = [0.0]
    equal: list[float] = []
    steps: list[float] = []
    for kind in kinds:
        hand = {setup: by_hand(kind, setup, counts=True)[:2] for setup in HAND}
        seconds = {setup: by_hand(kind, setup, counts=False)[2] for setup in HAND}
        losses, plain = hand["plain"]
        least = min(peak for _, peak in hand.values())
        for share in shares:
            budget = int(share * plain) if share else least
            fits = [setup for setup, (_, peak) in hand.items() if peak <= budget]
            quickest = min(fits, key=seconds.__getitem__, default="none")
            row = [kind, f"{share:.1f}" if share else "least", f"{budget / 1e6:.2f}", quickest]
            with tempfile.TemporaryDirectory() as place:
                found = automatic(kind, budget, Path(place))
                fitted.append(float(found is not None or not fits))
                if found is None:
                    rows.append(report.as_it_comes([*row, "refused", "", "", "", ""]))
                    continue
                ratio = _ratio(kind, quickest, budget, Path(place), rounds) if fits else None
            written, fit = found
            same = written["losses"] == losses
            equal.append(float(same or fit.plan.of("chunks") != ()))
            counted = fit.counted_bytes
            if counted:
                errors.append(100 * abs(counted / fit.plan.peak_bytes - 1))
                over.append(100 * max(0.0, counted / budget - 1))
            steps += [ratio] if ratio is not None else []
            measures = ", ".join(dict.fromkeys(each.kind for each in fit.plan.measures)) or "nothing"
            row += [measures, f"{counted / 1e6:.2f}", f"{errors[-1]:.2f} %", "yes" if same else "no"]
            rows.append(report.as_it_comes([*row, f"{ratio:.2f}" if ratio is not None else ""]))
    head = ["program", "budget", "MB", "quickest by hand", "auto", "counted MB", "off by", "losses equal", "step"]
    report.table(head, rows)
    report.at_least("fitted", "whether auto fits each budget that a set-up by hand fits", [min(fitted)], 1.0)
    report.at_most("prediction", "worst difference of counted and predicted peak", [max(errors)], 1.0, unit=" %")
    report.at_most("over", "most that a counted peak is over its budget", [max(over)], 0.0, unit=" %")
    report.at_least("equal", "whether all runs have losses equal bit for bit", [min(equal, default=1.0)], 1.0)
    report.at_most("step", "seconds of a step over those of the quickest by hand that fits", steps, 1.05)
    return report


def _ratio(kind: str, setup: str, budget: int, folder: Path, rounds: int) -> float:
    """Seconds of a step of auto over those of a set-up by hand, in turns; the plan is kept, so nothing is traced."""

    def auto() -> float:
        found = automatic(kind, budget, folder)
        if found is None:
            raise RuntimeError(f"`{kind}` was fitted into {budget} bytes, and is refused now")
        return statistics.median(found[0]["seconds"][_LATER:])

    found = alternate(rounds, {"auto": auto, "by hand": lambda: by_hand(kind, setup, counts=False)[2]})
    return statistics.median(ratios(found["auto"], found["by hand"]))


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
