"""The units of a design and the streams between them: what the generator writes out, and what cycles are counted on.

A stream carries the numbers of one value in the order of its array, the same number of them in each word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stoker.deploy.rtl.constant_sums import ConstantSums
from stoker.deploy.rtl.flow import Flow, ThroughFlow

Parameter = int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class WordStream:
    """Words of a value.

    Attributes:
        name: of the node that it leaves.
        lanes: numbers of a word.
        bits: of a number.
        signed: whether it has a sign.
        words: of a sample.
    """

    name: str
    lanes: int
    bits: int
    signed: bool
    words: int

    @property
    def width(self) -> int:
        """Bits of a word."""
        return self.lanes * self.bits


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFile:
    """A file that a unit's memory begins with: one word a line, the first lane lowest.

    Attributes:
        bits: of a word.
        words: their values.
    """

    bits: int
    words: tuple[int, ...]

    def text(self) -> str:
        """Hexadecimal, as ``$readmemh`` reads it."""
        digits = -(-self.bits // 4)
        return "".join(f"{word:0{digits}x}\n" for word in self.words)


EMPTY = MemoryFile(bits=0, words=())
"""In place of a memory's file in a structure that is counted, not written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantLayer:
    """A layer whose weights are part of the circuit.

    Attributes:
        sums: of its products and biases.
        in_bits: of a number that it takes.
        acc_bits: of a sum with its bias.
    """

    sums: ConstantSums
    in_bits: int
    acc_bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignNode:
    """A unit, or what joins units.

    Attributes:
        stream: that leaves it; its name is the node's.
        module: of ``units``; empty for an input of the design.
        sources: names of the streams that it reads.
        parameters: of the module.
        memories: by file name.
        flow: how it passes words on.
        cycles: that it works on a sample, waiting left out.
        multipliers: of its arrays and requantisers.
        layer: the value of the graph that it computes; empty for what only joins.
        constant: its sums, where weights are part of the circuit.
    """

    stream: WordStream
    module: str
    sources: tuple[str, ...]
    flow: Flow
    cycles: int
    parameters: Mapping[str, Parameter] = field(default_factory=dict[str, Parameter])
    memories: Mapping[str, MemoryFile] = field(default_factory=dict[str, MemoryFile])
    multipliers: int = 0
    layer: str = ""
    constant: ConstantLayer | None = None

    @property
    def name(self) -> str:
        """Name of the node and its stream."""
        return self.stream.name


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """An input or output of the design.

    Attributes:
        port: name in the graph.
        value: the graph's value.
        stream: name of the node that it enters as or leaves from.
    """

    port: str
    value: str
    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """A design: nodes in an order in which each comes after those that it reads.

    Attributes:
        nodes: by name.
        inputs: ends where samples enter.
        outputs: ends where results leave.
        updatable: whether memories have two banks, one of which takes another model's numbers.
        host_tables: values of the model that the host makes, and that are inputs here.
        full_speed: whether FIFOs in front of joins are so deep that no branch holds another back.
    """

    nodes: Mapping[str, DesignNode]
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    updatable: bool = False
    host_tables: tuple[str, ...] = ()
    full_speed: bool = True

    def stream(self, end: End) -> WordStream:
        """The words of an end."""
        return self.nodes[end.stream].stream

    def readers(self, name: str) -> list[tuple[str, int]]:
        """Nodes that read a stream, each with the number of its input; outputs of the design are named ``""``."""
        found = [
            (node.name, at) for node in self.nodes.values() for at, each in enumerate(node.sources) if each == name
        ]
        return found + [("", at) for at, end in enumerate(self.outputs) if end.stream == name]

    @property
    def fifos(self) -> dict[str, int]:
        """Depths of the FIFOs in front of joins, in words, by name."""
        return {name: int(node.parameters["DEPTH"]) for name, node in self.nodes.items() if node.module == "fifo"}

    @property
    def constants(self) -> list[ConstantLayer]:
        """Layers whose weights are part of the circuit, in order."""
        return [node.constant for node in self.nodes.values() if node.constant is not None]

    @property
    def thresholds(self) -> tuple[str, ...]:
        """Layers whose results are found by comparisons with thresholds, in order."""
        return tuple(node.layer for node in self.nodes.values() if node.parameters.get("THRESHOLDS"))

    @property
    def cycles(self) -> int:
        """Cycles of a sample in a full pipeline: those of the slowest node or stream."""
        return max(max(node.cycles, node.stream.words) for node in self.nodes.values())

    def cycles_of(self, end: End) -> int:
        """Cycles of a sample of one output: those of the slowest node or stream that it depends on."""
        wanted, most = {end.stream}, 0
        for name, node in reversed(list(self.nodes.items())):
            if name in wanted:
                wanted.update(node.sources)
                most = max(most, node.cycles, node.stream.words)
        return most

    @property
    def multipliers(self) -> int:
        """Multipliers of all nodes."""
        return sum(node.multipliers for node in self.nodes.values())

    def with_fifos(self, depths: Mapping[tuple[str, int], int]) -> Structure:
        """The structure with a FIFO of so many words in front of inputs of nodes.

        Args:
            depths: words by node and number of its input; 0 for none.
        """
        nodes: dict[str, DesignNode] = {}
        for name, node in self.nodes.items():
            sources = list(node.sources)
            for at, source in enumerate(node.sources):
                if depth := depths.get((name, at), 0):
                    words = replace(self.nodes[source].stream, name=f"{name}_fifo{at}")
                    parameters: dict[str, Parameter] = {"W": words.width, "DEPTH": depth}
                    nodes[words.name] = DesignNode(
                        stream=words, module="fifo", sources=(source,), parameters=parameters,
                        flow=ThroughFlow(1, depth), cycles=words.words,
                    )  # fmt: skip
                    sources[at] = words.name
            nodes[name] = replace(node, sources=tuple(sources))
        return replace(self, nodes=nodes)
