"""Runs a program for real and counts its tensors in the step that a trace predicts, and in its first evaluation.

Started as `python -m benchmarks.support.counted OUT [--by-hand] PROGRAM ...`: OUT gets JSON. A step of a program that
updates its weights itself ends where the next forward pass after a backward pass begins. Nothing here is shared with
the tracer: what is alive is counted operation by operation, and told apart by what optimizers and modules say of it.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.data import TensorDataset, dataloader

from benchmarks.support.live_storages import LiveStorages

_LIBRARIES = (
    os.path.dirname(torch.__file__), os.path.dirname(os.path.abspath(__file__)), "<",
    sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"),
)  # fmt: skip


class _Counter(LiveStorages):
    """Counts, and keeps what was alive at the most of the current window."""

    def __init__(self) -> None:
        super().__init__()
        self.is_counting = True
        self.born: dict[int, tuple[Any, str]] = {}
        """The storage's reference, which tells it from a later one, and the phase it was made in."""
        self.phase = "forward"
        self.marks: list[dict[int, Any]] = []
        self.most = 0
        self.at: dict[int, tuple[Any, int]] = {}
        self.line = ""
        self.hosted: set[int] = set()
        """Storages of data sets: a program on a GPU has them in the host's memory, so no step is charged for them."""

    def _add(self, tensors: Any) -> None:
        super()._add(each for each in tensors if each.layout is not torch.strided
                     or each.untyped_storage()._cdata not in self.hosted)  # fmt: skip

    def host(self, values: Any) -> None:
        """Leaves out the tensors of a data set from now on."""
        for each in values:
            if isinstance(each, Tensor):
                address = each.untyped_storage()._cdata
                self.hosted.add(address)
                self._live.pop(address, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if not self.is_counting:
            return func(*args, **(kwargs or {}))
        out = super().__torch_dispatch__(func, types, args, kwargs)
        for address, (reference, _) in self._live.items():
            known = self.born.get(address)
            if known is None or known[0] is not reference:
                self.born[address] = reference, self.phase
        live = sum(size for _, size in self._live.values())
        if live > self.most:
            self.most, self.at, self.line = live, dict(self._live), _line()
        return out

    def window(self) -> None:
        """Starts to look for the most from here on."""
        # What was dropped since the last operation is no part of it.
        self._live = {address: found for address, found in self._live.items() if not found[0].expired()}
        self.most, self.marks = sum(size for _, size in self._live.values()), []
        self.at, self.line = dict(self._live), ""

    def mark(self) -> None:
        """A backward pass begins."""
        self.marks.append({address: found[0] for address, found in self._live.items() if not found[0].expired()})


def _line() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_LIBRARIES) and not path.startswith(_LIBRARIES[3]):
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


class _Followed:
    """The program, step by step."""

    def __init__(self, out: Path, by_hand: bool) -> None:
        self.by_hand, self.has_passed = by_hand, False
        """Whether the program makes no optimizer, and whether a backward pass was seen in the step."""
        self.out, self.counter = out, _Counter()
        self.roles: dict[int, tuple[Any, str]] = {}
        self.first: Optimizer | None = None
        self.optimizers: dict[int, Optimizer] = {}
        self.steps = self.wanted = 0
        self.parameters: dict[int, Tensor] = {}
        self.answer: dict[str, Any] = {}
        self.is_evaluating = False
        self.depth = 0

    def install(self) -> None:
        """Hooks of modules, optimizers, loaders and the backward pass."""
        steps: Any = importlib.import_module("torch.optim.optimizer")
        registry: Any = importlib.import_module("torch.nn.modules.module")
        steps.register_optimizer_step_pre_hook(self._stepping)
        steps.register_optimizer_step_post_hook(self._stepped)
        registry.register_module_forward_pre_hook(self._enter)
        registry.register_module_forward_hook(self._leave, always_call=True)
        run: Any = torch.autograd._engine_run_backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            self.counter.mark()
            before, self.counter.phase = self.counter.phase, "backward"
            try:
                return run(*args, **kwargs)
            finally:
                self.counter.phase = before
                self._role((each.grad for each in self.parameters.values()), "gradients")
                self.has_passed = True

        torch.autograd._engine_run_backward = backward
        torch.autograd.graph._engine_run_backward = backward
        for kind in (TensorDataset, dataloader.DataLoader):
            self._host_made_by(kind)
        load = dataloader._BaseDataLoaderIter.__next__

        def loaded(iterator: Any) -> Any:
            self.counter.host(tree_leaves(list(vars(iterator._dataset).values())))
            self.counter.is_counting, before = False, self.counter.is_counting
            try:
                batch = load(iterator)
            finally:
                self.counter.is_counting = before
            tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
            self.counter._add(tensors)
            self._role(tensors, "inputs")
            return batch

        dataloader._BaseDataLoaderIter.__next__ = loaded

    def _host_made_by(self, kind: Any) -> None:
        """Leaves out the tensors of data sets from their making on."""
        init = kind.__init__

        def made(this: Any, *args: Any, **kwargs: Any) -> None:
            init(this, *args, **kwargs)
            of = this if isinstance(this, TensorDataset) else this.dataset
            self.counter.host(tree_leaves(list(vars(of).values())))

        kind.__init__ = made

    def _role(self, tensors: Any, role: str) -> None:
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                parts = (tensor._indices(), tensor._values()) if tensor.layout is torch.sparse_coo else (tensor,)
                self.counter._add(parts)
                for part in parts:
                    address = part.untyped_storage()._cdata
                    if address in self.counter._live:
                        self.roles[address] = self.counter._live[address][0], role

    def _enter(self, module: nn.Module, _: Any) -> None:
        self.depth += 1
        for parameter in module.parameters(recurse=False):
            self.parameters[id(parameter)] = parameter
        if self.depth > 1:
            return
        learns = torch.is_grad_enabled()
        if self.by_hand and self.has_passed:
            self.has_passed = False
            self._step_ends()
        if self.is_evaluating and learns:
            self.end()
        if "step" in self.answer and not self.is_evaluating and not learns and self.parameters:
            self.is_evaluating = True
            self.counter.window()

    def _leave(self, *_: Any) -> None:
        self.depth -= 1

    def _stepping(self, optimizer: Optimizer, *_: Any) -> None:
        self.optimizers[id(optimizer)] = optimizer
        for group in optimizer.param_groups:
            self.parameters |= {id(each): each for each in group["params"]}
        self._role((each.grad for each in self.parameters.values()), "gradients")
        self.counter.phase = "optimizer"

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        self.counter.phase = "forward"
        for each in self.optimizers.values():
            self._role((leaf for state in each.state.values() for leaf in tree_leaves(state)
                        if isinstance(leaf, Tensor) and leaf.dim()), "optimizer")  # fmt: skip
        self.first = self.first or optimizer
        if optimizer is not self.first or "step" in self.answer:
            return
        self._step_ends()

    def _step_ends(self) -> None:
        if "step" in self.answer:
            return
        self.steps += 1
        several = len(self.optimizers) > 1
        if self.steps == 1 or (several and self.steps == 2):
            self._role(self.parameters.values(), "parameters")
            self.counter.window()
            return
        self.answer["step"] = self._found()

    def _found(self) -> dict[str, Any]:
        self._role(self.parameters.values(), "parameters")
        sums: dict[str, int] = {}
        for address, (reference, size) in self.counter.at.items():
            role = self.roles.get(address)
            if role is not None and role[0] is reference:
                name = role[1]
            else:
                kept = any(mark.get(address) is reference for mark in self.counter.marks)
                name = "activations" if kept and self.counter.born[address][1] == "forward" else "temporaries"
            sums[name] = sums.get(name, 0) + size
        return {"peak": self.counter.most, "categories": sums, "line": self.counter.line}

    def end(self) -> None:
        """Writes what was counted and ends the process."""
        if self.is_evaluating:
            self.answer["evaluation"] = self._found()
        self.out.write_text(json.dumps(self.answer))
        os._exit(0)


def main() -> None:
    """Arguments: where to write, then the program's command line."""
    out, *words = sys.argv[1:]
    by_hand = words[0] == "--by-hand"
    words = words[by_hand:]
    is_module = words[0] == "-m"
    sys.argv = words = words[is_module:]
    sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.abspath(words[0])))
    followed = _Followed(Path(out), by_hand)
    followed.install()
    try:
        with followed.counter:
            if is_module:
                runpy.run_module(words[0], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(words[0], run_name="__main__")
    finally:
        followed.end()


if __name__ == "__main__":
    main()
