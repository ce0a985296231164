"""Runs all bars (or those named), one after another, and prints the table: ``make bench``."""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.support.harness import layout
from stoker.core import host

BARS = (
    "feed_images",
    "feed_large_batches",
    "feed_small_batches",
    "feed_start",
    "feed_walk",
    "feed_constant",
    "feed_memory",
    "scale_converge",
    "scale_ramp",
    "scale_latency",
    "elastic_search",
    "resume",
    "measuring_overhead",
    "honest_report",
    "remote_transfer",
    "remote_start",
    "remote_feed",
    "remote_faults",
    "cut_size",
    "cut_recommender",
    "cut_never_slower",
    "cut_overhead",
    "cache_hit_local",
    "cache_hit_remote",
    "cache_cold",
    "cache_eviction",
    "cache_vs_fsspec",
    "cache_scale",
    "cache_training",
    "cache_model_load",
    "perf_fleet",
    "perf_accuracy",
    "perf_coverage",
    "perf_scaling",
    "perf_mpt",
    "perf_parallel_terms",
    "perf_speed",
    "perf_cpu",
    "perf_hooks",
    "plan_quality",
    "comm_plan",
    "comm_equal",
    "comm_late",
    "comm_average",
    "comm_pipeline",
    "comm_split",
    "comm_programs",
    "memory_cuda",
    "memory_device",
    "memory_arena",
    "fit_choice",
    "fit_budget",
    "fit_ranks",
    "arena_run",
    "memory_exact",
    "memory_speed",
    "deploy_exact",
    "deploy_accuracy",
    "deploy_tuning",
    "deploy_cpu",
    "sim_64gpu",
    "sim_bound",
    "sim_speed",
    "serve_speed",
    "serve_overload",
    "serve_swap",
    "allocator_scale",
    "cluster_live",
    "deploy_exact_rtl",
    "deploy_engine",
    "deploy_build",
    "deploy_search",
    "deploy_peers",
)
RESULTS = Path(__file__).parent / "results"
_VERSIONS = ("torch", "numpy", "opencv-python-headless", "msgspec")


@dataclass(frozen=True)
class Finding:
    """What one bar came to."""

    bar: str
    figures: dict[str, Any]
    holds: bool | None
    """None: it did not finish, or could not be measured here."""
    seconds: float

    @property
    def verdict(self) -> str:
        """For people."""
        if "skipped" in self.figures:
            return "not measured"
        return {True: "holds", False: "FAILS", None: "did not finish"}[self.holds]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when all bars hold, 1 when one does not, 2 when one did not finish."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Runs the bars and prints their table.")
    parser.add_argument("bars", nargs="*", metavar="BAR", help="which (default: all): " + ", ".join(BARS))
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--save", action="store_true", help=f"keep the result with its date in {RESULTS.name}/")
    found, passed = parser.parse_known_args(arguments)
    unknown = [name for name in found.bars if name not in BARS]
    if unknown:
        parser.error(f"`BAR` must be one of {', '.join(BARS)}, got {unknown[0]}")
    findings = [run_one(name, passed) for name in found.bars or BARS]
    print("\n" + _table(findings))
    record = {"machine": machine(), "arguments": passed, "bars": [vars(finding) for finding in findings]}
    if found.save:
        print(f"\nkept in {save(record)}")
    if found.json:
        print(json.dumps(record))
    if any(finding.verdict == "did not finish" for finding in findings):
        return 2
    return 1 if any(finding.verdict == "FAILS" for finding in findings) else 0


def run_one(name: str, passed: Sequence[str]) -> Finding:
    """One bar in a process of its own, its output shown as it comes."""
    begun = time.monotonic()
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *passed]
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"bar":'):
                last = line
            else:
                print(line, end="", flush=True)
    print(flush=True)
    seconds = round(time.monotonic() - begun, 1)
    if process.returncode or not last:
        return Finding(name, {}, None, seconds)
    result = json.loads(last)
    return Finding(name, result["figures"], result["holds"], seconds)


def _table(findings: Sequence[Finding]) -> str:
    rows = [
        [finding.bar, finding.verdict, f"{finding.seconds:.0f} s", _headline(finding)]
        for finding in findings
    ]  # fmt: skip
    return layout(["bar", "", "took", "figures"], rows, left=(0, 1, 3))


def _headline(finding: Finding) -> str:
    """The claims' figures in short; those of single rounds and absolute ones are left out."""
    if finding.holds is None:
        return ""
    chosen = importlib.import_module(f"benchmarks.{finding.bar}").BAR.headline
    return ", ".join(f"{key} {finding.figures[key]:.4g}" for key in chosen if key in finding.figures)


def machine() -> dict[str, Any]:
    """Hardware and versions."""
    facts = host.read_host()
    versions = {name: metadata.version(name) for name in _VERSIONS if _installed(name)}
    return {
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "cores": facts.cores,
        "memory_bytes": facts.memory_limit_bytes,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
        "commit": _commit(),
    }


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def save(record: dict[str, Any]) -> Path:
    """Keeps a result under its date; a second one of the day gets a number."""
    RESULTS.mkdir(exist_ok=True)
    date, number = record["machine"]["date"], 1
    while (path := RESULTS / f"{date}{'' if number == 1 else f'-{number}'}.json").exists():
        number += 1
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
