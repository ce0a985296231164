"""All cases, by name: importing this module fills the register."""

from __future__ import annotations

from . import (  # noqa: F401
    table_change,
    table_context,
    table_errors,
    table_frameworks,
    table_iterable,
    table_lifetime,
    table_objects,
    table_order,
    table_random,
    table_values,
    table_workers,
)
from .registry import CASES, by_process

__all__ = ["CASES", "by_process"]
