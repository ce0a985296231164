# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Runs a captured graph on samples and notes what each value holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from stoker.core.errors import CalibrationError
from stoker.deploy.floating.operations import FloatEmbedding, FloatGraph
from stoker.deploy.floating.patches import PatchTotals, WeightedLayer, patches_of
from stoker.deploy.floating.row_numbers import rows_read
from stoker.deploy.importing.exporting import Captured, in_words, is_in_place, where
from stoker.deploy.importing.mask_values import LEAST
from stoker.deploy.importing.matching import arguments
from stoker.deploy.lowering.observation import Observed, Real

_KEPT = 1 << 15
"""Numbers of a value that are kept from all samples."""
_PER_BATCH = 1 << 12
_ROWS = ("aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int", "aten._log_softmax.default")
"""What works along rows of any axis, which the graph on real numbers has last."""


class _Notes:
    """What was seen of a value so far.

    Args:
        readers: layers with weights that read it.
    """

    def __init__(self, readers: Sequence[WeightedLayer]) -> None:
        self.low, self.high = np.inf, -np.inf
        self.kept: list[Real] = []
        self.patches = [(each, PatchTotals(each)) for each in readers]

    def add(self, array: Real, chance: np.random.Generator, places: np.random.Generator) -> None:
        self.low, self.high = min(self.low, float(array.min())), max(self.high, float(array.max()))
        flat = array.ravel()
        self.kept.append(flat if len(flat) <= _PER_BATCH else chance.choice(flat, _PER_BATCH, replace=False))
        for layer, totals in self.patches:
            found = patches_of(layer, array, places)
            if found is not None:
                totals.add(found)

    def observed(self, chance: np.random.Generator) -> Observed:
        sample = np.concatenate(self.kept)
        if len(sample) > _KEPT:
            sample = chance.choice(sample, _KEPT, replace=False)
        found = ((layer.name, totals.moments()) for layer, totals in self.patches)
        moments = {name: each for name, each in found if each is not None}
        return Observed(low=self.low, high=self.high, sample=sample, patches=moments)


def observe(
    captured: Captured, batches: Iterable[Sequence[torch.Tensor]], graph: FloatGraph | None = None
) -> dict[str, Observed]:
    """What every real value of a graph holds over samples, by the names of the operations on real numbers.

    Args:
        captured: to run.
        batches: of samples.
        graph: whose layers' patches are observed, batch norms folded; None: no patches.

    Raises:
        CalibrationError: there are no samples, the model does not run on them, or a value is not finite; fields: value.
    """
    notes: dict[str, _Notes] = {}
    chance, places = np.random.default_rng(0), np.random.default_rng(1)
    readers: dict[str, list[WeightedLayer]] = {}
    for each in () if graph is None else graph.operations:
        if isinstance(each, WeightedLayer):
            readers.setdefault(each.sources[0], []).append(each)

    places_of = {node.name: where(node) for node in captured.graph_module.graph.nodes if node.op != "placeholder"}
    made = None if graph is None else {each.name for each in (*graph.inputs, *graph.operations)}

    def note(name: str, tensor: torch.Tensor) -> None:
        whole = not tensor.dtype.is_floating_point
        if not tensor.numel() or (whole and (made is None or name not in made)):
            return
        array = numbers(tensor)
        if not np.isfinite(array).all():
            if made is not None and name not in made:
                return  # a mask of -inf, which is no value
            place = places_of.get(name, "")
            raise CalibrationError(
                (f"{place}: " if place else "") + f"calibration samples must give finite numbers, and `{name}` holds "
                f"{array[~np.isfinite(array)].ravel()[0]}; look at the loader's samples and the model's weights",
                value=name,
            )
        if name not in notes:
            notes[name] = _Notes(readers.get(name, ()))
        notes[name].add(array, chance, places)

    count = 0
    for inputs in batches:
        run(captured, inputs, note)
        count += 1
    if not count:
        raise CalibrationError("calibration needs at least one batch of samples, got none", value="")
    return {name: each.observed(chance) for name, each in notes.items()}


def check_row_numbers(graph: FloatGraph, inputs: Sequence[torch.Tensor]) -> None:
    """Refuses samples with numbers that are no rows of the tables that read them.

    Raises:
        CalibrationError: with the input, the place in a sample, the table and its rows; fields: value.
        ModelImportError: a table's row numbers are computed; fields: where.
    """
    read = rows_read(graph)
    for port, tensor in zip(graph.inputs, inputs, strict=True):
        if port.name not in read:
            continue
        own, array = read[port.name], tensor.numpy()
        negative = (own.tables < 0) & (own.rows > 0) & (array < 0)
        if negative.any():
            first = tuple(np.argwhere(negative)[0].tolist())
            raise CalibrationError(
                f"`{port.name}[{', '.join(map(str, (':', *first[1:])))}]` must hold whole numbers from 0 on, and "
                f"sample {first[0]} holds {array[first]}; shift them in the loader",
                value=port.name,
            )
        wrong = (own.tables >= 0) & ((array < 0) | (array >= own.rows))
        if wrong.any():
            first = tuple(np.argwhere(wrong)[0].tolist())
            table, at = graph.operations[own.tables[first[1:]]], ", ".join(map(str, (":", *first[1:])))
            assert isinstance(table, FloatEmbedding)
            raise CalibrationError(
                f"`{port.name}[{at}]` must hold row numbers of `{table.layer or table.name}`, which has "
                f"{len(table.table)} rows, 0 to {len(table.table) - 1}, and sample {first[0]} holds {array[first]}; "
                "look at the loader's samples, or make the table larger",
                value=port.name,
            )


def values_of(captured: Captured, inputs: Sequence[torch.Tensor]) -> dict[str, Real]:
    """Every real value of a graph for one batch."""
    found: dict[str, Real] = {}

    def note(name: str, tensor: torch.Tensor) -> None:
        if tensor.dtype.is_floating_point:
            found[name] = numbers(tensor)

    run(captured, inputs, note)
    return found


def run(captured: Captured, inputs: Sequence[torch.Tensor], note: Callable[[str, torch.Tensor], None]) -> Any:
    """Runs the graph in single precision; ``note`` gets each tensor that comes of the inputs, and its name."""
    if any(is_in_place(node) for node in captured.graph_module.graph.nodes):
        inputs = [each.clone() for each in inputs]  # samples are run several times
    with torch.no_grad():
        return _Noting(captured, inputs, note).run(*captured.unwritten().arguments(inputs))


class _Noting(fx.Interpreter):
    """Runs node by node. An attention's scores and a softmax's rows, which no node has, are noted separately."""

    def __init__(
        self, captured: Captured, inputs: Sequence[torch.Tensor], note: Callable[[str, torch.Tensor], None]
    ) -> None:
        super().__init__(captured.graph_module)
        self.extra_traceback = False  # an error of a note is for a person, and torch would add its node and links
        self._inputs = inputs
        self._note = note
        self._constant = set(captured.tensors)

    def run_node(self, n: fx.Node) -> Any:
        if str(n.target) == "aten.scaled_dot_product_attention.default":
            self._attention(n)
        try:
            result = super().run_node(n)
        except Exception as error:  # whatever torch raises of the user's samples
            place = where(n)
            raise CalibrationError(
                (f"{place}: " if place else "")
                + f"the model must run on the loader's samples, and torch says: {in_words(str(error), self._inputs)}",
                value=n.name,
            ) from error
        if n.op == "call_function" and not (n.all_input_nodes or n.name in self._constant):
            self._constant.add(n.name)
        if n.name not in self._constant and n.op != "output":
            first = result[0] if isinstance(result, (tuple, list)) and result else result
            if isinstance(first, torch.Tensor):
                self._note(n.name, first)
                if str(n.target) in _ROWS:
                    self._note(f"{n.name}.rows", first.movedim(int(arguments(n)["dim"]), -1))
            if n.op == "call_function" and isinstance(result, (tuple, list)):
                for at, part in enumerate(result):
                    if isinstance(part, torch.Tensor):
                        self._note(f"{n.name}.{at}", part)
        return result

    def _attention(self, n: fx.Node) -> None:
        query, key = (self.env[each] for each in n.args[:2] if isinstance(each, fx.Node))
        scale = n.kwargs.get("scale", n.args[6] if len(n.args) > 6 else None)
        factor = query.shape[-1] ** -0.5 if scale is None else float(scale)  # pyright: ignore[reportArgumentType]
        scores = (query @ key.transpose(-1, -2)) * factor
        self._note(f"{n.name}.scores", scores)
        mask = arguments(n)["attn_mask"]
        if isinstance(mask, fx.Node) and (added := self.env[mask]).is_floating_point():
            self._note(f"{n.name}.biased", scores + added.masked_fill(added <= LEAST, 0))
        self._note(f"{n.name}.key", key.transpose(-1, -2))


def numbers(tensor: torch.Tensor) -> Real:
    """A tensor in double precision."""
    return np.asarray(tensor.detach().to(torch.float64).cpu().numpy())
