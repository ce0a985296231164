"""How often bits of a design change in a simulation, by instance: Verilator's coverage of toggles, read as counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stoker.core.errors import ToolError
from stoker.deploy.ir.graph import Integers
from stoker.deploy.rtl.generate import DesignDescription
from stoker.deploy.tools.engine_simulation import EngineOutcome, engine_simulator, simulate_words_in
from stoker.deploy.tools.running import work_folder
from stoker.deploy.tools.simulation import Outcome, simulate_in
from stoker.deploy.tools.verilator import simulator

_POINT = re.compile(r"^C '(.*)' (\d+)$")
_EVERYWHERE = ("aclk", "clk", "aresetn", "rst")
"""They change in each cycle, or never."""
_WORD = "]["
"""Bits of a memory's words: large ones are not counted there, so small ones and arrays of registers are not."""
_ENGINE = "machine"
"""The instance whose units an engine's are."""


def changes(
    design: Path, description: DesignDescription, inputs: Mapping[str, Integers], folder: Path | None = None, *,
    limit_s: float = 3600.0,
) -> tuple[Counter[str], Outcome]:  # fmt: skip
    """Changes of bits while samples go through a design back to back, by instance of its top module, and what was seen.

    Those of the top module itself are under an empty name.

    Args:
        design: its folder.
        description: of the design.
        inputs: input values of the graph by name, each (samples, …).
        folder: where results of tools are kept.
        limit_s: for the run, and for a step of the build.

    Raises:
        MissingExtraError: Verilator is not installed.
        ToolError: a tool fails or takes too long.
    """
    program = simulator(design, folder, kind="activity", limit_s=limit_s)
    with work_folder("activity") as counts:
        outcome = simulate_in(counts, program, design, description, inputs, limit_s=limit_s)
        return counted((counts / "activity.dat").read_text(encoding="utf-8"), description.top), outcome


def engine_changes(
    folder: Path, words: NDArray[np.uint16], kept_in: Path | None = None, *, limit_s: float = 3600.0
) -> tuple[Counter[str], EngineOutcome]:
    """The same for words that are sent to an engine, by instance in it, without those of loading its model."""
    program = engine_simulator(folder, kept_in, kind="activity", limit_s=limit_s)
    with work_folder("activity") as counts:
        outcome = simulate_words_in(counts, program, folder, words, limit_s=limit_s)
        return counted((counts / "activity.dat").read_text(encoding="utf-8"), _ENGINE), outcome


def counted(text: str, top: str) -> Counter[str]:
    """Counts of a coverage file by instance inside another, such as the top module.

    Raises:
        ToolError: it has none.
    """
    found = Counter[str]()
    for line in text.splitlines():
        if (point := _POINT.match(line)) is None:
            continue
        facts = dict(fact.split("\x02", 1) for fact in point[1].split("\x01") if "\x02" in fact)
        bit = facts.get("o", "")
        signal = re.split(r"[\[:]", bit, maxsplit=1)[0]
        counts = facts.get("page", "").startswith("v_toggle/") and signal not in _EVERYWHERE and _WORD not in bit
        if counts:
            instances = facts.get("h", "").split(".")
            inside = instances[instances.index(top) + 1 :] if top in instances else []
            found[inside[0] if inside else ""] += int(point[2])
    if not found:
        raise ToolError(f"Verilator's coverage must count changes of bits of {top}, got {text[:200]!r}")
    return found
