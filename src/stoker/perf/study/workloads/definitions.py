"""What every published row trained: a workload that can be run, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.perf.study.tables.rows import Published, published
from stoker.perf.study.workloads import language, recommendation, speech, vision
from stoker.perf.study.workloads.workload import Excluded, Workload

_RULES = vision.RULES | language.RULES | speech.RULES | recommendation.RULES


SOURCES = ("lambda-v1", "nvidia-dle")
"""Sources whose rows have definitions. ``llm-foundry`` and ``vtrain-single`` have closed forms instead: see
:mod:`~stoker.perf.study.workloads.mpt` and :mod:`~stoker.perf.study.workloads.gpt`."""


def defined_rows() -> Iterator[tuple[Published, Workload]]:
    """The published rows that have a workload, each with it, in the order of the table."""
    for row in published():
        if row.source in SOURCES and isinstance(found := workload_of(row), Workload):
            yield row, found


def workload_of(row: Published) -> Workload | Excluded:
    """The workload of a row of one of :data:`SOURCES`."""
    rule = _RULES.get(row.model)
    return rule(row) if rule else Excluded(f"{row.model}: no definition here")
