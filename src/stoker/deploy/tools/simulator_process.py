"""A design's simulator as a process that stays: batch after batch over its pipes, without another start.

It ends with the process that holds the other ends of the pipes, whatever ends that.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from stoker.core.errors import ToolError
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.rtl.engine.ends import beats_of, values_of
from stoker.deploy.rtl.engine.files import EngineDescription
from stoker.deploy.rtl.generate import DesignDescription
from stoker.deploy.tools.engine_simulation import EngineOutcome
from stoker.deploy.tools.simulation import Outcome, Update, bytes_of, numbers_of, update_bytes

_SEED = "1"


T = TypeVar("T", bound=Outcome)


class SimulatorPipes:
    """A simulator that runs, and the bytes that go to it and come back.

    Args:
        program: that simulates the design.
        folder: of the design, in which it runs.
        words: behind ``serve`` and the seed on its command line.

    Raises:
        ToolError: it cannot be started.
    """

    def __init__(self, program: Path, folder: Path, words: Sequence[int] = ()) -> None:
        self._program = program
        try:
            self._process = subprocess.Popen(
                [str(program), "serve", _SEED, *map(str, words)], cwd=folder, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise ToolError(f"`{program}` must run to simulate the design, and cannot be started: {error}") from error

    def exchange(self, samples: int, news: bytes, data: bytes, outcome: type[T]) -> T:
        """What was seen of a batch; :meth:`read` has its results, unless it stood still or broke a rule.

        Args:
            samples: of the batch.
            news: that go into the design with it.
            data: of the samples.
            outcome: what its line of JSON is.

        Raises:
            ToolError: the simulator has ended.
        """
        assert self._process.stdin is not None
        head = samples.to_bytes(8, "little") + len(news).to_bytes(8, "little")
        try:
            self._process.stdin.write(b"".join((head, news, data)))
            self._process.stdin.flush()
        except OSError as error:
            raise self._ended() from error
        line = self.read(int.from_bytes(self.read(8), "little"))
        try:
            return msgspec.json.decode(line, type=outcome)
        except msgspec.DecodeError as error:
            raise ToolError(f"`{self._program}` must answer with a line of JSON, got {line[-500:]!r}") from error

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # what was not sent has no reader any more
                pipe.close()
        self._process.wait()

    def read(self, count: int) -> bytes:
        """The next bytes of its answer."""
        assert self._process.stdout is not None
        found = self._process.stdout.read(count)
        if len(found) < count:
            raise self._ended()
        return found

    def _ended(self) -> ToolError:
        self.close()
        status = self._process.returncode
        return ToolError(f"`{self._program}` must run on for the next batch, and ended with status {status}")


class SimulatorProcess:
    """The simulator of a dataflow design.

    Args:
        program: that simulates the design.
        design: its folder.
        description: of the design.

    Raises:
        ToolError: it cannot be started.
    """

    def __init__(self, program: Path, design: Path, description: DesignDescription) -> None:
        self._pipes = SimulatorPipes(program, design)
        self._description = description

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
        samples = len(next(iter(inputs.values())))
        data = b"".join(bytes_of(inputs[end.value], end) for end in self._description.inputs)
        outcome = self._pipes.exchange(samples, update_bytes(updates), data, Outcome)
        if outcome.stuck or outcome.wrong:
            return {}, outcome
        ends = self._description.outputs
        results = {end.value: numbers_of(self._pipes.read(samples * end.sample_bytes), end) for end in ends}
        return results, outcome

    def close(self) -> None:
        """Ends it."""
        self._pipes.close()


class ProgramProcess:
    """The simulator of an engine with a model, which its first batch brings.

    Args:
        program: that simulates the engine.
        folder: of the engine.
        graph: of the model.
        description: of the engine with the model.
        model: its transfers, as in ``program.bin``.

    Raises:
        ToolError: it cannot be started.
    """

    def __init__(
        self, program: Path, folder: Path, graph: IntegerGraph, description: EngineDescription, model: bytes
    ) -> None:
        self._pipes = SimulatorPipes(program, folder, (description.words_in, description.words_out))
        self._graph = graph
        self._description = description
        self._model = model

    def run(self, inputs: Mapping[str, Integers]) -> tuple[dict[str, NDArray[np.int32]], EngineOutcome]:
        """As that of a dataflow design."""
        lanes, words_out = self._description.shape.lanes, self._description.words_out
        words = beats_of(self._graph, inputs, lanes)
        model, self._model = self._model, b""
        outcome = self._pipes.exchange(len(words), model, words.tobytes(), EngineOutcome)
        if outcome.stuck or outcome.wrong:
            return {}, outcome
        data = self._pipes.read(2 * len(words) * words_out * lanes)
        return values_of(self._graph, np.frombuffer(data, "<u2").reshape(-1, words_out, lanes)), outcome

    def close(self) -> None:
        """Ends it."""
        self._pipes.close()
