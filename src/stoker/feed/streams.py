# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# (torch's and NumPy's generator internals are untyped)
"""The random streams of user code: seeding, saving, and noticing a draw.

There are three main ones (torch, ``random``, NumPy); generators that a dataset holds itself can be adopted.

Lean on purpose: ``torch.manual_seed`` costs 67 to 233 us because it also visits accelerators, the default generator's
own ``manual_seed`` 1 us; NumPy's ``get_state`` costs 33 us and Python's ``getstate`` 9 us, reading a generator's memory
under 1 us (measured with torch 2.13 and NumPy 2.4 on one core).
"""

from __future__ import annotations

import ctypes
import functools
import pickle
import random
import struct
import sys
from collections.abc import Sequence
from typing import Any

import torch
from numpy import random as numpy_random  # NumPy loads it lazily: 10 ms, here once instead of in every data worker

from stoker.core.patching import Patches

_NUMPY_STATE_BYTES = 624 * 4 + 4  # mt19937: key and position
_OTHER_SEEDS = 0x9E3779B97F4A7C15  # an odd constant: generators get seeds far from each other
_MASK = (1 << 63) - 1
_adopted: tuple[Any, ...] = ()


_patches = Patches("asking for the seed is noticed")
_reads = 0
"""How often user code has asked for torch's seed."""


def watch_reads() -> None:
    """Makes each read of torch's seed count as a draw, since the seed differs between workers.

    Only for data workers, whose process is not the program's.
    """
    stock = torch.random.initial_seed
    if getattr(stock, "counts", False):
        return

    @functools.wraps(stock)
    def initial_seed() -> int:
        global _reads
        _reads += 1
        return stock()

    vars(initial_seed)["counts"] = True
    for owner in (torch.random, torch):
        _patches.set(owner, "initial_seed", initial_seed)


def adopt(generators: Sequence[Any]) -> tuple[Any, ...]:
    """Adopts generators of user code as further streams of this process, in place of those adopted before.

    Args:
        generators: of :mod:`random`, NumPy (new and legacy) or torch; none to leave the three main streams alone.

    Returns: those adopted before.
    """
    global _adopted
    before, _adopted = _adopted, tuple(generator for generator in generators if _has_state(generator))
    return before


def _has_state(generator: Any) -> bool:
    """Whether a generator can be seeded, saved and restored: not the system's own, nor one of an accelerator."""
    if isinstance(generator, torch.Generator):
        return generator.device.type == "cpu"
    try:
        _state_of(generator)
        if isinstance(generator, numpy_random.Generator):
            type(generator.bit_generator)(0)
    except Exception:
        return False
    return True


def _seed_adopted(value: int) -> None:
    for number, generator in enumerate(_adopted, 1):
        own = (value + number * _OTHER_SEEDS) & _MASK
        if isinstance(generator, numpy_random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(own).state
        elif isinstance(generator, numpy_random.RandomState):
            generator.seed(own & 0xFFFFFFFF)
        elif isinstance(generator, torch.Generator):
            generator.manual_seed(own)
        else:
            generator.seed(own)


def torch_state(generator: torch.Generator) -> torch.Tensor:
    """The state of a torch generator.

    Of a copy: ``get_state`` makes its tensor while it holds the generator's lock. If Python collects garbage there, and
    that frees a tensor, the interpreter goes on in another thread, which waits for the lock for ever when it asks too.
    """
    return generator.clone_state().get_state()


def _state_of(generator: Any) -> Any:
    if isinstance(generator, numpy_random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, numpy_random.RandomState):
        return generator.get_state(legacy=False)
    return torch_state(generator).numpy() if isinstance(generator, torch.Generator) else generator.getstate()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, numpy_random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, torch.Generator):
        generator.set_state(torch.from_numpy(state))
    elif isinstance(generator, numpy_random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)


def _numpy_generator() -> Any:
    return numpy_random.mtrand._rand._bit_generator  # the legacy global stream, which user code draws from


def seed(value: int) -> None:
    """Sets all streams to states that depend on ``value`` (0 <= value < 2^63) alone."""
    torch.default_generator.manual_seed(value)
    random.seed(value)
    numpy_random.seed(value & 0xFFFFFFFF)
    if _adopted:
        _seed_adopted(value)


def save() -> tuple[Any, ...]:
    """The states of all streams, for :func:`restore`."""
    own = [(generator, _state_of(generator)) for generator in _adopted]
    return torch_state(torch.default_generator), random.getstate(), numpy_random.get_state(legacy=False), own


def restore(states: tuple[Any, ...]) -> None:
    """Restores the streams to states from :func:`save`."""
    torch.default_generator.set_state(states[0])
    random.setstate(states[1])
    numpy_random.set_state(states[2])
    for generator, state in states[3]:
        _set_state(generator, state)


def mark() -> tuple[object, ...]:
    """A cheap snapshot of the streams, for :func:`drawn_since`."""
    generator = _numpy_generator()
    if type(generator) is numpy_random.MT19937:
        numpy_state: object = ctypes.string_at(generator.ctypes.state_address, _NUMPY_STATE_BYTES)
    else:
        numpy_state = repr(generator.state)
    own = tuple(pickle.dumps(_state_of(generator)) for generator in _adopted)
    return torch_state(torch.default_generator).numpy().tobytes(), _python_picture(), numpy_state, own, _reads


def drawn_since(picture: tuple[object, ...]) -> bool:
    """Whether any stream was drawn from or seeded since ``picture``."""
    return mark() != picture


def _python_picture() -> object:
    generator: Any = random._inst
    if not _PYTHON_IS_READABLE:
        return random.getstate()
    return ctypes.string_at(id(generator) + object.__basicsize__, _PYTHON_STATE_BYTES), generator.gauss_next


def _python_is_readable() -> bool:
    """Whether the generator's memory holds its state: position and key, right after the object's header."""
    generator: Any = random._inst
    if type(generator) is not random.Random or sys.implementation.name != "cpython":
        return False
    *key, position = generator.getstate()[1]
    if object.__basicsize__ + _PYTHON_STATE_BYTES > type(generator).__basicsize__:
        return False
    found = ctypes.string_at(id(generator) + object.__basicsize__, _PYTHON_STATE_BYTES)
    return found == struct.pack("=i624I", position, *key)


_PYTHON_STATE_BYTES = struct.calcsize("=i624I")
_PYTHON_IS_READABLE = _python_is_readable()
