"""From what the ranks wrote to one profile; the verdict and the prediction are added by whoever has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from statistics import fmean

from stoker import __version__
from stoker.perf.catalogue import Gpu, catalogue
from stoker.perf.verdict.breakdown import break_down, mean_of
from stoker.perf.verdict.profile import Details, Profile, RankRecord
from stoker.perf.verdict.sampled import rescaled
from stoker.perf.verdict.stragglers import find_stragglers, waited_s


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
    sampled_s = _sampled_means(first)
    notes = list(dict.fromkeys(note for record in ranks for note in record.notes))
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
        details=Details(
            wait_s=whole.seconds["input"],
            copy_s=whole.seconds["copy"],
            hidden_communication_s=whole.hidden_s,
            straggler_wait_s=min(waited_s(ranks), parts["communication"]),
        ),
        usage=first.usage,
        cpu_seconds_per_sample=_input_cpu_s(first, batch_size),
        loader=loader,
        operators=first.operators,
        modules=rescaled(first.modules, sampled_s, parts),
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
    if not record.samples:
        return {}
    return {
        label: fmean(sample.seconds.get(label, 0.0) for sample in record.samples) for label in record.samples[0].seconds
    }


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def gpu_named(name: str, known: Mapping[str, Gpu]) -> str:
    """The catalogue's name of a GPU that calls itself ``NVIDIA A100-SXM4-80GB``; empty where it has none.

    The words of the catalogue's name must be in the GPU's own (``A100``, ``80GB``; of ``SXM`` and ``PCIe`` the one that
    it has). Of several that fit, the one with most words is taken.
    """
    own = name.upper().replace("GEFORCE", "").replace("-", " ").replace("NVIDIA", " ")
    fitting = [
        each
        for each in known
        if all(word.upper() in own for word in each.split("-")) and each.split("-")[0] in own.split()
    ]
    return max(fitting, key=len, default="") or _without_form(own, known)


def _without_form(own: str, known: Mapping[str, Gpu]) -> str:
    """Names that leave out what the catalogue tells: ``Tesla V100-SXM2-16GB`` has all, ``NVIDIA H200`` no form."""
    for each in known:
        words = [word for word in each.upper().split("-") if word not in ("SXM", "PCIE")]
        others = {word for word in ("SXM", "PCIE") if word in own}
        forms = {word for word in ("SXM", "PCIE") if word in each.upper().split("-")}
        if all(word in own.split() for word in words) and (not others or not forms or others & forms):
            return each
    return ""
