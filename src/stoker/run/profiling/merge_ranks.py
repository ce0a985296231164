"""Merges the ranks' files into one profile; the caller adds the verdict and the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from statistics import fmean

from stoker import __version__
from stoker.perf.catalogue import catalogue, gpu_named
from stoker.perf.diagnosis.breakdown import break_down, mean_of, typical
from stoker.perf.diagnosis.sampled import Sampled, rescaled
from stoker.perf.diagnosis.stragglers import find_stragglers, waited_s
from stoker.records.parts import PARTS
from stoker.records.profile import Profile, RankRecord, StepDetails


def assemble(
    records: Sequence[RankRecord], *, run_id: str, program: Sequence[str], cwd: str, started_unix_s: float
) -> Profile | None:
    """The profile of a program; None where no whole step was seen.

    Args:
        records: of the ranks.
        run_id: of the run.
        program: as the user typed it.
        cwd: where.
        started_unix_s: when.
    """
    ranks = sorted(records, key=lambda record: record.rank)
    divided = [(record, found) for record in ranks if (found := break_down(record)) is not None]
    if not divided:
        return None
    first = divided[0][0]
    whole = mean_of([found for _, found in divided])
    parts = whole.parts()
    stragglers = find_stragglers(ranks)
    loader = next((record.loader for record, _ in divided if record.loader is not None), None)
    batches = fmean(step.batches for step in first.steps)
    batch_size = loader.batch_size if loader is not None else None
    modules, operators = rescaled(
        Sampled(modules=first.modules, operators=first.operators), _sampled_means(first), parts
    )
    notes = list(dict.fromkeys(note for record in ranks for note in record.notes))
    if loader is None:
        notes.append("no DataLoader was used: what the program does to get its batches counts as the host's work")
    if len(ranks) < first.world_size:
        notes.append(f"{len(ranks)} of {first.world_size} ranks left records here")
    return Profile(
        stoker=__version__,
        torch=_torch_version(),
        run_id=run_id,
        started_unix_s=started_unix_s,
        program=list(program),
        cwd=cwd,
        hostname=first.hostname,
        device=first.device,
        device_name=first.device_name,
        gpu=gpu_named(first.device_name, catalogue()) if first.device == "cuda" else "",
        gpus=first.world_size,
        cores=first.cores,
        threads=first.threads,
        precision=first.precision,
        unit=first.unit,
        batch_size=round(batch_size * max(1.0, batches)) if batch_size else None,
        complete=all(record.complete for record in ranks),
        outcome=next((record.outcome for record in ranks if record.outcome), ""),
        steps=whole.steps,
        sampled=whole.sampled,
        seconds=whole.pace.seconds,
        low=whole.pace.low,
        high=whole.pace.high,
        share=whole.pace.share,
        parts=parts,
        details=StepDetails(
            wait_s=whole.seconds["input"],
            copy_s=whole.seconds["copy"],
            hidden_communication_s=whole.hidden_s,
            straggler_wait_s=min(waited_s(ranks), parts["communication"]),
        ),
        usage=first.usage,
        cpu_seconds_per_sample=_input_cpu_s(first, batch_size),
        loader=loader,
        operators=operators,
        modules=modules,
        seconds_of_ranks=[found.pace.seconds for _, found in divided],
        stragglers=stragglers,
        features="",
        predicted=None,
        unpredicted="",
        residual=None,
        verdict=None,
        notes=notes,
    )


def _input_cpu_s(record: RankRecord, batch_size: int | None) -> float | None:
    """Processor time of making one sample."""
    steps = [step for step in record.steps if not step.sampled and step.batches]
    if not batch_size or not steps or record.loader is None:
        return None
    if record.loader.workers:
        made_s = record.usage.children_s / fmean(step.batches for step in steps)
    else:
        made_s = sum(step.wait_cpu_s for step in steps) / sum(step.batches for step in steps)
    return made_s / batch_size


def _sampled_means(record: RankRecord) -> dict[str, float]:
    samples = record.samples and typical(record.samples)
    return {label: fmean(sample.seconds.get(label, 0.0) for sample in samples) for label in PARTS} if samples else {}


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""
