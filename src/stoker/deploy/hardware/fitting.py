"""A design on an FPGA by open tools: resources, clock and latency. Estimates: no board was there.

On parts that no open tool places designs on, there is no clock, and latency is in cycles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from stoker.core.errors import DeviceTooSmallError
from stoker.deploy.rtl.folders import FIT
from stoker.deploy.rtl.generate import read_design
from stoker.deploy.tools.devices import FPGAS, Fpga
from stoker.deploy.tools.placing import PlacedDesign, in_cells, place
from stoker.deploy.tools.simulation import simulate
from stoker.deploy.tools.synthesis import Resources, synthesise
from stoker.deploy.tools.verilator import simulator
from stoker.records.deploy.hardware import FittedDesign

_SAMPLES = 2


class DigestedDesign(Protocol):
    """A design or an engine that is told from others by its contents."""

    @property
    def digest(self) -> str:
        """A digest of all its files."""
        ...


class _KeptFit(msgspec.Struct, frozen=True):
    """A file in a design's folder, and which design it is about."""

    digest: str
    found: FittedDesign


def fit(design: Path, part: Fpga, kept_in: Path | None = None, *, limit_s: float, seed: int = 1) -> FittedDesign:
    """Synthesises, places and routes a design, and simulates a sample for its latency.

    Where nothing places designs on the part, it is synthesised alone.

    Args:
        design: a folder that ``stoker deploy rtl`` wrote.
        part: where it is placed.
        kept_in: where results of tools are kept; the user's cache by default.
        limit_s: for each tool.
        seed: of the placement.

    Raises:
        DeviceTooSmallError: the part has too little of something.
        MissingExtraError: a tool is not installed.
        ToolError: one fails, or takes too long.
        ValueError: the folder holds no design.
    """
    description = read_design(design)
    netlist, taken = synthesise(design, part, kept_in, limit_s=limit_s)
    check_room(taken, part, "write a smaller design with `stoker deploy rtl --multipliers`")
    placed = place(netlist, part, kept_in, limit_s=limit_s, seed=seed)
    zeros = {
        end.value: np.zeros((_SAMPLES, end.words * end.lanes), np.int32) for end in description.inputs
    }  # fmt: skip
    program = simulator(design, kept_in, limit_s=limit_s)
    _, outcome = simulate(program, design, description, zeros, limit_s=limit_s)
    found = fitted_design(part, taken, placed, description.cycles, outcome.latency())
    keep_fit(design, description, found)
    return found


def keep_fit(design: Path, description: DigestedDesign, found: FittedDesign) -> None:
    """Leaves what was found in the design's folder: who simulates it says what its cycles would be in seconds.

    Args:
        design: its folder.
        description: of the design.
        found: by the tools.
    """
    (design / FIT).write_bytes(msgspec.json.format(msgspec.json.encode(_KeptFit(description.digest, found))))


def fitted_design(
    part: Fpga, taken: Resources, placed: PlacedDesign | None, cycles: int, latency_cycles: int
) -> FittedDesign:  # fmt: skip
    """The record of what the tools found of a design.

    Args:
        part: that it is for.
        taken: by synthesis.
        placed: None where nothing placed it.
        cycles: between two samples.
        latency_cycles: of a sample through the empty design.
    """
    taken = in_cells(taken, placed)
    return FittedDesign(
        device=part.name, luts=(taken.luts, part.luts), flip_flops=(taken.flip_flops, part.flip_flops),
        dsps=(taken.dsps, part.dsps), block_rams=(taken.block_rams, part.block_rams),
        clock_mhz=placed.clock_mhz if placed else None, cycles=cycles, latency_cycles=latency_cycles,
    )  # fmt: skip


def read_fit(design: Path, description: DigestedDesign) -> FittedDesign | None:
    """What was found last of a design or an engine as it is; None where it has not been placed since it was written.

    Args:
        design: its folder.
        description: of the design.
    """
    try:
        kept = msgspec.json.decode((design / FIT).read_bytes(), type=_KeptFit)
    except (OSError, msgspec.DecodeError):
        return None
    return kept.found if kept.digest == description.digest else None


def check_room(taken: Resources, part: Fpga, otherwise: str) -> None:
    """Raises for a part that has too little of something.

    Args:
        taken: by synthesis.
        part: that has to have it.
        otherwise: what to do instead of taking a larger part.

    Raises:
        DeviceTooSmallError: it has; fields: device, resource, taken, available.
    """
    for resource in ("luts", "flip_flops", "dsps", "block_rams"):
        wanted, there = getattr(taken, resource), getattr(part, resource)
        if wanted > there:
            larger = [each.name for each in FPGAS if each.family == part.family and getattr(each, resource) >= wanted]
            remedy = f"use --device {larger[0]}, or " if larger else ""
            raise DeviceTooSmallError(
                f"`{part.name}` must have the {resource} of the design, has {there:,} of {wanted:,}; "
                f"{remedy}{otherwise}",
                device=part.name, resource=resource, taken=wanted, available=there,
            )  # fmt: skip
