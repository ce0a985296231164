"""The calibration that predictions use: from every published step whose definition tells what one GPU ran.

``calibration.json`` is part of the package, so that a prediction neither reads those steps nor fits to them:
`python -m stoker.perf.study.compiling` makes it; run it again after a change of a term or a table.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

import msgspec
import numpy as np

from stoker.perf.calibration.fitting import Array, Calibration
from stoker.perf.prediction.terms import CARD, COMPUTE, HOST, OPTIMIZER, TERMS

FILE = "calibration.json"


class CalibrationTable(msgspec.Struct, frozen=True):
    """The content of ``calibration.json``, in full precision."""

    coefficients: dict[str, float]
    """Values by term, in the order of :data:`~stoker.perf.prediction.terms.TERMS`."""
    covariance: tuple[tuple[float, ...], ...]
    """Covariance of their logarithms; each row up to the diagonal."""


def packed(found: Calibration) -> bytes:
    """A calibration in the form of the package's table; :func:`unpacked` reverses it.

    Raises:
        ValueError: it has no covariance.
    """
    if found.covariance is None:
        raise ValueError("a calibration needs a covariance to be kept: `with_covariance` gives it one")
    names = [term.name for term in found.terms]
    lower = tuple(tuple(row[: place + 1]) for place, row in enumerate(found.covariance.tolist()))
    table = CalibrationTable(dict(zip(names, found.coefficients.tolist(), strict=True)), lower)
    return msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n"


def unpacked(content: bytes) -> Calibration:
    """The calibration of such a table.

    Raises:
        ValueError: its terms are not the current ones.
    """
    table = msgspec.json.decode(content, type=CalibrationTable)
    if tuple(table.coefficients) != tuple(term.name for term in TERMS):
        raise ValueError(
            f"`{FILE}` must hold the {len(TERMS)} terms that there are, in their order, got {len(table.coefficients)}; "
            "make it again: python -m stoker.perf.study.compiling"
        )
    covariance = np.zeros((len(TERMS), len(TERMS)))
    for place, row in enumerate(table.covariance):
        covariance[place, : place + 1] = covariance[: place + 1, place] = row
    return Calibration(TERMS, np.array(list(table.coefficients.values())), covariance)


@functools.cache
def calibration() -> Calibration:
    """The calibration of the package."""
    return unpacked((files("stoker.perf.prediction") / FILE).read_bytes())


def _part(name: str) -> str:
    """The part of a step that a term belongs to; empty for a card's own term, which belongs to all."""
    if name in CARD:
        return ""
    return "compute" if name in COMPUTE else "optimizer" if name in OPTIMIZER else "host" if name in HOST else "memory"


PART_OF: Mapping[str, str] = MappingProxyType({term.name: _part(term.name) for term in TERMS})
"""The part that each term is shown under, one of :data:`~stoker.records.parts.PREDICTED`."""


def columns(part: str) -> Array:
    """For each term, 1 if it belongs to a part, else 0."""
    return np.array([float(PART_OF[term.name] == part) for term in TERMS])
