"""The calibration that predictions use: from every published step whose definition says what one GPU of it ran."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from stoker.perf.calibration.fitting import Array, Calibration, fit, with_covariance
from stoker.perf.prediction.published import configurations, decoder_study, decoders_on_one_server, study
from stoker.perf.prediction.terms import CARD, COMPUTE, HOST, OPTIMIZER, TERMS


@functools.cache
def calibration() -> Calibration:
    """From all of them; takes a second."""
    found = study([each for each in configurations() if each.gpus == 1 and not each.is_loose])
    more = decoder_study(decoders_on_one_server())
    at_spec = np.concatenate([found.at_spec, more.at_spec])
    return with_covariance(fit(TERMS, at_spec, np.concatenate([found.measured, more.measured])), at_spec)


def _part(name: str) -> str:
    """The part of a step that a term belongs to; empty for a card's own term, which all share."""
    if name in CARD:
        return ""
    return "compute" if name in COMPUTE else "optimizer" if name in OPTIMIZER else "host" if name in HOST else "memory"


PART_OF: Mapping[str, str] = MappingProxyType({term.name: _part(term.name) for term in TERMS})
"""What each term is shown as, of :data:`~stoker.perf.prediction.prediction.PARTS`."""


def columns(part: str) -> Array:
    """1 where a term belongs to a part, else 0."""
    return np.array([float(PART_OF[term.name] == part) for term in TERMS])
