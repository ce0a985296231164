"""`stoker run --fit auto` on eight trainings and four budgets, against ten set-ups by hand. Bytes are counted."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.programs.fit_by_hand import HAND, LATER, by_hand
from benchmarks.programs.fit_kinds import KINDS
from benchmarks.support.harness import Bar, Options, Report, alternate, ratios, run
from stoker.records.fitting import FitRun
from stoker.records.fitting_file import read_fits

BAR = Bar(
    "fit_budget",
    "what any of ten set-ups by hand fits, `--fit auto` fits; counted peaks within the budget and within 1 % of the "
    "prediction; losses equal bit for bit; a step takes at most 1.05 times the quickest that fits",
    headline=("fitted", "prediction", "step"),
)
PROGRAM = Path(__file__).parent / "programs" / "fit_kinds.py"


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
    report.at_most("step", "seconds of a step over those of the quickest by hand that fits", steps or [1.0], 1.05)
    return report


def _ratio(kind: str, setup: str, budget: int, folder: Path, rounds: int) -> float:
    """Seconds of a step of auto over those of a set-up by hand, in turns.

    Both are new processes: in one that has trained before, memory is at hand and steps are quicker.
    """

    def auto() -> float:
        found = automatic(kind, budget, folder)
        if found is None:
            raise RuntimeError(f"`{kind}` was fitted into {budget} bytes, and is refused now")
        return statistics.median(found[0]["seconds"][LATER:])

    def hand() -> float:
        command = [sys.executable, "-m", "benchmarks.programs.fit_by_hand", kind, setup]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    found = alternate(rounds, {"auto": auto, "by hand": hand})
    return statistics.median(ratios(found["auto"], found["by hand"]))


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
