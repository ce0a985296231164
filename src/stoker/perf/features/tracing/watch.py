"""Follows a step as it runs: its modules, its optimizers, its phases."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.perf.features.torch_private import FakeTensor, remove_hook, tree_leaves
from stoker.perf.features.tracing.distributed import paths
from stoker.perf.features.tracing.given import GivenObjects
from stoker.perf.features.tracing.places import outermost
from stoker.perf.features.tracing.recorder import DispatchRecorder


def first_size(tensors: Sequence[Tensor]) -> int:
    """First size of the first tensor that has sizes; 0 without one."""
    return next((tensor.shape[0] for tensor in tensors if tensor.dim() > 0), 0)


class StepFollower:
    """Follows a step: which module runs, and which phase.

    Args:
        recorder: receives the phases.
        root: whose modules are named; by default the first that is called.
    """

    def __init__(self, recorder: DispatchRecorder, root: nn.Module | None = None) -> None:
        self._recorder = recorder
        self.root = root
        self.given = GivenObjects(recorder.buffers)
        self._numbers: dict[int, int] = {}
        self._modules: list[nn.Module | None] = [None]
        self._stack: list[int] = []
        self.parameters: dict[int, Tensor] = {}
        """Parameters of modules that ran or were stepped, by identity."""
        self.optimizers: dict[int, Optimizer] = {}
        self.passes_by_hand = 0
        """Backward passes of the recorded step, if the program updates its weights itself."""
        self.outputs: dict[int, int] = {}
        """Bytes that the first recorded call of a module returned, by its number."""
        self.samples = 0
        """Samples that the root got in the recorded step: the first size of its first tensor."""
        self._unsized = False

    @property
    def is_inside(self) -> bool:
        """Whether a module's forward pass runs."""
        return bool(self._stack)

    def clear(self) -> None:
        """Removes fake gradients and states from what the program keeps."""
        for parameter in self.parameters.values():
            if isinstance(parameter.grad, FakeTensor):
                parameter.grad = None
        for optimizer in self.optimizers.values():
            for parameter, state in list(optimizer.state.items()):
                if any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(state)):
                    del optimizer.state[parameter]

    def names(self) -> list[str]:
        """Path of each module by its number."""
        known = {id(module): path for path, module in paths(self.root)} if self.root else {}
        return ["" if module is None else known.get(id(module), type(module).__name__) for module in self._modules]

    def owners(self) -> dict[int, str]:
        """Path of the module that holds a parameter, by the parameter's identity."""
        if self.root is None:
            return {}
        return {id(p): path for path, module in paths(self.root) for p in module.parameters(recurse=False)}

    @contextlib.contextmanager
    def recording(self) -> Generator[None]:
        """Records the calls in the block."""
        with self.hooks():
            self._recorder.begin()
            try:
                yield
            finally:
                self._recorder.recording = False

    @contextlib.contextmanager
    def hooks(self) -> Generator[None]:
        """Follows modules and optimizers in the block."""
        registry: Any = importlib.import_module("torch.nn.modules.module")
        steps: Any = importlib.import_module("torch.optim.optimizer")
        if self.root is not None:
            self._add(self.root)
        handles = [
            registry.register_module_forward_pre_hook(self._enter),
            registry.register_module_forward_hook(self._leave, always_call=True),
            registry.register_module_forward_hook(self._given, with_kwargs=True),
            steps.register_optimizer_step_pre_hook(self._optimizer),
            steps.register_optimizer_step_post_hook(self._optimized),
        ]
        try:
            yield
        finally:
            for handle in handles:
                remove_hook(handle)

    def _add(self, root: nn.Module) -> None:
        for parameter in root.parameters():
            self.parameters.setdefault(id(parameter), parameter)
            self._recorder.buffers.give_role(parameter, "weight")
        for buffer in root.buffers():
            self._recorder.buffers.give_role(buffer, "buffer")

    def _enter(self, module: nn.Module, args: Any) -> None:
        number = self._numbers.get(id(module))
        fresh = number is None
        if number is None:
            number = self._numbers[id(module)] = len(self._modules)
            self._modules.append(module)
        if not self._stack:
            if fresh:
                self._rooted(outermost(module))
            # A computation without gradients, such as an evaluation, is not on a training batch.
            learns = self._recorder.phase == "forward" and torch.is_grad_enabled()
            self._unsized = self._recorder.recording and learns and module is self.root
            self._add(module)
        if self._unsized and (size := first_size([leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)])):
            # The hook does not see keyword arguments; the first module inside gets some of them.
            self.samples, self._unsized = self.samples + size, False
        self._stack.append(number)
        self._recorder.buffers.module = number

    def _rooted(self, module: nn.Module) -> None:
        """Names modules from here on by their paths in the largest module seen."""
        if self.root is None or sum(1 for _ in self.root.modules()) < sum(1 for _ in module.modules()):
            self.root = module

    def _leave(self, module: nn.Module, args: Any, out: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._recorder.buffers.module = self._stack[-1] if self._stack else 0
        number = self._numbers.get(id(module))
        if number is not None and self._recorder.recording and number not in self.outputs:
            found = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
            self.outputs[number] = sum(tensor.numel() * tensor.element_size() for tensor in found)

    def _given(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if self._recorder.recording and torch.is_grad_enabled():
            self.given.note(args, kwargs)

    def _optimizer(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.optimizers.setdefault(id(optimizer), optimizer)
        self._recorder.phase = "optimizer"
        # A closure makes the passes inside of the step: Lightning steps so.
        if kwargs.get("closure") is not None:
            return args, {**kwargs, "closure": self._passes(kwargs["closure"])}
        if len(args) > 1 and args[1] is not None:
            return (args[0], self._passes(args[1]), *args[2:]), kwargs
        return args, kwargs

    def _passes(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def passes() -> Any:
            self._recorder.phase = "forward"
            try:
                return closure()
            finally:
                self._recorder.phase = "optimizer"

        return passes

    def _optimized(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._recorder.phase = "forward"
