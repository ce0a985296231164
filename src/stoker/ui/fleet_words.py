"""The conclusions of a fleet's report, in sentences that the text and the page share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.core.units import format_count
from stoker.records.fleet import FleetReport, Port, Shares, Upgrade
from stoker.ui.figures import write_count, write_percent

ALL = "all jobs"
PORTS = "Paths of links are recalled from the study (unverified), and no measurement validates PS/Worker and PEARL yet."
"""How sure the figures of ports are."""
GAINS = "gains"
"""The outcome of a port by which jobs gain."""
SYNTHETIC = "Synthetic: generated from published figures of the PAI study. No job in it ever ran."
_SUMS = (
    ("weights and gradients", ("pcie", "nvlink", "ethernet", "communication")),
    ("computation", ("compute", "memory", "computation")),
    ("input", ("input",)),
)
"""Parts of a step as the headline adds them up."""


def write_gain(factor: float) -> str:
    """A factor: ``2.33×``, ``21.0×``."""
    return f"{factor:.1f}×" if factor >= 10 else f"{factor:.2f}×"


def write_facts(report: FleetReport) -> list[str]:
    """Its size and how it was analysed."""
    overlap = {"none": "parts of a step add up", "full": "parts of a step overlap: the longest is all of it"}
    facts = [format_count(report.jobs, "job"), format_count(report.gpus, "GPU")]
    mark = " (unverified)" if report.overlap == "full" and report.constants else ""
    return [*facts, overlap[report.overlap] + mark] if report.shares else facts


def write_headline(report: FleetReport) -> str:
    """One sentence: where the time goes, and what binds."""
    whole = find_all(report.shares)
    if whole is None:
        kinds = ", ".join(f"{write_percent(group.gpu_frac)} {group.name}" for group in report.groups)
        return f"How the time of a step is spent cannot be told from these columns. Of the {report.weighting}: {kinds}."
    sums = summed(whole.at_gpu)
    first, *others = sorted(sums.items(), key=lambda pair: -pair[1])
    rest = " and ".join(f"{write_percent(frac)} to {name}" for name, frac in others)
    return f"{write_percent(first[1])} of the GPUs' time goes to {first[0]}, {rest}. {_binding(report)}"


def _binding(report: FleetReport) -> str:
    found = next(each for each in report.bottlenecks if each.group == ALL)
    name, gpu_frac = max(found.at_gpu.items(), key=lambda pair: pair[1])
    label, jobs = report.resource_names[name], write_percent(found.at_job[name])
    label = label if label.split()[0].isupper() or label[1:2].isupper() else label[:1].upper() + label[1:]
    return f"{label} takes longest on {write_percent(gpu_frac)} of the GPUs ({jobs} of the jobs)."


def summed(shares: Mapping[str, float]) -> dict[str, float]:
    """Shares of weights and gradients, computation and input."""
    return {name: sum(shares.get(part, 0.0) for part in parts) for name, parts in _SUMS}


def find_all(shares: Sequence[Shares]) -> Shares | None:
    """The shares of the whole fleet; None where none are known."""
    return next((each for each in shares if each.group == ALL), None)


def best_upgrade(report: FleetReport) -> Upgrade | None:
    """The one that saves most GPU time; None where none saves any."""
    best = max(report.upgrades, key=lambda each: each.gpu_time_saved_frac, default=None)
    return best if best and best.gpu_time_saved_frac > 0 else None


def best_port(report: FleetReport) -> Port | None:
    """The one that gains most over its jobs, by how many and how much; None where none gains."""
    best = max(report.ports, key=lambda port: port.outcomes.get(GAINS, 0) * (port.whole.median - 1), default=None)
    return best if best and best.outcomes.get(GAINS) else None


def largest_groups(report: FleetReport) -> list[str]:
    """The three classes of jobs with the most GPUs, those first."""
    return [group.name for group in sorted(report.groups, key=lambda group: -group.gpu_frac)][:3]


def write_findings(report: FleetReport) -> list[str]:
    """The upgrade or port that helps most."""
    found: list[str] = []
    if (upgrade := best_upgrade(report)) is not None:
        found.append(
            f"Best single upgrade: {upgrade.resource} {upgrade.before} → {upgrade.after}{upgrade.mark} saves "
            f"{write_percent(upgrade.gpu_time_saved_frac)} of the GPUs' time."
        )
    if (port := best_port(report)) is not None:
        found.append(
            f"Best port: {port.source} to {port.target}; {write_count(port.outcomes[GAINS])} of "
            f"{write_count(port.jobs)} jobs gain, {write_gain(port.whole.median)} is the median of all."
        )
    return found


def write_weighting(report: FleetReport) -> str:
    """What the two levels count."""
    return f"each job counts once, or by its {report.weighting}"
