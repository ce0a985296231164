"""What a program does with a deferred tensor sees the real value: each tried in a child, where a crash is a failure."""

from __future__ import annotations

import copy
import io
import os
import pickle
import signal
import threading
import traceback
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
import torch.utils.dlpack
from torch import nn

from stoker.graph.recording.deferred import Deferred
from stoker.graph.watching.modes import _active
from tests.graph.loop import FIRST_SUBSTITUTED, Source, everything, frozen

pytestmark = pytest.mark.timeout(30)
STEP = FIRST_SUBSTITUTED + 1
_CHILD_S = 20


def batches(number: int) -> tuple[torch.Tensor]:
    return (torch.rand(4, 3, generator=torch.Generator().manual_seed(number)),)


def _saved(part: Any) -> Any:
    file = io.BytesIO()
    torch.save(part, file)
    file.seek(0)
    return torch.load(file)


def _checkpoint(d: torch.Tensor) -> Any:
    net = nn.BatchNorm1d(3)
    net.register_buffer("seen", d)
    return _saved(net.state_dict())


def _assigned(d: torch.Tensor) -> Any:
    w = nn.Parameter(torch.ones(4, 3))
    w.data = d
    return w, w.sum()


def _gradient(d: torch.Tensor) -> Any:
    w = nn.Parameter(torch.ones(4, 3))
    w.grad = d
    torch.optim.SGD([w], lr=0.5).step()
    return w


def _parameter(d: torch.Tensor) -> Any:
    net = nn.Linear(3, 4)
    net.weight = nn.Parameter(d)
    assert isinstance(net.weight, nn.Parameter)
    assert len(list(net.parameters())) == 2
    net(torch.ones(2, 3)).sum().backward()
    return net.weight, net.weight.grad


def _hooked(d: torch.Tensor) -> Any:
    seen: list[torch.Tensor] = []
    d.requires_grad_()
    d.register_hook(lambda grad: seen.append(grad.clone()))
    (d * d).sum().backward()
    return seen, d.grad


def _backward(d: torch.Tensor) -> Any:
    w = torch.ones(4, 3, requires_grad=True)
    (w * d).sum().backward()
    (direct,) = torch.autograd.grad((w * d.exp()).sum(), [w])
    return w.grad, direct


class _Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(d)
        return w * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * ctx.saved_tensors[0], None


def _kept_by_a_graph(d: torch.Tensor) -> Any:
    w = torch.ones(4, 3, requires_grad=True)
    _Keeps.apply(w, d).sum().backward()
    return w.grad


def _checkpointed(d: torch.Tensor) -> Any:
    w = torch.ones(4, 3, requires_grad=True)
    torch.utils.checkpoint.checkpoint(lambda a, b: (a * b).sin(), w, d, use_reentrant=False).sum().backward()
    return w.grad


def _scripted(d: torch.Tensor) -> Any:
    def function(a: torch.Tensor) -> torch.Tensor:
        return (a + 1).exp()

    return torch.jit.script(function)(d)


def _in_a_thread(d: torch.Tensor) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append((d * 2, d.sum().item(), d.numpy().tolist())))
    thread.start()
    thread.join()
    return found


def _sent(d: torch.Tensor) -> Any:
    return pickle.loads(bytes(ForkingPickler.dumps(d.sum().item()))), pickle.loads(pickle.dumps({"d": [d]}))


def _weakly(d: torch.Tensor) -> Any:
    reference = weakref.ref(d)
    result = d * 2
    found = reference()
    assert found is not None
    return result, found + 1, found.numpy().tolist()


def _trained(d: torch.Tensor) -> Any:
    d.requires_grad_()
    optimizer = torch.optim.SGD([d], lr=0.1)
    (d * d).sum().backward()
    optimizer.step()
    return d


def _swapped(d: torch.Tensor) -> Any:
    other = torch.ones(2)
    d.tolist()
    torch.utils.swap_tensors(d, other)
    return d, other


def _set(d: torch.Tensor) -> Any:
    return torch.empty(0).set_(d)


def _written(d: torch.Tensor) -> Any:
    d.add_(1)
    d[0] = 5
    d += 2
    torch.mul(d, 2, out=d)
    return d


def _by_address(d: torch.Tensor) -> Any:
    import ctypes

    return ctypes.string_at(d.data_ptr(), 4 * 12)


def _shared(d: torch.Tensor) -> Any:
    d.share_memory_()
    return d, d.is_shared()


def _unscripted_mode(d: torch.Tensor) -> Any:
    with torch._C.DisableTorchFunction():
        return d + 1, torch.exp(d), d.sum().item(), torch.cat([d, d])


def _inferred(d: torch.Tensor) -> Any:
    with torch.inference_mode():
        total = d.sum().item()
    return total, d.is_inference(), _backward(d)


USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "pickled": lambda d: pickle.loads(pickle.dumps(d)),
    "sent": _sent,
    "copied": copy.copy,
    "deeply copied": lambda d: copy.deepcopy({"d": d})["d"],
    "printed": lambda d: (repr(d), str(d), f"{d.sum():.3f}", f"{d}"),
    "saved": lambda d: _saved({"d": d, "view": d[0]}),
    "checkpoint": _checkpoint,
    "asarray": lambda d: np.asarray(d).tolist(),
    "array": lambda d: np.array(d, dtype=np.float64).tolist(),
    "numpy": lambda d: d.numpy().tolist(),
    "numpy functions": lambda d: (np.sin(d).tolist(), np.stack([d, d]).tolist()),
    "numpy from_dlpack": lambda d: np.from_dlpack(d).tolist(),
    "from_dlpack": torch.from_dlpack,
    "utils from_dlpack": lambda d: torch.utils.dlpack.from_dlpack(d),
    "capsule": lambda d: torch.from_dlpack(torch.utils.dlpack.to_dlpack(d)),
    "capsule by torch": lambda d: torch.from_dlpack(torch.to_dlpack(d)),
    "capsule of its own": lambda d: torch.from_dlpack(d.__dlpack__()),
    "data": lambda d: (d.data, d.data + 1, d.detach()),
    "assigned as data": _assigned,
    "assigned as gradient": _gradient,
    "parameter": _parameter,
    "shared": _shared,
    "address": _by_address,
    "storage": lambda d: (d.untyped_storage().nbytes(), list(d.untyped_storage())[:12]),
    "hooked": _hooked,
    "backward": _backward,
    "kept by a graph": _kept_by_a_graph,
    "checkpointed": _checkpointed,
    "scripted": _scripted,
    "traced": lambda d: torch.jit.trace(lambda a: a.exp() + 1, torch.ones(4, 3))(d),
    "in a thread": _in_a_thread,
    "operators": lambda d: (torch.ops.aten.exp(d), torch.ops.aten.add.Tensor(d, d), torch.ops.aten.sum(d)),
    "without functions": _unscripted_mode,
    "kinds": lambda d: (isinstance(d, torch.Tensor), torch.is_tensor(d), torch.is_floating_point(d)),
    "kinds when used": lambda d: (d.sum().item(), type(d) is torch.Tensor, type(d * 2) is torch.Tensor),
    "read": lambda d: (d.tolist(), d[0, 0].item(), bool(d.sum() > 0), int(d.sum()), float(d[1, 1])),
    "an index": lambda d: [1, 2, 3][d[0, 0].long()],
    "iterated": lambda d: ([row.sum() for row in d], len(d), 0.5 in d, list(map(float, d[0]))),
    "asked": lambda d: (d.shape, d.size(0), d.stride(), d.dtype, d.device, d.numel(), d.dim(), d.is_contiguous()),
    "a key": lambda d: {d: 1}[d],
    "compared": lambda d: (d == d, torch.equal(d, d.clone()), (d != 0).all(), d is not None),
    "mapped": lambda d: torch.vmap(lambda row: row.sum() * 2)(d),
    "differentiated": lambda d: torch.func.grad(lambda a: (a * a).sum())(d),
    "collated": lambda d: torch.utils.data.default_collate([d, d]),
    "made from": lambda d: (torch.tensor(d.tolist()), torch.as_tensor(d), d.new_tensor([1.0]), torch.asarray(d)),
    "tensor of numbers": lambda d: torch.tensor([d[0, 0], d[1, 1]]),
    "sparse": lambda d: d.to_sparse().to_dense(),
    "listed": lambda d: (torch._foreach_add([d], [d]), torch.stack([d, d]), torch.block_diag(d, d)),
    "set": _set,
    "written": _written,
    "swapped": _swapped,
    "referred to weakly": _weakly,
    "trained": _trained,
    "module": lambda d: nn.Linear(3, 2).requires_grad_(False).to(d.dtype)(d).shape,
    "in inference mode first": _inferred,
    "differentiated twice": lambda d: torch.vmap(torch.func.grad(lambda row: (row * row).sum()))(d),
    "einsum": lambda d: torch.einsum("ij,kj->ik", d, d),
    "nested": lambda d: torch.nested.nested_tensor([d, d[:2]]).to_padded_tensor(0.0),
    "typed": lambda d: (d.type(), d.type(torch.float64), d.double(), d.to("cpu")),
}  # fmt: skip


def _at_once(use: Callable[[torch.Tensor], Any], source: Source | None) -> Any:
    """Used right where it was made, with the mode on."""
    results: list[Any] = []
    for number in range(STEP + 1):
        (x,) = source.ask(number) if source else batches(number)
        a = torch.sin(x)
        if number == STEP:
            if source:
                assert type(a) is Deferred
            results.append(frozen(use(a)))
            results.append(frozen(a))
        b = torch.cos(a)
        del a
        results.append(frozen(torch.exp(b)))
    return results


def _afterwards(use: Callable[[torch.Tensor], Any], source: Source | None) -> Any:
    """Kept, and used when the next batch is there."""
    results: list[Any] = []
    held: list[torch.Tensor] = []
    for number in range(STEP + 2):
        (x,) = source.ask(number) if source else batches(number)
        if held:
            assert type(held[0]) is torch.Tensor
            results.append(frozen(use(held[0])))
            break
        a = torch.sin(x)
        if number == STEP:
            if source:
                assert type(a) is Deferred
            held.append(a)
        b = torch.cos(a)
        del a
        results.append(frozen(torch.exp(b)))
    return results


def _in_child(work: Callable[[], None]) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(_CHILD_S)
        torch.set_num_threads(1)  # the parent's pool of threads is not in the child, and would be waited for
        os.close(reading)
        try:
            work()
            found = ""
        except BaseException:
            found = traceback.format_exc()
        with os.fdopen(writing, "w") as out:
            out.write(found)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as source:
        failure = source.read()
    _, status = os.waitpid(child, 0)
    assert not os.WIFSIGNALED(status), f"the child died of {signal.Signals(os.WTERMSIG(status)).name}"
    assert not failure, failure


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*__array:DeprecationWarning")
@pytest.mark.parametrize("name", USES)
def test_a_use_sees_the_real_value(name: str) -> None:
    def work() -> None:
        for when in (_at_once, _afterwards):
            torch.manual_seed(1)
            ours = when(USES[name], Source(batches, everything, "pickled"))
            for watch in list(_active):
                watch.detach()
            torch.manual_seed(1)
            assert ours == when(USES[name], None), when.__name__

    _in_child(work)
