# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (walks arbitrary user objects)
"""A bounded walk over what a dataset and its functions refer to: a fingerprint, and obstacles to moving them.

Two uses. An unchanged complete fingerprint means that workers forked earlier hold what would be forked now, so they
can be reused. And a loader that declares no workers may only be moved when the walk is complete, finds nothing
that training changes (parameters, optimizers, accelerator tensors), and the fingerprint can be watched while it runs.
Library code (anything under an installation directory) is taken as constant; user code is walked with the globals
that it names.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import functools
import logging
import os
import pathlib
import random
import re
import struct
import sys
import sysconfig
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stoker.feed.streams import torch_state


class _OneField(typing.NamedTuple):
    field: int


_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type(...), type(NotImplemented), enum.Enum,
    datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, pathlib.PurePath, re.Pattern,
    np.dtype, np.generic, torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format,
    types.GenericAlias, types.UnionType, typing.TypeVar, type(vars(_OneField)["field"]),
)  # fmt: skip
_PLAIN = frozenset({int, float, str, bool, bytes, type(None)})
_WHOLE = frozenset({list, tuple, dict, set, frozenset, collections.deque, np.ndarray, torch.Tensor})
"""Containers without attributes."""
_CACHED = type(functools.lru_cache(int))
_FIELD: type = type(vars(collections.namedtuple("_Pair", "left right"))["left"])  # pyright: ignore[reportUntypedNamedTuple]
_NUMPY_FUNCTION: type = type(np.where)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_PYTHON_STREAM, _NUMPY_STREAM = random._inst, np.random.mtrand._rand  # type: ignore[attr-defined]
_IMMUTABLE_TYPE, _HEAP_TYPE = 1 << 8, 1 << 9  # Py_TPFLAGS_…: types of C modules are immutable, heap types or not
_LIBRARY_DIRS = tuple(
    os.path.realpath(path) + os.sep
    for path in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(package.__path__[0] for package in (np, torch)),
    }
    if path
)
_PACKAGE_DIRS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
"""Also find packages in the user's site, in folders on PYTHONPATH and in the system below an environment: `sysconfig`
knows only the environment's."""


@dataclass(frozen=True)
class Survey:
    """Result of a walk."""

    fingerprint: bytes | None
    """Equal for an unchanged object graph; None if the walk was incomplete. Begins with the outline: the hash of
    everything but array contents."""
    obstacles: tuple[str, ...]
    """Objects that training may change, or that can't be looked into, as half sentences."""
    num_objects: int
    shared: tuple[str, ...] = ()
    """Objects shared with other processes (locks, values, queues), as half sentences."""
    generators: tuple[tuple[str, Any], ...] = ()
    """Random generators found, each with its path."""


@dataclass
class _Walk:
    max_objects: int
    max_bytes: int
    draws: bool
    """Whether the state of a random generator is part of the fingerprint."""
    across: bool
    """Whether it is compared with that of another process, where objects have other addresses."""
    state: Any = field(default_factory=lambda: blake2b(digest_size=16))
    contents: list[npt.NDArray[np.uint8]] = field(default_factory=list[npt.NDArray[np.uint8]])
    seen: dict[int, int] = field(default_factory=dict[int, int])
    keep: list[Any] = field(default_factory=list[Any])
    obstacles: list[str] = field(default_factory=list[str])
    shared: list[str] = field(default_factory=list[str])
    generators: dict[int, tuple[str, Any]] = field(default_factory=dict[int, tuple[str, Any]])
    num_objects: int = 0
    num_bytes: int = 0
    complete: bool = True


def survey(
    roots: Iterable[tuple[str, Any]],
    *,
    max_objects: int = 50_000,
    max_bytes: int = 32 << 20,
    known: bytes = b"",
    draws: bool = True,
    across: bool = False,
) -> Survey:
    """Walks from named roots.

    Args:
        roots: name (for messages) and object.
        max_objects: objects looked at before the walk gives up.
        max_bytes: array bytes hashed before it gives up.
        known: an earlier fingerprint. If the outline already differs, arrays are not read: the answer is clear.
        draws: whether drawing from a random generator that the walk finds changes the fingerprint.
        across: whether the fingerprint is compared with that of another process: code and library objects then count
            by their contents and names. Most programs' are equal there; one that differs says nothing.
    """
    walk = _Walk(max_objects, max_bytes, draws, across)
    for name, root in roots:
        walk.state.update(name.encode())
        _visit(walk, root, name)
        if not walk.complete and walk.num_objects > max_objects:
            break
    fingerprint = _fingerprint(walk, known) if walk.complete else None
    generators = tuple(walk.generators.values())
    return Survey(fingerprint, tuple(walk.obstacles), walk.num_objects, tuple(walk.shared), generators)


def _fingerprint(walk: _Walk, known: bytes) -> bytes:
    outline: bytes = walk.state.digest()
    if known and not known.startswith(outline):
        return outline
    for data in walk.contents:
        walk.state.update(_mix(data))
    return outline + walk.state.digest()


def _note(walk: _Walk, obstacle: str) -> None:
    if len(walk.obstacles) < 4 and obstacle not in walk.obstacles:
        walk.obstacles.append(obstacle)


def _give_up(walk: _Walk, why: str) -> None:
    walk.complete = False
    _note(walk, why)


def _visit(walk: _Walk, root: Any, name: str) -> None:
    """Breadth first: a walk that gives up has seen what matters most. Not recursive: user graphs may be very deep."""
    queue = collections.deque([(root, name)])
    while queue:
        obj, path = queue.popleft()
        walk.num_objects += 1
        if walk.num_objects > walk.max_objects:
            _give_up(walk, f"`{name}` refers to more than {walk.max_objects} objects, too many to watch")
            return
        try:
            children = _look(walk, obj, path)
        except Exception as error:  # from a property, descriptor or `__repr__` of the program
            what = f"{type(obj).__module__}.{type(obj).__qualname__}"
            _give_up(walk, f"`{path}` is a {what}, which can't be looked into ({type(error).__name__})")
            continue
        queue.extend(children)


def _look(walk: _Walk, obj: Any, path: str) -> Iterable[tuple[Any, str]]:
    """Adds an object to the fingerprint; returns what it refers to, if it was not seen before."""
    kind = type(obj)
    if kind in _PLAIN:
        walk.state.update(f"{kind.__name__}:{obj!r};".encode(errors="backslashreplace"))
        return ()
    look = _look_of(kind)
    if look is _atom:
        walk.state.update(f"{kind.__name__}:{_shown(obj)};".encode(errors="backslashreplace"))
        if not kind.__dictoffset__ or isinstance(obj, enum.Enum):
            return ()
    known = walk.seen.get(id(obj))
    if known is not None:
        walk.state.update(f"again {known};".encode())
        return ()
    walk.seen[id(obj)] = len(walk.seen)
    walk.keep.append(obj)  # so that ids stay unique during the walk
    walk.state.update(f"<{kind.__module__}.{kind.__qualname__}>".encode())
    children = look(walk, obj, path)
    if look in _CONTAINERS and kind not in _WHOLE:  # a subclass may have attributes as well
        return [*children, *_attributes(obj, path)]
    return children


def _shown(atom: Any) -> str:
    try:
        return repr(atom)
    except Exception:  # an enumeration may define its own representation
        return f"{type(atom).__qualname__} at {id(atom)}"


def _is_main_stream(obj: Any) -> bool:
    return obj is _PYTHON_STREAM or obj is _NUMPY_STREAM or obj is torch.default_generator


def _attributes(obj: Any, path: str) -> list[tuple[Any, str]]:
    """An instance's class, its own attributes and its filled slots."""
    kind = type(obj)
    found: list[tuple[Any, str]] = [(kind, path)]
    if kind.__dictoffset__:
        found += [(value, f"{path}.{name}") for name, value in vars(obj).items()]
    found += [(getattr(obj, name), f"{path}.{name}") for name in _slots_of(kind) if hasattr(obj, name)]
    return found


def _atom(_walk: _Walk, atom: Any, path: str) -> Iterable[tuple[Any, str]]:
    return _attributes(atom, path)


def _mapping(walk: _Walk, mapping: Any, path: str) -> Iterable[tuple[Any, str]]:
    walk.state.update(f"{len(mapping)};".encode())
    return [pair for key, value in list(mapping.items()) for pair in ((key, path), (value, f"{path}[{key!r:.40}]"))]


def _method(_walk: _Walk, method: types.MethodType, path: str) -> Iterable[tuple[Any, str]]:
    return [(method.__func__, path), (method.__self__, path)]


def _partial(_walk: _Walk, partial: functools.partial[Any], path: str) -> Iterable[tuple[Any, str]]:
    return [(partial.func, path), (partial.args, path), (partial.keywords, path)]


def _builtin(walk: _Walk, function: Any, path: str) -> Iterable[tuple[Any, str]]:
    """A function or method in C, of a module or bound to an object."""
    if function.__self__ is None or isinstance(function.__self__, types.ModuleType):
        return _named(walk, function, path)
    walk.state.update(f"{function.__name__};".encode())
    return [(function.__self__, path)]


def _named(walk: _Walk, obj: Any, _path: str) -> Iterable[tuple[Any, str]]:
    which = 0 if walk.across else id(obj)
    walk.state.update(f"{getattr(obj, '__module__', '')}.{getattr(obj, '__name__', '')};{which}".encode())
    return ()


def _cached(_walk: _Walk, function: Any, path: str) -> Iterable[tuple[Any, str]]:
    return [(function.__wrapped__, path)]  # what it caches follows from what it calls


def _unbound(_walk: _Walk, method: Any, path: str) -> Iterable[tuple[Any, str]]:
    return [(method.__func__, path)]


def _property(_walk: _Walk, accessor: property, path: str) -> Iterable[tuple[Any, str]]:
    return [(part, path) for part in (accessor.fget, accessor.fset) if part is not None]


def _format(_walk: _Walk, layout: struct.Struct, path: str) -> Iterable[tuple[Any, str]]:
    return [(layout.format, path)]


def _logger(walk: _Walk, logger: logging.Logger, _path: str) -> Iterable[tuple[Any, str]]:
    """It reports and decides nothing; its handlers hold locks."""
    walk.state.update(f"logger {logger.name};".encode(errors="backslashreplace"))
    return ()


def _generator(walk: _Walk, generator: Any, path: str) -> Iterable[tuple[Any, str]]:
    if _is_main_stream(generator):
        return ()  # seeds take care of the main streams; `from random import shuffle` refers to one
    walk.generators.setdefault(id(generator), (path, generator))
    return [(_generator_state(generator), path)] if walk.draws else ()


def _generator_state(obj: Any) -> Any:
    if isinstance(obj, random.Random):
        return repr(obj.getstate())
    if isinstance(obj, np.random.Generator):
        return repr(obj.bit_generator.state)
    return repr(obj.get_state()) if isinstance(obj, np.random.RandomState) else torch_state(obj).numpy().tobytes()


def _hash_bytes(walk: _Walk, data: npt.NDArray[np.uint8], size_bytes: int, path: str) -> None:
    walk.num_bytes += size_bytes
    if walk.num_bytes > walk.max_bytes:
        _give_up(walk, f"`{path}` and others hold more than {walk.max_bytes >> 20} MiB, too much to watch")
    else:
        walk.contents.append(data)


@functools.cache
def _weights() -> npt.NDArray[np.uint64]:
    return np.random.default_rng(0x5703E4).integers(0, 1 << 64, 1 << 16, dtype=np.uint64) | np.uint64(1)


def _mix(data: npt.NDArray[np.uint8]) -> bytes:
    """A multilinear hash (Carter and Wegman), 20 times as fast as a cryptographic one: nobody forges a dataset.

    It always detects one changed word, since the weights are odd, and misses one in 2^63 of other changes.
    """
    whole = len(data) // 8 * 8
    words, weights = data[:whole].view(np.uint64), _weights()
    parts = [
        int(np.einsum("i,i", block, weights[: len(block)]))  # without an array for the products
        for block in (words[k : k + len(weights)] for k in range(0, len(words), len(weights)))
    ]
    return struct.pack(f"<{len(parts)}Q", *parts) + data[whole:].tobytes()


def _tensor(walk: _Walk, tensor: torch.Tensor, path: str) -> Iterable[tuple[Any, str]]:
    if isinstance(tensor, torch.nn.Parameter) or tensor.requires_grad:
        _note(walk, f"`{path}` is a parameter, which training changes")
    if tensor.device.type != "cpu":
        _give_up(walk, f"`{path}` is a tensor on {tensor.device}")
        return []
    if torch.nn.parameter.is_lazy(tensor):
        _give_up(walk, f"`{path}` is a tensor that is yet to get its shape")
        return []
    if tensor.is_nested:
        _give_up(walk, f"`{path}` is a nested tensor")
        return []
    if tensor.layout is not torch.strided or tensor.is_quantized:
        _give_up(walk, f"`{path}` is a tensor of layout {tensor.layout}")
        return []
    walk.state.update(f"{tensor.dtype}{tuple(tensor.shape)};".encode())
    plain = tensor.detach().resolve_conj().resolve_neg()
    if walk.num_bytes + plain.nbytes > walk.max_bytes:
        _hash_bytes(walk, np.empty(0, np.uint8), plain.nbytes, path)
    else:
        _hash_bytes(walk, plain.contiguous().view(-1).view(torch.uint8).numpy(), plain.nbytes, path)
    return []


def _array(walk: _Walk, array: Any, path: str) -> Iterable[tuple[Any, str]]:
    walk.state.update(f"{array.dtype}{array.shape};".encode())
    if isinstance(array, np.memmap) and array.mode in ("r", "c"):
        stat = os.stat(array.filename) if array.filename else None
        walk.state.update(f"{array.filename}{array.offset}{stat and (stat.st_mtime_ns, stat.st_size)}".encode())
        return []
    if array.dtype.hasobject:
        return [(array.tolist(), path)]
    if walk.num_bytes + array.nbytes > walk.max_bytes:
        _hash_bytes(walk, np.empty(0, np.uint8), array.nbytes, path)
    else:
        _hash_bytes(walk, np.ascontiguousarray(array).view(np.uint8).reshape(-1), array.nbytes, path)
    return []


def _sequence(walk: _Walk, items: Any, path: str) -> Iterable[tuple[Any, str]]:
    walk.state.update(f"{len(items)};".encode())
    if len(items) > walk.max_objects - walk.num_objects:
        walk.num_objects = walk.max_objects  # the next visit gives up and reports it
        return [(None, path)]
    if type(items) in (list, tuple) and _is_flat(items):  # paths, labels, pairs of both: most lists of a dataset
        walk.num_objects += len(items)
        walk.state.update(repr(items).encode(errors="backslashreplace"))
        return []
    return [(item, path) for item in items]


def _is_flat(items: list[Any] | tuple[Any, ...]) -> bool:
    """Whether all items are plain values, or tuples of them: ``repr`` shows these completely, and fast."""
    if all(type(item) in _PLAIN for item in items):
        return True
    return all(type(item) is tuple for item in items) and all(type(v) in _PLAIN for item in items for v in item)


def _function(walk: _Walk, function: types.FunctionType, path: str) -> Iterable[tuple[Any, str]]:
    code = function.__code__
    name = function.__qualname__
    children: list[tuple[Any, str]] = [
        (_contents(code) if walk.across else id(code), path),
        (function.__defaults__, name),
        (function.__kwdefaults__, name),
    ]
    for cell, variable in zip(function.__closure__ or (), code.co_freevars, strict=True):
        try:
            children.append((cell.cell_contents, f"{name}'s {variable}"))
        except ValueError:  # not yet bound
            continue
    if not is_library(code.co_filename):
        children += [(value, variable) for variable, value in _named_globals(function, code)]
    return children


def _contents(code: types.CodeType) -> str:
    """What code does, without addresses: `marshal` writes equal code in more than one way."""
    constants = [
        _contents(constant) if isinstance(constant, types.CodeType)
        else str(sorted(map(repr, constant))) if isinstance(constant, frozenset)
        else repr(constant)
        for constant in code.co_consts
    ]  # fmt: skip
    return repr((code.co_qualname, code.co_code, code.co_names, constants))


def _named_globals(function: types.FunctionType, code: types.CodeType) -> list[tuple[str, Any]]:
    """Globals that a function's code (nested code included) names, and members that it names of user modules."""
    names: set[str] = set()
    pending = [code]
    while pending:
        current = pending.pop()
        names |= set(current.co_names)
        pending += [constant for constant in current.co_consts if isinstance(constant, types.CodeType)]
    found: list[tuple[str, Any]] = []
    for name in sorted(names):
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        found.append((name, value))
        if isinstance(value, types.ModuleType) and not is_library(getattr(value, "__file__", None) or ""):
            found += [(f"{name}.{n}", vars(value)[n]) for n in sorted(names) if n in vars(value)]
    return found


def _class(_walk: _Walk, kind: type, path: str) -> Iterable[tuple[Any, str]]:
    module = sys.modules.get(kind.__module__)
    filename = getattr(module, "__file__", None)
    if kind.__module__ == "builtins" or (filename is None and kind.__module__ != "__main__"):
        return []
    if filename is not None and is_library(filename):
        return []
    members = [(value, f"{kind.__qualname__}.{name}") for name, value in vars(kind).items() if _own_member(name)]
    return [*members, *((base, path) for base in kind.__bases__)]


def _own_member(name: str) -> bool:
    return name not in ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "_abc_impl")


def _instance(walk: _Walk, obj: Any, path: str) -> Iterable[tuple[Any, str]]:
    kind = type(obj)
    if isinstance(obj, torch.optim.Optimizer):
        _note(walk, f"`{path}` is an optimizer")
    if isinstance(obj, torch.nn.Module) and (next(obj.parameters(), None) is not None or _has_buffer(obj)):
        _note(walk, f"`{path}` is a module with parameters or buffers ({kind.__name__})")
    if kind.__module__.startswith(("multiprocessing.", "torch.multiprocessing.")) and "context" not in kind.__module__:
        walk.shared.append(f"`{path}` is a multiprocessing {kind.__name__}, which other processes see")
    for name, value in _generators_of(kind):
        walk.generators.setdefault(id(value), (f"{path}.{name}", value))
    if not kind.__dictoffset__ and not _slots_of(kind):
        _give_up(walk, f"`{path}` is a {kind.__module__}.{kind.__qualname__}, which can't be looked into")
        return []
    if _hides_state(kind):
        _give_up(walk, f"`{path}` is a {kind.__module__}.{kind.__qualname__}, part of which can't be looked into")
    return _attributes(obj, path)


@functools.lru_cache(maxsize=4096)
def _generators_of(kind: type) -> tuple[tuple[str, Any], ...]:
    """Random generators that a class shares among its instances, as MONAI's transforms do until seeded."""
    members = {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}
    own = {name: value for name, value in members.items() if isinstance(value, _GENERATORS)}
    return tuple((name, value) for name, value in own.items() if not _is_main_stream(value))


def _has_buffer(module: torch.nn.Module) -> bool:
    return next(module.buffers(), None) is not None


@functools.lru_cache(maxsize=4096)
def _slots_of(kind: type) -> tuple[str, ...]:
    """Slots of instances, filled or not."""
    declared = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    names = [name for slots in declared for name in ([slots] if isinstance(slots, str) else slots)]
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


@functools.lru_cache(maxsize=4096)
def _hides_state(kind: type) -> bool:
    """Whether a class inherits from one implemented in C that is not a plain container."""
    for base in kind.__mro__:
        if base is object or base.__flags__ & (_HEAP_TYPE | _IMMUTABLE_TYPE) == _HEAP_TYPE:  # by a class statement
            continue
        if base not in (list, dict, tuple, set, frozenset, collections.deque, collections.OrderedDict):
            return not issubclass(base, torch.Generator) and base.__module__ not in ("builtins", "typing")
    return False


@functools.lru_cache(maxsize=4096)
def is_library(filename: str) -> bool:
    """Whether a source file is part of an installation rather than the user's program."""
    if filename.startswith("<"):
        return filename.startswith("<frozen")
    path = os.path.realpath(filename)
    return path.startswith(_LIBRARY_DIRS) or any(part in path for part in _PACKAGE_DIRS)


_Look = Callable[[_Walk, Any, str], Iterable[tuple[Any, str]]]
_LOOKS: tuple[tuple[tuple[type, ...], _Look], ...] = (
    (_ATOMS, _atom),
    ((torch.Tensor,), _tensor),
    ((np.ndarray,), _array),
    ((list, tuple, set, frozenset, collections.deque), _sequence),
    ((dict, types.MappingProxyType), _mapping),
    ((types.FunctionType,), _function),
    ((types.MethodType,), _method),
    ((functools.partial,), _partial),
    ((types.BuiltinFunctionType, types.MethodWrapperType), _builtin),
    ((_CACHED,), _cached),
    ((types.ModuleType, types.MethodDescriptorType, types.WrapperDescriptorType, np.ufunc, _FIELD), _named),
    ((types.GetSetDescriptorType, types.MemberDescriptorType, _NUMPY_FUNCTION), _named),
    ((type,), _class),
    ((staticmethod, classmethod), _unbound),
    ((property,), _property),
    ((struct.Struct,), _format),
    ((logging.Logger,), _logger),
    (_GENERATORS, _generator),
)
"""How instances of a type, or of types derived from it, are looked into; the first that fits."""
_CONTAINERS = (_tensor, _array, _sequence, _mapping)


@functools.lru_cache(maxsize=4096)
def _look_of(kind: type) -> _Look:
    """How instances of a type are looked into. By the type alone: an object may claim to be of another class."""
    return next((look for kinds, look in _LOOKS if issubclass(kind, kinds)), _instance)
