"""How long predictions take: one line for each that people wait for."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.support.harness import Bar, Options, Report, no_collections, run
from stoker.perf.features.records import StepFeatures
from stoker.perf.fleet import examine, synthetic_fleet
from stoker.perf.planning.batches import Batches
from stoker.perf.planning.choosing import PlanLimits
from stoker.perf.planning.memory import PlannedMemory
from stoker.perf.planning.offers import read_prices
from stoker.perf.planning.pricing import TrainingJob, predicted, refused
from stoker.perf.planning.report import Question, answer
from stoker.perf.planning.space import Space

BAR = Bar(
    "perf_speed",
    "a fleet of a million jobs, after parsing, within 2 s; features of large models and plans in seconds",
    headline=("fleet_s", "features_7b_s", "features_70b_s", "features_lstm_s", "plan_7b_s"),
)


def measure(options: Options) -> Report:
    """Each line in turn."""
    report = Report()
    _fleet(report, options)
    _features(report, options)
    _plan(report, options)
    return report


def _features(report: Report, options: Options) -> None:
    """Tracing one step with its optimizer, each time in a process of its own."""
    for name, bound_s, bound_gb in (("7b", 5.0, 1.0), ("70b", 15.0, 1.5), ("lstm", 3.0, 1.0)):
        model = "tiny" if options.size == "tiny" and name != "lstm" else name
        command = [sys.executable, "-m", "benchmarks.programs.traced_models", model]
        runs = [
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for _ in range(options.pick(options.rounds, min(2, options.rounds), 1))
        ]
        took_s, peak_gb = ([found[key] for found in runs] for key in ("took_s", "peak_gb"))
        report.at_most(f"features_{name}_s", f"features of a step: {model}", took_s, bound_s, unit=" s")
        report.at_most(f"features_{name}_gb", "its process's largest memory", peak_gb, bound_gb, unit=" GB")


def _plan(report: Report, options: Options) -> None:
    """`stoker plan` from the features on: 7B on up to 64 GPUs of the example's offers; nothing is kept of before."""
    # Imported here: the lines above are about their own processes.
    import torch

    from benchmarks.programs.traced_models import SIZES, VOCABULARY, Decoder
    from stoker.perf import characterise

    model = "tiny" if options.size == "tiny" else "7b"
    with torch.device("meta"):
        decoder = Decoder(*SIZES[model]).to(torch.bfloat16)
    found = characterise(decoder, torch.randint(VOCABULARY, (4, 2048)), optimizer=torch.optim.AdamW, name=model)
    prices = read_prices(Path(__file__).parents[1] / "examples" / "plan" / "prices.toml")
    took_s: list[float] = []
    for _ in range(options.pick(options.rounds, min(2, options.rounds), 1)):
        batches = Batches(StepFeatures.from_json(found.to_json()))
        memory = PlannedMemory()
        job = TrainingJob(
            samples=2_000_000, batches=batches, predict=predicted(), fits=memory.fits, recomputes=memory.recomputes,
            refuses=refused(),
        )  # fmt: skip
        space = Space(offers=prices.offers, batch=512, max_gpus=64, embeddings=True)
        begun_s = time.perf_counter()
        report_of = answer(
            Question(name=model, job=job, space=space, limits=PlanLimits(deadline_h=12.0), prices=prices)
        )
        took_s.append(time.perf_counter() - begun_s)
        assert report_of.front
    report.at_most("plan_7b_s", f"a plan of {report_of.candidates:,} candidates: {model}", took_s, 5.0, unit=" s")


def _fleet(report: Report, options: Options) -> None:
    """All that `stoker perf fleet` finds out, once the jobs are in memory."""
    fleet = synthetic_fleet(options.pick(1_000_000, 1_000_000, 10_000))
    took_s: list[float] = []
    for _ in range(options.rounds):
        with no_collections():
            begun_s = time.perf_counter()
            examine(fleet)
            took_s.append(time.perf_counter() - begun_s)
    report.at_most("fleet_s", f"a fleet of {len(fleet):,} jobs, after parsing", took_s, 2.0, unit=" s")


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
