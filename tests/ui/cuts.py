"""Cuts written by hand: a small chain, and recommenders of 40 and 200 calls.

``python -m tests.ui.cuts FOLDER`` writes their pictures, for looking at them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

from stoker.records.events import CutChosen, GraphNode, GraphValue

ITEM_BYTES = {"float32": 4, "int64": 8, "uint8": 1, "bool": 1, "float64": 8}
BECAUSE = {
    "moved": "",
    "stateless": "its result is larger than the time it takes is worth",
    "stateful": "takes a parameter of the model",
}


class Sketch:
    """Builds a cut call by call; what crosses follows from the places."""

    def __init__(self) -> None:
        self.nodes: list[GraphNode] = []
        self.values: list[GraphValue] = []

    def leaf(self, label: str, shape: list[int], dtype: str = "float32") -> int:
        return self._value(label, None, shape, dtype)

    def call(
        self,
        function: str,
        inputs: list[int],
        shape: list[int] | None = None,
        dtype: str = "float32",
        *,
        place: str = "moved",
        ms: float = 0.1,
        site: str = "model.py:31",
        why: str | None = None,
    ) -> int:
        """A call with one result; the number of the result."""
        number = len(self.nodes)
        self.nodes.append(
            GraphNode(
                number=number,
                function=function,
                inputs=inputs,
                outputs=[len(self.values)],
                seconds=ms / 1e3,
                site=site,
                place=place,
                why=BECAUSE[place] if why is None else why,
            )
        )
        shape = self.values[inputs[0]].shape if shape is None else shape
        return self._value(f"x{number}", number, shape, dtype)

    def cut(self, **fields: object) -> CutChosen:
        place = {node.number: node.place for node in self.nodes}
        for node in self.nodes:
            for number in node.inputs:
                value = self.values[number]
                made_there = value.producer is None or place[value.producer] == "moved"
                value.crosses = value.crosses or (node.place != "moved" and made_there)
        moved = sum(node.seconds for node in self.nodes if node.place == "moved")
        values: dict[str, object] = {
            "t_s": 3.0,
            "loader": 0,
            "variant": 0,
            "steps": 4,
            "step_s": 2.5 * sum(node.seconds for node in self.nodes),
            "outcome": "moved" if moved else "stayed",
            "reason": "the calls cost more in the training process than sending what they make",
            "saved_s": 0.94 * moved,
            "worker_s": 1.1 * moved,
            "bytes_before": sum(value.size_bytes for value in self.values if value.producer is None),
            "bytes_after": sum(value.size_bytes for value in self.values if value.crosses),
            "nodes": self.nodes,
            "values": self.values,
        }
        return CutChosen(**{**values, **fields})  # type: ignore[arg-type]

    def _value(self, label: str, producer: int | None, shape: list[int], dtype: str) -> int:
        number = len(self.values)
        size = math.prod(shape) * ITEM_BYTES[dtype]
        self.values.append(
            GraphValue(
                number=number,
                producer=producer,
                label=label,
                shape=shape,
                dtype=dtype,
                size_bytes=size,
                crosses=False,
            )
        )
        return number


def images() -> CutChosen:
    """Normalisation in the loop body, a one_hot that stays, and the model's first calls."""
    sketch = Sketch()
    pixels = sketch.leaf("batch[0]", [64, 3, 224, 224], "uint8")
    labels = sketch.leaf("batch[1]", [64], "int64")
    x = sketch.call("Tensor.to", [pixels], site="train.py:61", ms=2.1)
    x = sketch.call("Tensor.div_", [x], site="train.py:61", ms=1.2)
    x = sketch.call("Tensor.sub", [x], site="train.py:62", ms=1.4)
    x = sketch.call("functional.avg_pool2d", [x], [64, 3, 56, 56], site="train.py:63", ms=3.2)
    hot = sketch.call(
        "functional.one_hot",
        [labels],
        [64, 1000],
        "int64",
        site="train.py:66",
        place="stateless",
        ms=0.05,
        why="it makes 500 KiB of 512 B: sending them takes longer than making them",
    )
    y = sketch.call("functional.conv2d", [x], [64, 64, 28, 28], place="stateful", ms=6.0)
    y = sketch.call("functional.batch_norm", [y], place="stateful", ms=2.0, why="writes to a buffer of the model")
    y = sketch.call("functional.linear", [y], [64, 1000], place="stateful", ms=0.8)
    sketch.call("functional.cross_entropy", [y, hot], [], place="stateful", ms=0.4, site="train.py:70")
    return sketch.cut()


def recommender(features: int = 4, tail: int = 6) -> CutChosen:
    """Feature transforms in a model's forward; ``7 * features + tail + 6`` calls."""
    sketch = Sketch()
    dense = sketch.leaf("batch['dense']", [4096, 13])
    sparse = [sketch.leaf(f"batch['c{number}']", [4096], "int64") for number in range(features)]
    labels = sketch.leaf("batch['label']", [4096])
    x = sketch.call("Tensor.clamp", [dense], site="features.py:22", ms=0.31)
    x = sketch.call("torch.log1p", [x], site="features.py:22", ms=0.84)
    x = sketch.call("Tensor.sub", [x], site="features.py:23", ms=0.11)
    normal = sketch.call("Tensor.div", [x], site="features.py:23", ms=0.12)
    hashed: list[int] = []
    for leaf in sparse:
        h = sketch.call("Tensor.mul", [leaf], dtype="int64", site="features.py:31", ms=0.09)
        h = sketch.call("Tensor.bitwise_xor", [h], dtype="int64", site="features.py:32", ms=0.08)
        hashed.append(sketch.call("torch.remainder", [h], dtype="int64", site="features.py:33", ms=0.22))
    crossed: list[int] = []
    for left, right in zip(hashed, [*hashed[1:], hashed[0]], strict=True):
        c = sketch.call("Tensor.mul", [left, right], dtype="int64", site="features.py:41", ms=0.1)
        crossed.append(sketch.call("torch.remainder", [c], dtype="int64", site="features.py:41", ms=0.2))
    wide = sketch.call(
        "functional.one_hot",
        [crossed[0]],
        [4096, 1000],
        "int64",
        place="stateless",
        site="model.py:52",
        ms=1.9,
        why="it makes 31.2 MiB of 32.0 KiB: sending them takes longer than making them",
    )
    bottom = sketch.call("functional.linear", [normal], [4096, 64], place="stateful", site="model.py:60", ms=0.7)
    embedded = [
        sketch.call("functional.embedding", [index], [4096, 64], place="stateful", site="model.py:64", ms=0.4)
        for index in [*hashed, *crossed]
    ]
    y = sketch.call(
        "torch.cat", [bottom, wide, *embedded], [4096, 1384], place="stateful", why="takes x of a stateful call"
    )
    for number in range(tail - 2):
        name = "functional.linear" if number % 2 == 0 else "functional.relu"
        y = sketch.call(name, [y], [4096, 256], place="stateful", site="model.py:71", ms=1.1)
    y = sketch.call("Tensor.squeeze", [y], [4096], place="stateful", site="model.py:74", ms=0.01)
    name = "functional.binary_cross_entropy_with_logits"
    sketch.call(name, [y, labels], [], place="stateful", site="train.py:88", ms=0.2)
    return sketch.cut()


def chain(calls: int = 60) -> CutChosen:
    """One long row of calls that move, then one that does not."""
    sketch = Sketch()
    x = sketch.leaf("batch", [256, 64])
    for number in range(calls):
        x = sketch.call("torch.sin", [x], site=f"train.py:{20 + number}")
    sketch.call("functional.linear", [x], place="stateful")
    return sketch.cut()


def nothing_moves() -> CutChosen:
    """A batch that goes into the model as it is."""
    sketch = Sketch()
    x = sketch.leaf("batch[0]", [32, 784])
    y = sketch.leaf("batch[1]", [32], "int64")
    h = sketch.call("functional.linear", [x], [32, 10], place="stateful")
    sketch.call("functional.cross_entropy", [h, y], [], place="stateful")
    return sketch.cut(reason="no call depends on the batch alone")


def ladder(rungs: int = 50) -> CutChosen:
    """Two rows of calls that take from each other: no part of it is a chain."""
    sketch = Sketch()
    left, right = sketch.leaf("batch[0]", [512, 8]), sketch.leaf("batch[1]", [512, 8])
    for number in range(rungs):
        place = "moved" if number < rungs // 2 else "stateless" if number < rungs * 3 // 4 else "stateful"
        left = sketch.call("torch.add", [left, right], place=place, site=f"mix.py:{number}")
        right = sketch.call("torch.mul", [right, left], place=place, site=f"mix.py:{number}")
    return sketch.cut()


CUTS: dict[str, Callable[[], CutChosen]] = {
    "images": images,
    "recommender40": recommender,
    "recommender200": lambda: recommender(26, 14),
    "chain": chain,
    "nothing": nothing_moves,
    "ladder": ladder,
}


if __name__ == "__main__":
    from stoker.ui.graph_svg import render_svg

    for name, make in CUTS.items():
        Path(sys.argv[1], f"{name}.svg").write_text(render_svg(make(), site="train.py:41"), encoding="utf-8")
