"""A design's simulator as a process that stays: batch after batch over its pipes, without another start.

It ends with the process that holds the other ends of the pipes, whatever ends that.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from stoker.core.errors import ToolError
from stoker.deploy.ir.graph import Integers
from stoker.deploy.rtl.generate import DesignDescription
from stoker.deploy.tools.simulation import Outcome, Update, bytes_of, numbers_of, update_bytes

_SEED = "1"


class SimulatorProcess:
    """A simulator that runs.

    Args:
        program: that simulates the design.
        design: its folder.
        description: of the design.

    Raises:
        ToolError: it cannot be started.
    """

    def __init__(self, program: Path, design: Path, description: DesignDescription) -> None:
        self._program = program
        self._description = description
        try:
            self._process = subprocess.Popen(
                [str(program), "serve", _SEED], cwd=design, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        except OSError as error:
            raise ToolError(f"`{program}` must run to simulate the design, and cannot be started: {error}") from error

    def run(
        self, inputs: Mapping[str, Integers], updates: Sequence[Update] = ()
    ) -> tuple[dict[str, NDArray[np.int32]], Outcome]:
        """The design's output values for samples sent one right after another, and what was seen.

        Args:
            inputs: input values of the graph by name, each (samples, …); there may be none where there are updates.
            updates: that go into the design next to them; nothing comes back before they have ended.

        Returns:
            (samples, words * lanes) by name of the value; nothing if the design stood still or broke a rule.

        Raises:
            ToolError: the simulator has ended.
        """
        assert self._process.stdin is not None
        samples = len(next(iter(inputs.values())))
        news = update_bytes(updates)
        head = samples.to_bytes(8, "little") + len(news).to_bytes(8, "little") + news
        parts = [bytes_of(inputs[end.value], end) for end in self._description.inputs]
        try:
            self._process.stdin.write(b"".join((head, *parts)))
            self._process.stdin.flush()
        except OSError as error:
            raise self._ended() from error
        line = self._read(int.from_bytes(self._read(8), "little"))
        try:
            outcome = msgspec.json.decode(line, type=Outcome)
        except msgspec.DecodeError as error:
            raise ToolError(f"`{self._program}` must answer with a line of JSON, got {line[-500:]!r}") from error
        if outcome.stuck or outcome.wrong:
            return {}, outcome
        ends = self._description.outputs
        results = {end.value: numbers_of(self._read(samples * end.sample_bytes), end) for end in ends}
        return results, outcome

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # what was not sent has no reader any more
                pipe.close()
        self._process.wait()

    def _read(self, count: int) -> bytes:
        assert self._process.stdout is not None
        found = self._process.stdout.read(count)
        if len(found) < count:
            raise self._ended()
        return found

    def _ended(self) -> ToolError:
        self.close()
        status = self._process.returncode
        return ToolError(f"`{self._program}` must run on for the next batch, and ended with status {status}")
