"""An engine's simulator as a call from arrays to arrays: a model loaded over the bus, another one on the way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from stoker.core.errors import ToolError
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.rtl.engine.ends import beats_of, values_of
from stoker.deploy.rtl.engine.files import EngineDescription, read_engine
from stoker.deploy.rtl.folders import PROGRAM
from stoker.deploy.tools.running import run_tool, work_folder
from stoker.deploy.tools.simulation import Outcome, Stalls
from stoker.deploy.tools.verilator import SimulatorKind, lint_files, simulator_of

_WATCHDOG_CYCLES = 1 << 20
_NEVER = 1 << 62


class EngineOutcome(Outcome, frozen=True, kw_only=True):
    """What the harness saw of an engine."""

    array_cycles: int
    """In which the array was given a word."""
    load_cycles: int
    """What loading the model took, before the first sample."""
    update_cycles: int
    """What loading the second one took, while samples were answered; 0 if there was none."""


class LoadedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Another model that is loaded while samples are answered.

    Attributes:
        folder: of the same engine with the other model.
        after: samples that have been answered when its first word is sent.
    """

    folder: Path
    after: int


def lint_engine(folder: Path, *, limit_s: float) -> None:
    """Raises for an engine of which Verilator warns of anything. Errors of `verilator.lint`."""
    description = read_engine(folder)
    lint_files(folder, description.top, description.files, limit_s=limit_s)


def engine_simulator(
    folder: Path, kept_in: Path | None = None, *, kind: SimulatorKind = "design", limit_s: float = 600.0
) -> Path:
    """The program that simulates an engine, the same for all models; built now if it is not kept.

    Arguments and errors of `verilator.simulator`.
    """
    description = read_engine(folder)
    ports = f"#define DESIGN_BYTES {2 * description.shape.lanes}\n#define DESIGN_WATCHDOG {_WATCHDOG_CYCLES}ULL\n"
    harness = Path(__file__).with_name("engine_harness.cpp")
    return simulator_of(folder, description.top, description.files, harness, ports, kept_in, kind=kind, limit_s=limit_s)


def simulate_engine(
    program: Path, folder: Path, graph: IntegerGraph, inputs: Mapping[str, Integers], *, stalls: Stalls | None = None,
    update: LoadedModel | None = None, limit_s: float = 3600.0,
) -> tuple[dict[str, NDArray[np.int32]], EngineOutcome]:  # fmt: skip
    """An engine's output values for samples sent one right after another, and what was seen.

    Args:
        program: the engine's simulator.
        folder: of the engine with a model.
        graph: of the model.
        inputs: input values of the graph by name, each (samples, …).
        stalls: none by default.
        update: another model of the same ends, none by default.
        limit_s: for the whole run.

    Returns:
        (samples, numbers) by name of the value; fewer samples if the engine stood still.

    Raises:
        ToolError: the simulator fails.
    """
    words = beats_of(graph, inputs, read_engine(folder).shape.lanes)
    results, outcome = simulate_words(program, folder, words, stalls=stalls, update=update, limit_s=limit_s)
    return values_of(graph, results), outcome


def simulate_words(
    program: Path, folder: Path, words: NDArray[np.uint16], *, stalls: Stalls | None = None,
    update: LoadedModel | None = None, limit_s: float = 3600.0,
) -> tuple[NDArray[np.uint16], EngineOutcome]:  # fmt: skip
    """The same for words of the streams: (samples, words, lanes) in and out."""
    with work_folder("simulation") as made:
        outcome = simulate_words_in(made, program, folder, words, stalls=stalls, update=update, limit_s=limit_s)
        return _words((made / "out.bin").read_bytes(), read_engine(folder)), outcome


def simulate_words_in(
    made: Path, program: Path, folder: Path, words: NDArray[np.uint16], *, stalls: Stalls | None = None,
    update: LoadedModel | None = None, limit_s: float = 3600.0,
) -> EngineOutcome:  # fmt: skip
    """The same in a folder, where the harness's files stay."""
    chosen, description = stalls or Stalls(), read_engine(folder)
    samples, after = len(words), _NEVER if update is None else update.after
    (made / "in.bin").write_bytes(words.tobytes())
    (made / "model.bin").write_bytes((folder / PROGRAM).read_bytes())
    if update is not None:
        (made / "update.bin").write_bytes((update.folder / PROGRAM).read_bytes())
    numbers = samples, chosen.seed, chosen.before, chosen.after, description.words_in, description.words_out, after
    line = run_tool(
        [str(program), str(made), *map(str, numbers)],
        folder=folder,
        limit_s=limit_s,
        doing=f"simulating {samples} samples",
    )
    try:
        return msgspec.json.decode(line.splitlines()[-1], type=EngineOutcome)
    except (IndexError, msgspec.DecodeError) as error:
        raise ToolError(f"`{program}` must end with a line of JSON, got {line.strip()[-500:]!r}") from error


def _words(data: bytes, description: EngineDescription) -> NDArray[np.uint16]:
    """Words of whole samples."""
    shape = description.words_out, description.shape.lanes
    numbers = np.frombuffer(data, "<u2")
    whole = len(numbers) // (shape[0] * shape[1])
    return numbers[: whole * shape[0] * shape[1]].reshape(whole, *shape)
