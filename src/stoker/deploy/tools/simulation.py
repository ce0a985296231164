"""A design's simulator as a call from arrays to arrays, and what was seen on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from stoker.core.errors import ToolError
from stoker.deploy.ir.graph import Integers
from stoker.deploy.rtl.generate import DesignDescription, DesignEnd
from stoker.deploy.tools.running import run_tool, work_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Random pauses: the share of cycles in which the sender offers nothing new, and the reader takes nothing.

    Attributes:
        seed: of the pauses, and of the random bits that registers begin with.
        before: in [0, 1), of the sender.
        after: in [0, 1), of the reader.
    """

    seed: int = 1
    before: float = 0.0
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Update:
    """Another model's numbers on their way into a design.

    Attributes:
        after: samples of the first input that have begun before; it also begins when all are sent.
        words: of 32 bits.
    """

    after: int
    words: Sequence[int]


class SeenUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an update; cycles are those of the run."""

    words: int
    begun: int
    """Cycle at which its first word was offered."""
    taken: int
    """Cycle of its last word."""
    done: int
    """Cycle at which nothing reads the old numbers any more."""
    first: int
    """First sample of the run that the new model computes, as the design says."""
    refused: bool
    """Whether the design found that it was too short or too long."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the harness saw, read from its line."""

    digest: int
    cycles: int
    done: tuple[tuple[int, ...], ...]
    """For each output, the cycle at which each sample's last word left."""
    stuck: bool
    full: tuple[int, ...]
    """FIFOs that were full when nothing moved any more."""
    wrong: str
    """The rule of the protocol that was broken; empty if none was."""
    samples_in: int
    samples_out: int
    misplaced: bool
    updates: tuple[SeenUpdate, ...] = ()

    def interval(self, output: int = 0) -> float:
        """Cycles between two samples in a full pipeline: over the second half, when all buffers are filled."""
        done = self.done[output]
        half = len(done) // 2
        return (done[-1] - done[half]) / (len(done) - 1 - half) if len(done) > half + 1 else 0.0

    def latency(self, output: int = 0) -> int:
        """Cycles from the start to the end of the first sample; 0 if none came."""
        return self.done[output][0] if self.done[output] else 0


def simulate(
    program: Path, design: Path, description: DesignDescription, inputs: Mapping[str, Integers], *,
    stalls: Stalls | None = None, updates: Sequence[Update] = (), limit_s: float = 3600.0,
) -> tuple[dict[str, NDArray[np.int32]], Outcome]:  # fmt: skip
    """The design's output values for samples sent one right after another, and what was seen.

    Args:
        program: its simulator.
        design: its folder.
        description: of the design.
        inputs: input values of the graph by name, each (samples, …).
        stalls: none by default.
        updates: one after another, each when the one before has ended; for designs that take them.
        limit_s: for the whole run.

    Returns:
        (samples, words * lanes) by name of the value; fewer samples if the design stood still.

    Raises:
        ToolError: the simulator fails.
    """
    with work_folder("simulation") as folder:
        outcome = simulate_in(
            folder, program, design, description, inputs, stalls=stalls, updates=updates, limit_s=limit_s
        )
        results = {
            end.value: numbers_of((folder / f"out{at}.bin").read_bytes(), end)
            for at, end in enumerate(description.outputs)
        }
    return results, outcome


def simulate_in(
    folder: Path, program: Path, design: Path, description: DesignDescription, inputs: Mapping[str, Integers], *,
    stalls: Stalls | None = None, updates: Sequence[Update] = (), limit_s: float = 3600.0,
) -> Outcome:  # fmt: skip
    """The same in a folder, where the harness's files stay. Errors of :func:`simulate`."""
    chosen = stalls or Stalls()
    samples = len(next(iter(inputs.values())))
    for at, end in enumerate(description.inputs):
        (folder / f"in{at}.bin").write_bytes(bytes_of(inputs[end.value].reshape(samples, -1), end))
    (folder / "updates.bin").write_bytes(update_bytes(updates))
    line = run_tool(
        [str(program), str(folder), str(samples), str(chosen.seed), str(chosen.before), str(chosen.after)],
        folder=design, limit_s=limit_s, doing=f"simulating {samples} samples",
    )  # fmt: skip
    try:
        return msgspec.json.decode(line.splitlines()[-1], type=Outcome)
    except (IndexError, msgspec.DecodeError) as error:
        raise ToolError(f"`{program}` must end with a line of JSON, got {line.strip()[-500:]!r}") from error


def update_bytes(updates: Sequence[Update]) -> bytes:
    """Updates as the harness reads them."""
    parts: list[bytes] = []
    for each in updates:
        parts += [np.array([each.after, len(each.words)], "<u8").tobytes(), np.array(each.words, "<u4").tobytes()]
    return b"".join(parts)


def bytes_of(numbers: Integers, end: DesignEnd) -> bytes:
    """Numbers as an end of a design carries them."""
    return numbers.astype(_dtype(end)).tobytes()


def numbers_of(data: bytes, end: DesignEnd) -> NDArray[np.int32]:
    """The numbers of whole samples that an end of a design gave: (samples, words * lanes)."""
    whole = len(data) // end.sample_bytes
    found = np.frombuffer(data, _dtype(end), whole * end.words * end.lanes)
    return found.reshape(whole, end.words * end.lanes).astype(np.int32)


def _dtype(end: DesignEnd) -> str:
    return f"<{'i' if end.signed else 'u'}{end.number_bytes}"
