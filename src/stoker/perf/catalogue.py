"""GPUs by their vendors' specifications; calibration says how much of them a program gets."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, cast

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
_MOST = 1e9
"""Largest figure of a data sheet, in the units of the file; a larger one is a typing error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One model of GPU.

    Attributes:
        rates: FLOP/s by precision, dense; only those that the GPU has.
        memory_bytes: its capacity.
        memory_bandwidth: bytes/s.
        nvlink: bytes/s of all its links, both directions together; 0 if it has none.
        pcie: bytes/s of its slot, one direction.
        power_w: most that the board may draw, in W; it lowers its clock if products would take more.
        source: where the figures come from.
    """

    name: str
    generation: str
    rates: Mapping[str, float]
    memory_bytes: float
    memory_bandwidth: float
    nvlink: float
    pcie: float
    power_w: float
    source: str

    def rate(self, precision: str) -> float:
        """FLOP/s at a precision.

        Raises:
            ValueError: the GPU does not have it.
        """
        if precision not in self.rates:
            raise ValueError(f"`precision` of {self.name} must be one of {', '.join(self.rates)}, got {precision!r}")
        return self.rates[precision]


@functools.cache
def catalogue() -> Mapping[str, Gpu]:
    """All known GPUs by name."""
    return gpus_of(tomllib.loads((files("stoker.perf") / "catalogue.toml").read_text()))


def gpu(name: str) -> Gpu:
    """A GPU by its name in the catalogue.

    Raises:
        ValueError: it is not known; says which are.
    """
    known = catalogue()
    if name not in known:
        raise ValueError(f"`gpu` must be one of {', '.join(known)}, got {name!r}")
    return known[name]


def gpus_of(content: Mapping[str, Any]) -> dict[str, Gpu]:
    """GPUs in the form of ``catalogue.toml``.

    Raises:
        ValueError: an entry is not a table, lacks a figure, or has one that is not positive.
    """
    return {name: _gpu(name, entry) for name, entry in content.items()}


def _gpu(name: str, found: Any) -> Gpu:
    if not isinstance(found, dict):
        raise ValueError(f"`{name}` must be a table [{name}] of a GPU's figures, got {found!r}")
    entry = cast("dict[str, Any]", found)
    missing = [key for key in ("generation", "memory", "bandwidth", "pcie", "power", "source") if key not in entry]
    if missing:
        raise ValueError(f"[{name}] must have {', '.join(missing)}")
    for key, value in entry.items():
        if key in ("generation", "source"):
            if not isinstance(value, str):
                raise ValueError(f"[{name}] `{key}` must be a text, got {value!r}")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST:
            raise ValueError(f"[{name}] `{key}` must be a positive number of at most {_MOST:g}, got {repr(value)[:60]}")
    rates = {key: entry[key] * 1e12 for key in PRECISIONS if key in entry}
    if not rates:
        raise ValueError(f"[{name}] must have a rate: one of {', '.join(PRECISIONS)}")
    return Gpu(
        name=name,
        generation=entry["generation"],
        rates=rates,
        memory_bytes=entry["memory"] * 1e9,
        memory_bandwidth=entry["bandwidth"] * 1e9,
        nvlink=entry.get("nvlink", 0) * 1e9,
        pcie=entry["pcie"] * 1e9,
        power_w=float(entry["power"]),
        source=entry["source"],
    )


def gpu_named(name: str, known: Iterable[str]) -> str:
    """The catalogue's name of a GPU that calls itself ``NVIDIA A100-SXM4-80GB``; empty where it has none.

    All words of the catalogue's name must be in the GPU's own, the form of the board only where that tells one.
    """
    words = set(re.split(r"[^A-Z0-9]+", name.upper()))
    # The H100's server board (SXM) is named by its memory type.
    own = {form for form, marks in _FORMS.items() if any(word.startswith(marks) for word in words)}
    fitting: list[tuple[bool, int, str]] = []
    for each in known:
        named = set(each.upper().split("-"))
        forms = named & _FORMS.keys()
        if named - forms <= words and (not own or not forms or own & forms):
            fitting.append((bool(own & forms), len(named), each))
    return max(fitting)[2] if fitting else ""


_FORMS = {"SXM": ("SXM", "HBM3"), "PCIE": ("PCIE",), "NVL": ("NVL",)}
