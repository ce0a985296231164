# pyright: reportUnknownMemberType=false
"""Models of torch: a module with example inputs, or a program that ``torch.export`` saved."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from stoker.core.errors import ServingError
from stoker.serve.engine import ANY, Arrays, Interface, TensorSpec

_TRIED = (1, 2, 3)
"""Batches by which it is found whether outputs follow the samples of the inputs. Not all programs take 1."""


class TorchModel:
    """A module that computes on the CPU.

    Args:
        module: in the form that it is to run in.
        inputs: what it takes.
        by_name: whether inputs are keyword arguments.
        threads: of an engine.
    """

    def __init__(self, module: torch.nn.Module, inputs: Sequence[TensorSpec], *, by_name: bool, threads: int) -> None:
        self._module = module
        self._inputs = tuple(inputs)
        self._by_name = by_name
        self._threads = threads

    @property
    def in_any_thread(self) -> bool:
        """Whether torch starts no threads for it."""
        return self._threads == 1

    def engine(self) -> TorchEngine:
        """An engine of this process."""
        torch.set_num_threads(self._threads)
        return TorchEngine(self._module, self._inputs, by_name=self._by_name)


class TorchEngine:
    """Runs a module without gradients; its outputs are found by running it.

    Args:
        module: to run.
        inputs: what it takes.
        by_name: whether inputs are keyword arguments.
    """

    def __init__(self, module: torch.nn.Module, inputs: tuple[TensorSpec, ...], *, by_name: bool) -> None:
        self._module = module
        self._by_name = by_name
        self._names = [spec.name for spec in inputs]
        self.interface = Interface(inputs, self._found_outputs(inputs), "torch")

    def run(self, inputs: Arrays) -> Arrays:
        """The outputs for the inputs."""
        return {name: tensor.numpy() for name, tensor in self._call(inputs).items()}

    def _call(self, inputs: Arrays) -> dict[str, torch.Tensor]:
        tensors = {name: torch.from_numpy(inputs[name]) for name in self._names}
        with torch.inference_mode():
            given: Any = self._module(**tensors) if self._by_name else self._module(*tensors.values())
        return {name: tensor.detach().contiguous() for name, tensor in _named(given).items()}

    def _found_outputs(self, inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Outputs for two numbers of samples: axes that differ are free."""
        found: list[dict[str, torch.Tensor]] = []
        problem: Exception | None = None
        for samples in _TRIED if any(spec.is_batched for spec in inputs) else _TRIED[:1]:
            try:
                found.append(self._call({spec.name: _zeros(spec, samples) for spec in inputs}))
            except Exception as error:  # a program may be fixed to one size, or refuse a batch of 1
                problem = error
            if len(found) == 2:
                break
        if not found:
            assert problem is not None, "no output and no error"
            raise problem
        first, last = found[0], found[-1]
        return tuple(
            TensorSpec(name, _numpy_dtype(first[name].dtype, name), _free_shape(first[name].shape, last[name].shape))
            for name in first
        )


def of_export(path: Path, threads: int) -> TorchModel:
    """The model in a file that ``torch.export.save`` wrote.

    Args:
        path: of the file. Trusted, as any program is: it may hold code.
        threads: of an engine.

    Raises:
        ServingError: it takes something else than tensors.
    """
    program = torch.export.load(path)
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    specs: list[TensorSpec] = []
    for name in program.graph_signature.user_inputs:
        value = values.get(cast("str", name))
        if not isinstance(value, torch.Tensor):
            raise ServingError(f"`{path}` must take tensors alone, got `{name}`")
        sizes = cast("Sequence[object]", value.shape)  # symbols where they are free
        shape = tuple(size if isinstance(size, int) else ANY for size in sizes)
        specs.append(TensorSpec(str(name), _numpy_dtype(value.dtype, str(name)), shape))
    return TorchModel(program.module(), specs, by_name=False, threads=threads)


def of_definition(made: object, where: str, weights: Mapping[str, torch.Tensor] | None, threads: int) -> TorchModel:
    """The model that a function of the user returned.

    Args:
        made: a module and example inputs: a tensor, a tuple of tensors, or a dict by the names of ``forward``.
        where: the function is, for messages.
        weights: of the module; None for its own.
        threads: of an engine.

    Raises:
        ServingError: it returned something else.
    """
    pair: tuple[object, ...] = cast("tuple[object, ...]", made) if isinstance(made, tuple) else ()
    if len(pair) != 2 or not isinstance(pair[0], torch.nn.Module):
        raise ServingError(
            f"`{where}` must return (module, example inputs) with tensors of one sample or more, "
            f"got {type(cast('object', made)).__name__}"
        )
    module, examples = pair[0], pair[1]
    if weights is not None:
        # Assigned, not copied: they stay views of the file that all engines share.
        module.load_state_dict(dict(weights), assign=True)
    by_name = isinstance(examples, Mapping)
    named = cast("Mapping[str, Any]", examples) if by_name else _by_position(module, examples)
    specs: list[TensorSpec] = []
    for name, value in named.items():
        if not isinstance(value, torch.Tensor) or not value.ndim:
            raise ServingError(f"`{where}` must give tensors with samples along the first axis as `{name}`")
        specs.append(TensorSpec(name, _numpy_dtype(value.dtype, name), (ANY, *value.shape[1:])))
    return TorchModel(module.eval(), specs, by_name=by_name, threads=threads)


def _by_position(module: torch.nn.Module, examples: object) -> dict[str, object]:
    given: list[object] = list(cast("Sequence[object]", examples)) if isinstance(examples, tuple | list) else [examples]
    names = list(inspect.signature(module.forward).parameters)[: len(given)]
    names += [f"input_{place}" for place in range(len(names), len(given))]
    return dict(zip(names, given, strict=True))


def _named(given: Any) -> dict[str, torch.Tensor]:
    """Outputs of a call by name: those of a dict, else ``output``, or ``output_0`` and so on."""
    if isinstance(given, torch.Tensor):
        return {"output": given}
    if isinstance(given, Mapping):
        found = {str(name): value for name, value in cast("Mapping[Any, Any]", given).items()}
    elif isinstance(given, tuple | list):
        found = {f"output_{place}": value for place, value in enumerate(cast("Sequence[Any]", given))}
    else:
        found = {"output": given}
    if wrong := next((name for name, value in found.items() if not isinstance(value, torch.Tensor)), None):
        raise TypeError(f"`{wrong}` of the outputs must be a tensor, got {type(found[wrong]).__name__}")
    return found


def _free_shape(first: Sequence[int], last: Sequence[int]) -> tuple[int, ...]:
    return tuple(one if one == other else ANY for one, other in zip(first, last, strict=True))


def _zeros(spec: TensorSpec, samples: int) -> npt.NDArray[np.generic]:
    sizes = [max(size, 1) for size in spec.shape]
    if spec.is_batched:
        sizes[0] = samples
    return np.zeros(sizes, spec.dtype)


def _numpy_dtype(dtype: torch.dtype, tensor: str) -> np.dtype[np.generic]:
    """A type of numbers that NumPy and the protocol have."""
    try:
        found = torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:  # of bfloat16 and other types that are torch's alone
        found = np.dtype(object)
    if found.kind not in "biuf":
        raise ServingError(
            f"`{tensor}` must be of a type that clients have, got {dtype}; convert it in `forward`, by `float()` or "
            "`torch.view_as_real`"
        )
    return found
