"""Assembles the report on a fleet; names the views that its columns do not allow."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from stoker.core.units import format_bytes
from stoker.perf.equations import IN_ONE_SERVER, PATHS, PATHS_SOURCE, Architecture, FloatArray, Overlap, breakdown
from stoker.perf.fleet.jobs import Fleet
from stoker.perf.fleet.porting import ports_of
from stoker.perf.fleet.published import compare
from stoker.perf.fleet.shares import (
    LABELS,
    RESOURCE_LABELS,
    Classes,
    bottlenecks_of,
    curves_of,
    groups_of,
    part_shares,
    resource_seconds,
    shares_of,
    stage_shares,
)
from stoker.perf.fleet.upgrades import sensitivities_of, upgrades_of
from stoker.perf.hardware import FIELD_OF, PAPER_GRID, PAPER_TESTBED, VALUES, Hardware, Resource, Variation, write_rate
from stoker.records.fleet import Constant, FleetReport, Missing


def examine(
    fleet: Fleet,
    hardware: Hardware = PAPER_TESTBED,
    overlap: Overlap = "none",
    grid: Sequence[Variation] = PAPER_GRID,
) -> FleetReport:
    """The report on a fleet.

    Args:
        fleet: its jobs.
        hardware: that they run on.
        overlap: of the parts of a step.
        grid: changes of the hardware to evaluate.
    """
    classes = Classes.of(fleet)
    report = FleetReport(
        name=fleet.name,
        form=fleet.form,
        synthetic=fleet.synthetic,
        overlap=overlap,
        weighting="GPUs" if fleet.duration_s is None else "GPU-seconds",
        jobs=len(fleet),
        gpus=round(float(np.sum(fleet.num_gpus))),
        groups=groups_of(fleet, classes),
        part_names=dict(LABELS),
        resource_names={str(resource): label for resource, label in RESOURCE_LABELS.items()},
        notes=[*fleet.notes, *_too_wide(fleet, hardware)],
        missing=_missing(fleet),
    )
    if fleet.features is not None:
        report = _with_features(report, fleet, classes, hardware, overlap, grid)
    elif fleet.stage_s is not None:
        shares = stage_shares(fleet.stage_s)
        report = msgspec.structs.replace(
            report,
            overlap="full",
            parts=list(shares),
            shares=shares_of(shares, classes),
            resource_names={stage: LABELS[stage] for stage in fleet.stage_s},
            bottlenecks=bottlenecks_of(fleet.stage_s, classes),
        )
    return report


def _with_features(
    report: FleetReport,
    fleet: Fleet,
    classes: Classes,
    hardware: Hardware,
    overlap: Overlap,
    grid: Sequence[Variation],
) -> FleetReport:
    assert fleet.features is not None, "it was asked for"
    busy = breakdown(fleet.features, hardware)
    shares: dict[str, FloatArray] = part_shares((busy.exposed() if overlap == "full" else busy).parts())
    resources = {str(resource): values for resource, values in resource_seconds(busy).items()}
    report = msgspec.structs.replace(
        report,
        parts=list(shares),
        shares=shares_of(shares, classes),
        curves=curves_of(shares, classes),
        bottlenecks=bottlenecks_of(resources, classes),
        ports=ports_of(fleet, hardware, overlap),
        upgrades=upgrades_of(busy, hardware, grid, classes, overlap),
        sensitivities=sensitivities_of(busy, classes, overlap),
        constants=_constants(hardware),
    )
    if not fleet.synthetic:
        return report
    return msgspec.structs.replace(report, comparisons=compare(report, fleet))


def _too_wide(fleet: Fleet, hardware: Hardware) -> list[str]:
    """A note if jobs of one server have more GPUs than a server."""
    if fleet.features is None:
        return []
    in_one = np.isin(fleet.group, IN_ONE_SERVER)
    count = int(np.count_nonzero(in_one & (fleet.num_gpus > hardware.gpus_per_server)))
    labels = " and ".join(each.label for each in IN_ONE_SERVER)
    rule = f"a server has {hardware.gpus_per_server:g} (`gpus_per_server` of --hardware)"
    return [f"{count:,} jobs of {labels} have more GPUs than one server; {rule}"] if count else []


def _missing(fleet: Fleet) -> list[Missing]:
    found = dict(fleet.missing)
    if fleet.features is not None and fleet.weight_bytes is None:
        found["whose weights fit a GPU after a port"] = "dense_weight_bytes and embedding_weight_bytes"
    return [Missing(what=what, needs=needs) for what, needs in found.items()]


_NAMES = {
    "gpu_flops_per_s": "GPU FLOP/s",
    "memory_bytes_per_s": "GPU memory bandwidth",
    "pcie_bytes_per_s": "PCIe",
    "nvlink_bytes_per_s": "NVLink",
    "ethernet_bytes_per_s": "Ethernet",
    "memory_capacity_bytes": "memory of a GPU",
    "gpus_per_server": "GPUs of a server",
    "gpus_per_pcie_root": "GPUs on a PCIe root",
}


def _constants(hardware: Hardware) -> list[Constant]:
    resource_of = {name: resource for resource, name in FIELD_OF.items()}

    def write(name: str) -> str:
        value = getattr(hardware, name)
        if name in resource_of:
            return write_rate(resource_of[name], value)
        return format_bytes(value) if name == "memory_capacity_bytes" else f"{value:g}"

    values = {name: (_NAMES[name], write(name)) for name in VALUES}
    values["efficiency"] = ("share of each peak that is reached", _efficiency(hardware))
    paths = Constant(
        name="links that weights pass",
        value="; ".join(f"{each.label} {_path(each)}" for each in Architecture if PATHS[each]),
        basis=PATHS_SOURCE.basis,
        where=PATHS_SOURCE.where,
        mark=PATHS_SOURCE.mark,
    )
    return [
        Constant(
            name=label,
            value=value,
            basis=hardware.source(name).basis,
            where=hardware.source(name).where,
            mark=hardware.source(name).mark,
        )
        for name, (label, value) in values.items()
    ] + [paths]


def _path(architecture: Architecture) -> str:
    return " + ".join(RESOURCE_LABELS[link] for link in PATHS[architecture])


def _efficiency(hardware: Hardware) -> str:
    shares = {resource: hardware.efficiency[resource] for resource in Resource}
    if len(set(shares.values())) == 1:
        return f"{100 * shares[Resource.COMPUTE]:g} %"
    return ", ".join(f"{RESOURCE_LABELS[resource]} {100 * share:g} %" for resource, share in shares.items())
