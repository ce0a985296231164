"""The modules that a program shards with FSDP2: they are left as they are, and named."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any, cast

from torch import nn

from stoker.core.patching import Patches
from stoker.run.import_watch import ImportWatch, is_complete

_HOME, _FUNCTION = "torch.distributed.fsdp", "fully_shard"


class ShardWatch:
    """Sees what goes through ``fully_shard``, from :meth:`install` to :meth:`remove`.

    Torch imports it for few programs, at a cost; it is replaced when the program has imported it.

    Args:
        on_shard: called after each call, when there is a process group.
    """

    def __init__(self, on_shard: Callable[[], object]) -> None:
        self._on_shard = on_shard
        self._patches = Patches("names modules of FSDP2")
        self._imports = ImportWatch((_HOME,), lambda name: self._replace())
        self._found: list[tuple[weakref.ref[nn.Module], str]] = []

    @property
    def names(self) -> list[str]:
        """Classes of the outermost modules that were sharded, each once, in the order of their calls."""
        return list(dict.fromkeys(name for _, name in self._found))

    def install(self) -> None:
        """Begins."""
        if is_complete(_HOME):
            self._replace()
        else:
            self._imports.insert()

    def remove(self) -> None:
        """Ends it."""
        self._imports.remove()
        self._patches.restore()

    def _replace(self) -> None:
        home = sys.modules[_HOME]
        original = getattr(home, _FUNCTION, None)
        if original is not None:
            self._patches.set(home, _FUNCTION, self._sharding(original))

    def _sharding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
            modules = cast("Iterable[Any]", module if isinstance(module, (list, tuple)) else [module])
            named = [(each, type(each).__name__) for each in modules]  # it changes the class
            found = original(module, *args, **kwargs)
            for each, name in named:
                self._note(each, name)
            self._on_shard()
            return found

        return fully_shard

    def _note(self, module: nn.Module, name: str) -> None:
        """Keeps the outermost ones: programs shard the blocks of a model first, then the model."""
        inside = {id(each) for each in module.modules()}
        self._found = [(each, other) for each, other in self._found if id(each()) not in inside]
        self._found.append((weakref.ref(module), name))
