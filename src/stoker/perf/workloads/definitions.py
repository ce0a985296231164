"""What every published row trained: a workload that can be run, or the reason for which there is none."""

from __future__ import annotations

from stoker.perf.tables.rows import Published
from stoker.perf.workloads import language, recommendation, speech, vision
from stoker.perf.workloads.workload import Excluded, Workload

_RULES = vision.RULES | language.RULES | speech.RULES | recommendation.RULES


def workload_of(row: Published) -> Workload | Excluded:
    """The workload of a row of ``lambda-v1`` or ``nvidia-dle``.

    ``llm-foundry`` and ``vtrain-single`` have closed forms instead: see :mod:`~stoker.perf.workloads.mpt` and
    :mod:`~stoker.perf.workloads.gpt`.
    """
    rule = _RULES.get(row.model)
    return rule(row) if rule else Excluded(f"{row.model}: no definition here")
