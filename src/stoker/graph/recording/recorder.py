# pyright: reportPrivateUsage=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
# (torch's functions are untyped)
"""Records one step: which calls touch the batch or anything made from it, and why a call is not stateless.

The taint rule is SmartStage's with other seeds: what a call reads from outside the step is a constant only if its bytes
are the same in every recorded step; parameters, large tensors and tensors that are written to are state from the start.
A recorder refers weakly to results and, until the step begins, to the batch, so that it keeps nothing alive that the
program drops.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from stoker.core.code.sources import file_shown
from stoker.graph.arguments import NotRecordable, copy_of, span_bytes, take_apart
from stoker.graph.dataflow import Argument, Form, Value
from stoker.graph.functions import (
    Effect,
    Function,
    effect,
    is_marked,
    is_plain,
    is_random,
    keeps_statistics,
    may_draw,
    path_of,
    rounds_by_threads,
    simple_name,
    storage_of,
    takes_leaves,
    writes_by_keyword,
)
from stoker.graph.leaves import is_changed, mark
from stoker.graph.randomness import seeded, state_of
from stoker.graph.recording.call_parts import results_of, tensors_in, why_unmovable
from stoker.graph.torch_private import (
    count_dispatch_modes,
    devices,
    identity_of,
    inside_transform,
    version_of,
    versions_of,
)

MAX_CONSTANT_BYTES = 1 << 20
"""Larger tensors from outside the step are state: comparing them in every step would cost more than it saves."""
MAX_ALL_CONSTANTS_BYTES = 1 << 26
"""Limit for all outside tensors of a step together: they are copied, and compared in every step."""
MAX_CALLS = 2000
"""A step with more stateless calls is recorded up to here."""
_MAX_USES = 10 * MAX_CALLS
"""A step with more calls that need its values is followed up to here: the program may work on one batch for hours."""

Run = Callable[[Function, tuple[Any, ...], dict[str, Any]], Any]
"""Makes a call."""
_Arguments = tuple[Argument, ...]
_Keywords = tuple[tuple[str, Argument], ...]
Ambient = tuple[bool, torch.dtype, torch.dtype, torch.device | None]


def ambient() -> Ambient:
    """State besides arguments that decides results: autocast on the CPU, its dtype, default dtype and device."""
    enabled = _is_autocast_enabled("cpu")  # runs for every verified call
    kind = torch.get_autocast_dtype("cpu") if enabled else _UNUSED
    return enabled, kind, _get_default_dtype(), devices.CURRENT_DEVICE


_is_autocast_enabled, _get_default_dtype = torch.is_autocast_enabled, torch.get_default_dtype
_UNUSED = torch.bfloat16
"""Stands for autocast's dtype while autocast is off."""


@dataclass(slots=True)
class Call:
    """A stateless call as seen in one step."""

    function: Function
    path: str
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...]
    outputs: tuple[int, ...]
    container: str
    is_view: bool
    same_as: tuple[int | None, ...]
    """For each output, the known value that it is (``x.contiguous()`` may return ``x``)."""
    seconds: float
    site: str
    ambient: Ambient
    random: int = -1
    """Index among the step's random calls, each of which draws from a stream of the work item; -1: not random."""


@dataclass(slots=True)
class Use:
    """A call that needs values and is not stateless, or reads them into Python."""

    path: str
    inputs: tuple[int, ...]
    why: str
    site: str
    after: int
    """Number of stateless calls before it."""


@dataclass(slots=True)
class Trace:
    """One recorded step."""

    signature: tuple[Any, ...]
    num_leaves: int
    values: list[Value] = field(default_factory=list[Value])
    calls: list[Call] = field(default_factory=list[Call])
    uses: list[Use] = field(default_factory=list[Use])
    constants: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    alive: frozenset[int] | None = None
    """Values still referred to right after the last stateless call; None if not determined."""
    step_s: float = 0.0
    busy_s: float = 0.0
    """Processor time of the step in all threads."""
    bare: bool = False
    """The recorder could not see the whole step (compiled code); what it saw is valid."""


class Recorder:
    """Records the calls of one step.

    Args:
        leaves: tensors and other leaves of the batch.
        signature: what the batch looks like.
        expected_calls: number of stateless calls in the step recorded before; 0 if there is none.
        seed: the work item's, if random calls on the batch draw from its streams.
    """

    def __init__(
        self, leaves: list[Any], signature: tuple[Any, ...], expected_calls: int = 0, seed: int | None = None
    ) -> None:
        self._seed = seed
        self._num_random = self._constants_bytes = 0
        self.trace = Trace(signature, len(leaves))
        self._ids: dict[int, tuple[Callable[[], torch.Tensor | None], int]] = {}
        self._refs: list[Callable[[], torch.Tensor | None]] = []
        self._versions: list[int] = []
        self._memory: list[int] = []
        """Storage of each value, by the value's number; 0 if it is not tracked."""
        self._quiet: set[Function] = set()
        """Functions observed to draw no random numbers."""
        self._storages: dict[int, set[int]] = {}
        # By address, which is reused when a storage ends: held, each would live as long as the step.
        self._tainted: weakref.WeakValueDictionary[int, torch.UntypedStorage] = weakref.WeakValueDictionary()
        self._batch = [weakref.ref(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._leaves: list[Any] = []
        """Leaves of the batch, held from the beginning of the step on."""
        self._expected_calls = expected_calls
        self.began = self.done = False
        self.error: Exception | None = None
        self._objects: dict[int, int] = {}
        for position, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor):
                self._objects[id(leaf)] = self._describe(leaf, None, position)
            elif is_plain(leaf) and not leaf.requires_grad:
                self._track(leaf, None, position)
            else:  # a subclass or a tensor on a device: calls that use it stay in the training process
                self._describe(leaf, None, position)
        self._marks = [mark(leaf) for leaf in leaves]
        self._tensors_of_batch: list[torch.Tensor] = []
        self._versions_of_batch = versions_of(self._tensors_of_batch)

    @property
    def dropped(self) -> bool:
        """Whether the program dropped the tensors of the batch before the step began."""
        tensors = [leaf for leaf in self._batch if isinstance(leaf, weakref.ref)]
        return not self._leaves and bool(tensors) and all(tensor() is None for tensor in tensors)

    # -- what the mode calls -----------------------------------------------------------------------------------------

    def call(self, function: Function, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Run) -> Any:
        """Runs a call and records what it shows."""
        if self.done:
            return run(function, args, kwargs)
        if self.trace.alive is None and len(self.trace.calls) == self._expected_calls > 0:
            self.trace.alive = self._alive()
        kind = effect(function)
        if kind is Effect.METADATA:
            return run(function, args, kwargs)
        if kind is Effect.ESCAPES and self.began and simple_name(function) == "backward":
            self.done = True  # the calls that follow are not the beginning of a step
        tensors = tensors_in(args, kwargs) if kwargs else tensors_in(args)
        numbers = [self._number(tensor) for tensor in tensors]
        inputs = tuple([n for n in numbers if n is not None and not self._is_written(n)])
        if self._objects and takes_leaves(function):
            inputs += self._objects_in((*args, *kwargs.values()))
        if inputs:
            self._begin()
        elif tensors and kind is Effect.NONE and not writes_by_keyword(kwargs):
            return run(function, args, kwargs)
        if kind in (Effect.WRITES, Effect.ESCAPES) or writes_by_keyword(kwargs):
            return self._impure(function, kind, args, kwargs, inputs, run)
        if not inputs and (not self.began or kind is not Effect.NONE):
            return run(function, args, kwargs)
        return self._computing(function, args, kwargs, tensors, numbers, inputs, run)

    def finish(self, step_s: float, busy_s: float) -> Trace:
        """Ends the recording: the step is over, or cannot be followed further."""
        self.done = True
        if self.trace.alive is None:
            self.trace.alive = self._alive()
        self._check_versions("is written to")
        self.trace.step_s, self.trace.busy_s = step_s, busy_s
        return self.trace

    def _begin(self) -> None:
        """Begins the step: a call touches the batch, which is held to its end so that versions show writes to it."""
        self.began = True
        if not self._leaves:
            self._leaves = [leaf() if isinstance(leaf, weakref.ref) else leaf for leaf in self._batch]
            marked = [(t, m) for t, m in zip(self._leaves, self._marks, strict=True) if isinstance(t, torch.Tensor)]
            self._tensors_of_batch = [tensor for tensor, _ in marked]
            self._versions_of_batch = [version for _, version in marked]

    def _wait(self) -> None:
        """Undoes :meth:`_begin`: the call that touched the batch did not begin the step."""
        self.began = False
        self._leaves, self._tensors_of_batch, self._versions_of_batch = [], [], []

    # -- kinds of calls ----------------------------------------------------------------------------------------------

    def _impure(
        self, function: Function, kind: Effect, args: Any, kwargs: Any, inputs: tuple[int, ...], run: Run
    ) -> Any:
        """Runs a call that writes or hands out memory: everything in that memory is state from here on."""
        if kind is Effect.ESCAPES:
            touched, why = tensors_in(args, kwargs), f"its memory is handed out by `{simple_name(function)}`"
        else:
            touched, why = tensors_in(args[:1], kwargs.get("out")), f"it is written to by `{simple_name(function)}`"
        self._use(function, inputs, why)
        for tensor in touched:
            self._taint(tensor)
        try:
            return run(function, args, kwargs)
        finally:
            self._check_versions(why)

    def _computing(
        self,
        function: Function,
        args: Any,
        kwargs: Any,
        tensors: list[torch.Tensor],
        known: list[int | None],
        inputs: tuple[int, ...],
        run: Run,
    ) -> Any:
        """Runs a call, and records it if it is stateless."""
        num_constants = len(self.trace.constants)
        why, arguments, keywords = self._taken_apart(function, args, kwargs)
        if why:
            self._refuse(function, inputs, why, num_constants)
            return run(function, args, kwargs)
        versions, before = versions_of(tensors), b"" if function in self._quiet else _random_state()
        random = self._stream_of(function)
        begun = time.perf_counter()
        result = run(function, args, kwargs) if random < 0 else self._draw(random, function, args, kwargs, run)
        seconds = time.perf_counter() - begun
        why = "it draws random numbers" if before and self._has_drawn(function, before) else ""
        self._check_versions(function)
        written: list[torch.Tensor] = []
        if versions_of(tensors) != versions:
            written = [t for t, version in zip(tensors, versions, strict=True) if version_of(t) != version]
            why = "it writes to an argument"
        outputs, container = results_of(result)
        why = why or _why_not(function, args, tensors, outputs, inputs)
        if why:
            self._refuse(function, inputs, why, num_constants)
            for tensor in written:
                self._taint(tensor)
            return result
        same_as = tuple([self._number(tensor) for tensor in outputs])
        if None not in same_as and all(same is not None and same < len(self._batch) for same in same_as):
            # A loader that fetches ahead moved the batch to the device where it already is: not the step's beginning.
            del self.trace.constants[num_constants:]
            if not self.trace.calls and not self.trace.uses:
                self._wait()
            return result
        number = len(self.trace.calls)
        numbers = tuple([self._track(tensor, number, place) for place, tensor in enumerate(outputs)])
        is_view = self._share_memory(numbers, tensors, known)
        self.trace.calls.append(
            Call(
                function,
                path_of(function),
                arguments,
                keywords,
                numbers,
                container,
                is_view,
                same_as,
                seconds,
                site(),
                ambient(),
                random,
            )
        )
        return result

    def _taken_apart(self, function: Function, args: Any, kwargs: Any) -> tuple[str, _Arguments, _Keywords]:
        """Why a call cannot be moved, as far as known before it runs; else its arguments."""
        why = self._refusal(function)
        if why:
            return why, (), ()
        leaf, take = self._leaf if takes_leaves(function) else _no_leaf, self._argument
        try:
            arguments = tuple([take(a) if type(a) is torch.Tensor else take_apart(a, take, leaf) for a in args])
            keywords = tuple((name, take_apart(a, take, leaf)) for name, a in sorted(kwargs.items())) if kwargs else ()
        except NotRecordable as error:
            return str(error), (), ()
        return "", arguments, keywords

    def _refuse(self, function: Function, inputs: tuple[int, ...], why: str, num_constants: int) -> None:
        """Notes that a call stays; drops the constants that were recorded for it."""
        del self.trace.constants[num_constants:]
        self._use(function, inputs, why)

    def _stream_of(self, function: Function) -> int:
        """Which of the work item's random streams a call draws from; -1: none."""
        if self._seed is None or not is_random(function):
            return -1
        self._num_random += 1
        return self._num_random - 1

    def _has_drawn(self, function: Function, before: bytes) -> bool:
        """Whether a call has changed the state of torch's generator."""
        if _random_state() != before:
            return True
        if not is_random(function) and not is_marked(function):
            self._quiet.add(function)  # checking costs 4 us; the first prepared batches are compared anyway
        return False

    def _share_memory(self, made: Iterable[int], tensors: list[torch.Tensor], known: list[int | None]) -> bool:
        """Whether values share memory with one of the tensors that they were made from."""
        memory = self._memory
        of_made = [memory[n] for n in made]
        for tensor, n in zip(tensors, known, strict=True):
            if (memory[n] if n is not None else identity_of(tensor.untyped_storage())) in of_made:
                return True
        return False

    def _draw(self, order: int, function: Function, args: Any, kwargs: Any, run: Run) -> Any:
        assert self._seed is not None
        with seeded(self._seed, order):
            return run(function, args, kwargs)

    def _refusal(self, function: Function) -> str:
        """Why a call that computes cannot be moved, as far as known before it runs."""
        always = _refusal_of(function, self._seed is not None)
        if always:
            return always
        if count_dispatch_modes():
            return "a mode of the program sees the operations that it makes"
        if inside_transform() is not None:
            return "it runs inside a transform (vmap, grad)"
        if len(self.trace.calls) >= MAX_CALLS:
            return f"the step has more than {MAX_CALLS} calls"
        return ""

    def _argument(self, tensor: torch.Tensor) -> Argument:
        number = self._number(tensor)
        if number is not None:
            return Argument(Form.VALUE, number)
        if isinstance(tensor, torch.nn.Parameter):
            raise NotRecordable("it uses a parameter of the model")
        if tensor.requires_grad:
            raise NotRecordable("it uses a tensor that depends on parameters")
        if not is_plain(tensor):
            raise NotRecordable(f"it uses a {type(tensor).__name__} on {tensor.device} from outside the step")
        if identity_of(tensor.untyped_storage()) in self._tainted:
            raise NotRecordable("it uses a tensor that the step has written to")
        if span_bytes(tensor) > MAX_CONSTANT_BYTES:
            raise NotRecordable("it uses a tensor above 1 MB from outside the step")
        self._constants_bytes += span_bytes(tensor)
        if self._constants_bytes > MAX_ALL_CONSTANTS_BYTES:
            raise NotRecordable("the step's tensors from outside are above 64 MB together")
        self.trace.constants.append(copy_of(tensor))
        return Argument(Form.CONSTANT, len(self.trace.constants) - 1)

    def _objects_in(self, parts: Iterable[Any]) -> tuple[int, ...]:
        """Leaves among the arguments that are not tensors and that the program has not changed."""
        numbers: list[int] = []
        for part in parts:
            number = self._objects.get(id(part))
            if number is not None and is_changed(part, self._marks[number]):
                del self._objects[id(part)]
            elif number is not None:
                numbers.append(number)
        return tuple(numbers)

    def _leaf(self, part: Any) -> Argument | None:
        number = self._objects.get(id(part))
        return None if number is None else Argument(Form.VALUE, number)

    # -- values ------------------------------------------------------------------------------------------------------

    def _describe(self, tensor: Any, producer: int | None, position: int) -> int:
        if not isinstance(tensor, torch.Tensor):
            self.trace.values.append(_describe_object(len(self.trace.values), tensor, position))
            self._refs.append(_nothing)
            self._versions.append(0)
            self._memory.append(0)
            return len(self.trace.values) - 1
        if tensor.layout is torch.strided and not tensor.is_nested:
            shape, stride, size = tuple(tensor.shape), tensor.stride(), tensor.nbytes
        else:
            shape, stride, size = (), (), 0
        device = "cpu" if tensor.is_cpu else str(tensor.device)
        number = len(self._refs)
        value = Value(number, producer, position, shape, stride, _dtype_name(tensor.dtype), device, size)
        self.trace.values.append(value)
        self._refs.append(weakref.ref(tensor))
        self._versions.append(version_of(tensor))
        self._memory.append(0)
        return number

    def _track(self, tensor: torch.Tensor, producer: int | None, position: int) -> int:
        """Registers a plain tensor so that it is recognised later: half of the cost of recording a call."""
        number, reference, memory = len(self._refs), weakref.ref(tensor), identity_of(tensor.untyped_storage())
        shape, dtype = tuple(tensor.shape), _dtype_name(tensor.dtype)
        value = Value(number, producer, position, shape, tensor.stride(), dtype, "cpu", tensor.nbytes)
        self.trace.values.append(value)
        self._refs.append(reference)
        self._versions.append(version_of(tensor))
        self._memory.append(memory)
        self._ids[id(tensor)] = (reference, number)
        self._storages.setdefault(memory, set()).add(number)
        return number

    def _number(self, tensor: torch.Tensor) -> int | None:
        found = self._ids.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def _is_written(self, number: int) -> bool:
        """Whether a value was written to by code that no mode sees (scripted functions, extensions)."""
        tensor = self._refs[number]()
        if tensor is None or version_of(tensor) == self._versions[number]:
            return False
        self.trace.uses.append(
            Use("", (number,), "it is written to by code that no mode sees", site(), len(self.trace.calls))
        )
        self._taint(tensor)
        return True

    def _alive(self) -> frozenset[int]:
        made = [value.number for value in self.trace.values if value.producer is not None]
        return frozenset(number for number in made if self._refs[number]() is not None)

    def _taint(self, tensor: torch.Tensor) -> None:
        storage = storage_of(tensor)
        if storage is None:
            return
        key = identity_of(storage)
        self._tainted[key] = storage
        for number in self._storages.pop(key, ()):
            alive = self._refs[number]()
            if alive is not None:
                self._ids.pop(id(alive), None)

    def _check_versions(self, why: str | Function) -> None:
        """Finds leaves written to although no name shows it; ``why``: the function, or a reason in words."""
        versions = versions_of(self._tensors_of_batch)
        if versions == self._versions_of_batch:
            return
        self._versions_of_batch = versions
        for position, leaf in enumerate(self._leaves):
            if isinstance(leaf, torch.Tensor) and is_changed(leaf, self._marks[position]):
                self._marks[position] = mark(leaf)
                words = why if isinstance(why, str) else f"it is written to by `{simple_name(why)}`"
                number = self._number(leaf)
                if number is not None:
                    self.trace.uses.append(Use("", (number,), words, site(), len(self.trace.calls)))
                self._taint(leaf)

    def _use(self, function: Function, inputs: tuple[int, ...], why: str) -> None:
        if inputs:
            path = path_of(function) or simple_name(function)
            self.trace.uses.append(Use(path, tuple(dict.fromkeys(inputs)), why, site(), len(self.trace.calls)))
            self.done = self.done or len(self.trace.uses) > _MAX_USES


def _why_not(
    function: Function, args: Any, tensors: list[torch.Tensor], outputs: list[torch.Tensor], inputs: tuple[int, ...]
) -> str:
    """Why a call's result keeps it from being moved; empty if nothing does."""
    if not outputs:
        return "its result goes to Python" if inputs else "none"
    if [tensor for tensor in outputs if tensor.requires_grad or not is_plain(tensor)]:
        return why_unmovable(outputs)
    if rounds_by_threads(function, args, tensors, outputs):
        return "its rounding depends on the number of threads, and data workers have one"
    return ""


def _no_leaf(_: Any) -> None:
    return None


def _nothing() -> None:
    return None


def _describe_object(number: int, leaf: Any, position: int) -> Value:
    """The value for a leaf that is not a tensor."""
    array = isinstance(leaf, np.ndarray)
    shape = tuple(leaf.shape) if array else (len(leaf),)
    kind = str(leaf.dtype) if array else f"{type(leaf).__name__} of {type(leaf[0]).__name__}"
    return Value(number, None, position, shape, (), kind, "cpu", leaf.nbytes if array else 0)


def _random_state() -> bytes:
    """The state of torch's generator; as bytes, which compare faster than tensors."""
    return state_of(torch.default_generator).numpy().tobytes()


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def site() -> str:
    """``file.py:line`` of the nearest caller outside torch and stoker."""
    frame = sys._getframe(1)
    while frame is not None:
        name = _program_file(frame.f_globals.get("__name__", ""), frame.f_code.co_filename)
        if name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@functools.lru_cache(maxsize=4096)
def _program_file(module: str, path: str) -> str:
    """The file of a frame as shown to people; empty for the files of torch and stoker."""
    if module == "torch" or module.startswith(("torch.", "stoker.")):
        return ""
    return file_shown(path)


@functools.lru_cache(maxsize=4096)
def _refusal_of(function: Function, seeded: bool) -> str:
    """Why no call of a function is moved; ``seeded``: random calls draw from streams of the work item."""
    if not path_of(function):
        if is_marked(function):
            return f"`{simple_name(function)}` is not defined at the top of a module, so no worker finds it"
        return f"`{simple_name(function)}` is not one of torch's functions (mark your own with `@stoker.stateless`)"
    if effect(function) is Effect.UNINITIALISED:
        return "its result is whatever the memory held"
    if not seeded and may_draw(function):
        return "it draws random numbers"
    if keeps_statistics(function):
        return "it may write running statistics"
    return ""
