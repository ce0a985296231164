# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What a running program does with layers that could be split, seen in steps of its own before any is.

What can't be seen is left out: a layer is split where everything that is known of a split layer's needs was seen to
hold. All of it is looked at on each rank, and all ranks need it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from stoker.records.exchange import MeasuredLayer
from stoker.train import torch_private
from stoker.train.program import reducers
from stoker.train.splitting.layers import SplitKind
from stoker.train.splitting.optimizers import is_by_element
from stoker.train.splitting.planning import followers_of, holders_of, why_not

_OTHERS = "only plain linear layers and tables are split"
_UNCALLED = "it was not called in the module's forward pass"
_OUTSIDE = "it is called outside of the module's forward pass, as checkpointing does"
_OFTEN = "the module's forward pass runs more or less than once for each exchange"
_COMPILED = "the module is compiled"
_SCALED = "a GradScaler may skip a step on one rank alone"
_JOINED = "the program uses `join`: ranks may have other numbers of batches"
_ALIASED = "the program holds a view of its weights"
_COPIED = "the program holds another tensor of its shape, as averages of weights are"
_ELSEWHERE = "rows of it have gradients that nobody looked up"


_TENSORS = frozenset({Tensor, nn.Parameter})


@dataclass(slots=True)
class LayerCalls:
    """Calls of one layer with gradients.

    Attributes:
        inside, outside: of the module's forward pass.
        lookups: most rows of a table that were asked for between two exchanges.
        ids: those of the calls since the last one.
    """

    inside: int = 0
    outside: int = 0
    lookups: int = 0
    ids: list[Tensor] = field(default_factory=list[Tensor])


class SplitSight:
    """Looks at a module's layers from :meth:`install` to :meth:`remove`.

    Args:
        ddp: the module.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._find_ddp = weakref.ref(ddp)
        self._model = cast("nn.Module", ddp.module)
        modules: dict[str, nn.Module] = dict(self._model.named_modules())
        self._layers = {
            path: module
            for path, module in modules.items()
            if path and isinstance(module, nn.Linear | nn.Embedding) and type(module) in (nn.Linear, nn.Embedding)
        }
        self.calls = {path: LayerCalls() for path in self._layers}
        self.optimizers: list[Optimizer] = []
        """Those that have stepped and train a weight of the module."""
        self.is_joined = False
        """Whether the program has asked for `join`."""
        self._unlooked: set[str] = set()
        self._handles: list[Any] = []
        self._is_inside = False
        self._rounds = self._passes = 0
        self._is_often = False
        self._others: dict[int, int] = {}

    @property
    def _ddp(self) -> DistributedDataParallel:
        # Not held: DDP's reducer holds its hook, and so us, where Python's collector does not see it.
        found = self._find_ddp()
        assert found is not None
        return found

    def install(self) -> None:
        """Begins."""
        for path, layer in self._layers.items():
            self._handles.append(layer.register_forward_pre_hook(self._calling(self.calls[path])))
        self._handles.append(self._ddp.register_forward_pre_hook(self._begins))
        self._handles.append(self._ddp.register_forward_hook(self._ends))
        self._handles.append(register_optimizer_step_pre_hook(self._steps))

    def remove(self) -> None:
        """Ends, and keeps what was seen."""
        while self._handles:
            self._handles.pop().remove()
        for each in self.calls.values():
            each.ids.clear()

    def look(self, path: str, gradient: Tensor) -> None:
        """Looks at a table's own gradient: rows that no call has asked for come from somewhere else."""
        calls = self.calls.get(path)
        if calls is None or not isinstance(self._layers[path], nn.Embedding):
            return
        is_asked = torch.zeros(gradient.shape[0], dtype=torch.bool, device=gradient.device)
        for ids in calls.ids:
            is_asked[ids.reshape(-1)] = True
        if bool(gradient[~is_asked].any()):
            self._unlooked.add(path)

    def end_round(self) -> None:
        """Gradients were exchanged."""
        # Before the first one programs may have made a pass to see that it works.
        self._is_often = self._is_often or (self._rounds > 0 and self._passes != 1)
        self._rounds, self._passes = self._rounds + 1, 0
        for each in self.calls.values():
            each.lookups = max(each.lookups, sum(ids.numel() for ids in each.ids))
            each.ids.clear()

    def note_tensors(self) -> None:
        """Notes what other tensors there are of the sizes of weights, a step or more before :meth:`annotated`."""
        self._others = {id(each): torch_private.version_of(each) for _, each in self._tensors()}

    def annotated(self, layers: Iterable[MeasuredLayer], ranks: int, ours: Collection[int]) -> list[MeasuredLayer]:
        """Layers with the ways in which they may be split, and why not in others.

        Args:
            layers: that were measured.
            ranks: that would share them.
            ours: numbers of hooks that stoker has on them.
        """
        followers, holders = followers_of(self._model), holders_of(dict(self._model.named_modules()))
        barred = self._why_none()
        held = {} if barred else self._held()
        mine = {*ours, *(each.id for each in self._handles if hasattr(each, "id"))}
        found: list[MeasuredLayer] = []
        for each in layers:
            layer = self._layers.get(each.module)
            if layer is None or each.why_not:
                found.append(replace(each, unsplit=_OTHERS if layer is None else each.why_not))
                continue
            ways: tuple[SplitKind, ...] = ("table",) if isinstance(layer, nn.Embedding) else ("column", "row")
            reasons = {way: why_not(each.module, layer, way, ranks, holders, mine) for way in ways}
            why = barred or self._why_not(each.module, layer, held, mine)
            found.append(
                replace(
                    each, splits=[] if why else [way for way in ways if not reasons[way]],
                    unsplit=why or next(filter(None, reasons.values()), ""),
                    lookups=self.calls[each.module].lookups, fed_by=followers.get(each.module, ""),
                )
            )  # fmt: skip
        return found

    # Why not

    def _why_none(self) -> str:
        """Why no layer may be split; empty if some may."""
        if why := reducers.why_not(self._ddp):
            return why
        if any(map(torch_private.is_compiled, self._model.modules())) or torch_private.is_compiled(self._ddp):
            return _COMPILED
        if self.is_joined:
            return _JOINED
        if self._is_often:
            return _OFTEN
        return _SCALED if any(each.is_enabled() for each in _of_kind(_is_scaler)) else ""

    def _why_not(self, path: str, layer: nn.Module, held: Mapping[str, str], ours: Collection[int]) -> str:
        """Why one layer may not be split; empty if it may."""
        calls = self.calls[path]
        own = list(layer.parameters(recurse=False))
        if calls.outside or not calls.inside:
            return _OUTSIDE if calls.outside else _UNCALLED
        if path in self._unlooked:
            return _ELSEWHERE
        if any(torch_private.is_hooked(each, ours) for each in own):
            return "the program has hooks on its gradients"
        if not all(parameter.requires_grad for parameter in own):
            return "some of its weights are frozen"
        return held.get(path, "") or self._why_not_stepped(own)

    def _why_not_stepped(self, own: Iterable[nn.Parameter]) -> str:
        for parameter in own:
            users = [each for each in self.optimizers if any(each is parameter for each in _trained(each))]
            if len(users) != 1:
                return "no optimizer was seen to step it" if not users else "several optimizers step it"
            name = type(users[0]).__name__
            if not is_by_element(users[0]):
                return f"its optimizer `{name}` is not known to work by element"
            state: dict[str, Any] = users[0].state.get(parameter, {})
            if any(
                isinstance(each, Tensor) and each.dim() and each.shape != parameter.shape for each in state.values()
            ):
                return f"its optimizer `{name}` has a state of another shape"
        return ""

    def _held(self) -> dict[str, str]:
        """Layers of which the program has more than the weights, with the reason."""
        found: dict[str, str] = {}
        for path, each in self._tensors():
            weight = self._layers[path].weight
            if each.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr():
                found[path] = _ALIASED
            elif type(each) is nn.Parameter or self._others.get(id(each)) != torch_private.version_of(each):
                # What has stayed as it was is a checkpoint that was loaded, or a batch.
                found.setdefault(path, _COPIED)
        return found

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Other tensors of the sizes of weights that the program holds, with the layers that have these."""
        layers: dict[tuple[int, ...], list[str]] = {}
        for path, layer in self._layers.items():
            layers.setdefault(tuple(layer.weight.shape), []).append(path)
        own = {id(each) for each in (*self._model.parameters(), *self._model.buffers())}
        own |= {id(each.grad) for each in self._model.parameters()}
        for optimizer in self.optimizers:
            own |= {id(value) for state in optimizer.state.values() for value in state.values()}
        for each in _of_kind(_TENSORS.__contains__):
            if id(each) in own or each.grad_fn is not None:
                continue
            for path in layers.get(tuple(each.shape), ()):
                if each.dtype == self._layers[path].weight.dtype:
                    yield path, each

    # What is called

    def _calling(self, calls: LayerCalls) -> Any:
        def called(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return
            if self._is_inside:
                calls.inside += 1
            else:
                calls.outside += 1
            if inputs and isinstance(inputs[0], Tensor) and not inputs[0].is_floating_point():
                calls.ids.append(inputs[0].detach())

        return called

    def _begins(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._is_inside = True

    def _ends(self, ddp: Any, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._is_inside = False
        if torch.is_grad_enabled() and ddp.require_backward_grad_sync:
            self._passes += 1

    def _steps(self, optimizer: Optimizer, *_: Any) -> None:
        if any(each is optimizer for each in self.optimizers):
            return
        own = {id(each) for each in self._model.parameters()}
        if any(id(each) in own for each in _trained(optimizer)):
            self.optimizers.append(optimizer)


def _trained(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _is_scaler(kind: type) -> bool:
    return any(each.__name__ == "GradScaler" for each in kind.__mro__)


def _of_kind(is_wanted: Callable[[type], bool]) -> list[Any]:
    """Objects of this process whose classes are wanted; each class is asked for once, since there are many objects."""
    every = gc.get_objects()
    wanted = {kind for kind in set(map(type, every)) if is_wanted(kind)}
    return [each for each in every if type(each) in wanted]
