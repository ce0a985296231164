# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (FakeTensorMode has no public name)
"""The dispatch mode under which a step runs: weights are fake, so nothing is computed; each call is kept with its cost.

What depends on a weight has shapes only. What depends on the program's data alone is computed for real, so that sizes
that follow from it (lengths, masks, counts) are known.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stoker.perf.features.operators.calls import Shortcut, base_name, is_large, shortcut_of
from stoker.perf.features.operators.costs import Cost, Formula
from stoker.perf.features.operators.cpu_kernels import lstm_workspace_bytes
from stoker.perf.features.operators.formulas import TAKING_SCRATCH, UNKNOWN, formula_of
from stoker.perf.features.operators.reduced_losses import RESULTS as LOSSES
from stoker.perf.features.operators.sparse import RESULTS as SPARSE
from stoker.perf.features.records import Phase
from stoker.perf.features.torch_private import (
    RUN_BACKWARD,
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    TorchDispatchMode,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,
    indices_of,
    next_sequence,
    running_node,
    schema_of,
    sequence_of,
    storage_uses,
    tree_map_only,
    values_of,
)
from stoker.perf.features.tracing.buffers import Buffers
from stoker.perf.features.tracing.places import Hints, in_constructor, place

_CPU = torch.device("cpu")
_DEVICE = torch.ops.prim.device.default
_ATEN = torch.ops.aten
_INTO_ZEROS: dict[Any, Any] = {
    _ATEN.scatter_add.default: _ATEN.scatter_add_.default,
    _ATEN.scatter.src: _ATEN.scatter_.src,
    _ATEN.scatter.value: _ATEN.scatter_.value,
    _ATEN.index_add.default: _ATEN.index_add_.default,
    _ATEN.index_put.default: _ATEN.index_put_.default,
    _ATEN.put.default: _ATEN.put_.default,
}
"""Calls that the backward formulas of torch make on fresh zeros: in place, but out of place for subclasses such as fake
tensors (``areAnyTensorSubclassLike`` in torch/csrc/autograd/FunctionsManual.cpp), which then take a second copy."""
_ADD = _ATEN.add.Tensor
_ALONE = 2
"""References to a storage that one tensor has, while Python looks at it."""
_ZEROS = (_ATEN.new_zeros.default, _ATEN.zeros.default, _ATEN.zeros_like.default)
_RESULTS = {**SPARSE, **LOSSES}
"""Results that torch's shape functions do not know, or whose memory."""
_INDEXED = {"index", "_unsafe_index", "index_put", "_index_put_impl", "_unsafe_index_put"}

Access = tuple[int, tuple[Any, ...], float]
"""Buffer, which part of it, bytes."""


class TracedCall:
    """One recorded call."""

    __slots__ = ("at", "dims", "dtype", "flops", "kind", "module", "name", "phase", "reads", "where", "writes")

    def __init__(self, name: str, cost: Cost, phase: Phase, dtype: str, module: int, where: str) -> None:
        self.name, self.dtype, self.module, self.where = name, dtype, module, where
        self.phase: Phase = phase
        self.kind, self.flops, self.dims = cost.kind, cost.flops, cost.dims
        self.at = 0
        """Events of memory before it."""
        self.reads: list[Access] = []
        self.writes: list[Access] = []


class DispatchRecorder(TorchDispatchMode):
    """Runs torch's calls on shapes, and records them while :attr:`recording` is set.

    Args:
        hints: sizes that depend on values which are not computed.
    """

    def __init__(self, hints: Mapping[str, float] | None = None) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.buffers = Buffers()
        self.hints = Hints(hints or {})
        self.recording = False
        self.spares_weights = False
        """Whether real tensors are left alone: weights and states that were not made under this mode."""
        self.shapes_weights = False
        """Whether large tensors that a module's constructor draws are shapes at once, since they become its weights."""
        self.compiled = False
        """Whether the program has ``torch.compile`` make kernels; what it compiles is recorded call by call."""
        self.sums_in_place = True
        """Whether gradients are summed in place, as for plain tensors; what moves is the same, chains differ."""
        self.conv_flops = {False: 0.0, True: 0.0}
        """FLOPs of convolutions with channels first (False), and with channels last (True)."""
        self.calls: list[TracedCall] = []
        self.modules: dict[int, int] = {}
        """Module in whose forward a node of the autograd graph was made, by the node's sequence number."""
        self.on_write: Callable[[Sequence[Tensor]], None] | None = None
        """Called with tensors that a call has written in place."""
        self._formulas: dict[Any, tuple[str, Formula]] = {}
        self._shortcuts: dict[Any, Shortcut] = {}
        self._zeros: weakref.ref[Tensor] | None = None
        """What the backward pass filled with zeros last."""

    @property
    def phase(self) -> Phase:
        """What the program does now."""
        return self.buffers.phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self.buffers.phase = phase

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under this mode: each call is spared a wrapper."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Makes one call."""
        if func is _DEVICE:
            return _CPU
        kwargs = kwargs or {}
        if func in _INTO_ZEROS and self._zeros is not None and args[0] is self._zeros():
            func = _INTO_ZEROS[func]
        elif func is _ADD and self.sums_in_place and len(args) == 2 and self.buffers.phase == "backward":
            func, args = _summed_in_place(func, args)
        ins = tensors_of(args)
        if kwargs:
            ins += tensors_of(tuple(kwargs.values()))
        fake = any(isinstance(tensor, FakeTensor) for tensor in ins) or (self.spares_weights and _weighs(ins))
        if not ins and self.shapes_weights and is_large(func, args, kwargs) and in_constructor():
            with self.fake:
                return func(*args, **kwargs)
        out = self._on_shapes(func, types, args, kwargs) if fake else func(*args, **kwargs)
        if func in _ZEROS and running_node() is not None:
            self._zeros = weakref.ref(out)
        if self.recording:
            name, formula = self._formulas.get(func) or self._formula(func)
            outs = tensors_of(out if isinstance(out, (tuple, list)) else (out,))
            if not outs and schema_of(func).is_mutable:
                outs = _mutated(func, args, {})
            cost = formula(args, ins, outs)
            if cost.kind:
                self.record(name, cost, _dtype(ins or outs), "" if formula is not UNKNOWN else place())
                if cost.kind == "conv":
                    self.conv_flops[any(map(_is_channels_last, ins))] += cost.flops
            self._number(outs)
        elif fake:
            # Not part of the step, but what is alive when the step begins adds to its memory.
            outs = tensors_of(out if isinstance(out, (tuple, list)) else (out,))
            self._number(outs)
            name, formula = self._formulas.get(func) or self._formula(func)
            if name in TAKING_SCRATCH and (taken := formula(args, ins, outs).scratch):
                self.buffers.note_scratch(taken, self.buffers.module)
        if self.on_write is not None and schema_of(func).is_mutable:
            self.on_write(_mutated(func, args, kwargs))
        return out

    def begin(self) -> None:
        """Starts the step and drops records of the previous one."""
        self.recording = True
        self.calls.clear()
        self.conv_flops = {False: 0.0, True: 0.0}
        self.buffers.begin()

    def _number(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            for part in (tensor,) if tensor.layout is torch.strided else (values_of(tensor), indices_of(tensor)):
                self.buffers.number(part)

    def record(self, name: str, cost: Cost, dtype: torch.dtype, where: str = "") -> None:
        """Records a call."""
        if not self.recording:
            # Not part of the step, but alive before it.
            for tensor, _ in cost.writes:
                self.buffers.number(tensor)
            if cost.scratch:
                self.buffers.note_scratch(cost.scratch, self.buffers.module, cost.num_late_outputs)
            return
        node = running_node()
        running = self.buffers.module
        if node is None or running:  # a forward pass inside the backward pass: recomputed activations
            sequence = next_sequence() - 1
            module = running
            self.modules.setdefault(sequence, running)
        else:
            module = self.modules.get(sequence_of(node), 0)
        call = TracedCall(name, cost, self.phase, str(dtype)[6:], module, where)
        number, owners = self.buffers.number, self.buffers.owners
        for tensor, size in cost.reads:
            call.reads.append((number(tensor), (tensor.storage_offset(), *tensor.shape), size))
        call.at, known = self.buffers.now, len(self.buffers.sizes)
        for tensor, size in cost.writes:
            call.writes.append((number(tensor), (tensor.storage_offset(), *tensor.shape), size))
        if not running and module:
            owners.update(dict.fromkeys(range(known, len(self.buffers.sizes)), module))
        if cost.scratch:
            self.buffers.note_scratch(cost.scratch, module, cost.num_late_outputs)
        self.calls.append(call)

    def _formula(self, func: Any) -> tuple[str, Formula]:
        found = self._formulas[func] = (base_name(func), formula_of(func))
        return found

    def _on_shapes(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        shortcut = self._shortcuts.get(func)
        if shortcut is None:
            shortcut = self._shortcuts[func] = shortcut_of(func)
        if shortcut == "same" and args and _all_fake(args[0]):
            return args[0] if schema_of(func).returns else None
        if shortcut == "plain" and not kwargs and all(map(_is_plain, tensors_of(args))):
            with in_kernel_invocation_manager(self.fake):
                found = func(*args)
            return FakeTensor(self.fake, found, _CPU)
        name = self._formulas.get(func, ("",))[0] or self._formula(func)[0]
        if name in _INDEXED:
            args = self._whole_indices(name, args)
        elif name == "_local_scalar_dense":
            return self.hints.scalar(args[0].dtype) if isinstance(args[0], FakeTensor) else func(*args)
        if self.spares_weights:
            args, kwargs = tree_map_only(Tensor, self._shape_of, (args, kwargs))
        if name in _RESULTS:
            with self.fake:
                found = _RESULTS[name](args)
            if found is not None:
                return found
        try:
            out: Any = self.fake.dispatch(func, types, args, kwargs)
            return out if name != "mkldnn_rnn_layer" else (*out[:3], self._workspace(args))
        except (DynamicOutputShapeException, DataDependentOutputException):
            return self._sized(name, args, kwargs)
        except UnsupportedOperatorException:
            if not str(schema_of(func).name).startswith("c10d::"):
                raise
            return _collective(func, args, kwargs)

    def _aligned(self, name: str, args: tuple[Any, ...]) -> Any:
        """CTC's result: for each sample and time, states of its target and the gaps around; lengths may be known."""
        scores, targets, _, lengths = args[1:5] if name == "_ctc_loss_backward" else args[:4]
        known = isinstance(lengths, Tensor) and not isinstance(lengths, FakeTensor)
        longest = max(lengths.tolist()) if known else targets.shape[-1]
        times, batch = scores.shape[0], scores.shape[1]
        with self.fake:
            if name == "_ctc_loss_backward":
                return torch.empty_like(scores)
            return scores.new_empty(batch), scores.new_empty(batch, times, 2 * longest + 1)

    def _workspace(self, args: tuple[Any, ...]) -> Tensor:
        with self.fake:
            return torch.empty(lstm_workspace_bytes(args), dtype=torch.uint8, device="cpu")

    def _shape_of(self, x: Tensor) -> Tensor:
        if isinstance(x, FakeTensor):
            return x
        twin = self.fake.from_tensor(x)
        if x.layout is torch.strided:
            self.buffers.alias(twin, x)
        return twin

    def _whole_indices(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Masks as positions: from known values, or as many as the hint says."""
        indices: list[Any] = []
        for index in args[1]:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                indices.append(index)
            elif isinstance(index, FakeTensor):
                count = self.hints.size("mask", index.numel(), name.endswith(("put", "impl")))
                with self.fake:
                    indices += [torch.empty(count, dtype=torch.int64, device="cpu") for _ in range(index.dim())]
            else:
                indices += index.nonzero(as_tuple=True)
        return (args[0], indices, *args[2:])

    def _sized(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call whose size depends on values: of the size that the hint says."""
        if name in ("_ctc_loss", "_ctc_loss_backward"):
            return self._aligned(name, args)
        x = args[0]
        with self.fake:
            if name == "nonzero":
                return x.new_empty((self.hints.size(name, x.numel()), x.dim()), dtype=torch.int64)
            if name == "masked_select":
                return x.new_empty(self.hints.size(name, x.numel()))
            if name in ("_unique2", "unique_consecutive", "unique_dim"):
                count = self.hints.size("unique", x.numel())
                inverse, counts = (x.new_empty(n, dtype=torch.int64) for n in (x.shape, (count,)))
                return x.new_empty(count), inverse, counts
            if name in ("repeat_interleave", "bincount"):
                return x.new_empty(self.hints.size(name, x.numel()), dtype=torch.int64)
        raise self.hints.error(name)


def _collective(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """An exchange on shapes where torch has none (before 2.7): the group meets nobody, so empty tensors do."""
    fakes: dict[int, Tensor] = {}
    kept: list[Tensor] = []  # an id is unique while its tensor lives

    def stand_in(fake: Tensor) -> Tensor:
        kept.append(torch.empty(0, dtype=fake.dtype))
        fakes[id(kept[-1])] = fake
        return kept[-1]

    args, kwargs = tree_map_only(FakeTensor, stand_in, (args, dict(kwargs)))
    return tree_map_only(Tensor, lambda found: fakes.get(id(found), found), func(*args, **kwargs))


def _summed_in_place(func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The sum of two gradients, as autograd's engine makes it: into one that nobody else has.

    It does so for plain tensors alone (``can_accumulate_inplace`` in torch/csrc/autograd/input_buffer.cpp). Its calls
    come from no line of Python but the one that began the backward pass.
    """
    old, new = args
    alike = isinstance(old, FakeTensor) and isinstance(new, FakeTensor) and old.shape == new.shape
    caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    if not alike or old.dtype != new.dtype or torch.is_grad_enabled() or not _is_of_engine(caller):
        return func, args
    for into, other in ((old, new), (new, old)):
        if into.layout is torch.strided and storage_uses(into.untyped_storage()) == _ALONE:
            return _ATEN.add_.Tensor, (into, other)
    return func, args


def _is_of_engine(frame: Any) -> bool:
    return frame.f_code.co_name == RUN_BACKWARD and frame.f_globals.get("__name__") == "torch.autograd.graph"


def tensors_of(values: Sequence[Any]) -> list[Tensor]:
    """Tensors among arguments, including those in lists."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, Tensor)]
            if value and isinstance(value[0], (list, tuple)):  # states of optimizers that are lists of lists
                found += tensors_of(value)
    return found


def _all_fake(written: Any) -> bool:
    tensors = written if isinstance(written, (list, tuple)) else (written,)
    return all(isinstance(tensor, FakeTensor) for tensor in tensors)


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is fake and its values are unknown."""
    return isinstance(tensor, FakeTensor) and tensor.constant is None and tensor.layout is torch.strided


def _weighs(tensors: Sequence[Tensor]) -> bool:
    """Whether these may be weights or states; counters of optimizers, single numbers, are not."""
    return any(tensor.dim() > 0 or tensor.requires_grad for tensor in tensors)


def _is_channels_last(tensor: Tensor) -> bool:
    """Whether a tensor is channels last and not contiguous as well, as one with a single channel or pixel is."""
    format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return format is not None and tensor.is_contiguous(memory_format=format) and not tensor.is_contiguous()


def _mutated(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Arguments that are written by a call."""
    arguments = [each for each in schema_of(func).arguments if each.alias_info is not None and each.alias_info.is_write]
    places = {each.name: place for place, each in enumerate(schema_of(func).arguments)}
    return tensors_of(
        [args[places[each.name]] if places[each.name] < len(args) else kwargs.get(each.name) for each in arguments]
    )


def _dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    """The precision of a computation: that of the first floating-point tensor."""
    for tensor in tensors:
        if tensor.dtype.is_floating_point:
            return tensor.dtype
    return tensors[0].dtype if tensors else torch.float32
