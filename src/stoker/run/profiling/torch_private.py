# pyright: reportPrivateUsage=false
# (the one module that uses names which torch keeps to itself for profiles)
"""Torch's private names that profiles need, each once; those of loaders are the feed's.

``SYMBOLS`` is plain data: a test reads it where a torch lacks one of them and this module can't be imported.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch._C._autograd import DeviceType as DeviceType

SYMBOLS = (
    # dotted name, purpose, since
    ("torch._C._autograd.DeviceType.CPU", "tells what ran on the host from what ran on a device", "before 2.6"),
    ("torch._C._dispatch_has_kernel_for_dispatch_key", "whether an operator is made of others", "before 2.6"),
    ("torch._C._jit_get_schemas_for_operator", "the overloads of an operator, by its name", "before 2.6"),
    ("torch._dynamo.utils.counters", "whether the program has compiled anything", "before 2.6"),
)


def has_compiled() -> bool:
    """Whether the program has compiled anything by now; torch's compiler is not loaded for the question."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"])


def is_made_of_others(name: str) -> bool:
    """Whether torch implements an operator by others on all devices (``CompositeImplicitAutograd``).

    Raises:
        RuntimeError: torch does not know it.
        IndexError: it has no overload.
    """
    schema = torch._C._jit_get_schemas_for_operator(name)[0]
    full = f"{name}.{schema.overload_name}" if schema.overload_name else name
    return torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
