"""Torch's private names: each declared with its purpose in a ``torch_private`` of its capability, and used there alone.

What the look at the source can't see: names that are put together while running; attributes of ``self`` (what a
subclass inherits from torch's iterator, for one), and methods that override; attributes of objects that neither a
``SYMBOLS`` declares nor a name of torch leads to; members without an underscore that torch documents nowhere; names of
operators in the tables by which calls are judged, which are data.
"""

from __future__ import annotations

import ast
import dis
import importlib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker

SOURCE = Path(stoker.__file__).parent
DECLARING = sorted(SOURCE.rglob("torch_private.py"))
CAPABILITIES = ("feed", "graph", "run", "perf/features", "train")
"""Folders of which no other module may name a private symbol of torch."""
BY_NAME = {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller", "set", "import_module"}
"""What takes the name of an attribute or of a module."""


def declared(module: Path) -> dict[str, tuple[str, str]]:
    """Purpose and version of each dotted name that a module declares; read without importing it."""
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "SYMBOLS":
            rows = ast.literal_eval(node.value)
            assert len({name for name, _, _ in rows}) == len(rows), f"{module} declares a name twice"
            return {name: (purpose, since) for name, purpose, since in rows}
    raise AssertionError(f"{module} must declare SYMBOLS")


def is_there(name: str) -> bool:
    """Whether the installed torch has what a dotted name says."""
    parts = name.split(".")
    found: Any = importlib.import_module(parts[0])
    for depth, part in enumerate(parts[1:], 2):
        if hasattr(found, part):
            found = getattr(found, part)
        elif isinstance(found, type):
            return depth == len(parts) and is_set_by_methods(found, part)
        else:
            try:
                found = importlib.import_module(".".join(parts[:depth]))
            except ImportError:
                return False
    return True


def is_set_by_methods(kind: type, name: str) -> bool:
    """Whether methods of a class set an attribute of its objects."""
    return any(
        instruction.opname == "STORE_ATTR" and instruction.argval == name
        for base in kind.__mro__
        for method in vars(base).values()
        if isinstance(method, types.FunctionType)
        for instruction in dis.get_instructions(method)
    )


def lacking(symbols: dict[str, tuple[str, str]]) -> list[str]:
    """What the installed torch lacks, a line each."""
    return [f"{name} ({since}): {purpose}" for name, (purpose, since) in symbols.items() if not is_there(name)]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def used(source: str, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Line and name of each private symbol of torch in a module's text.

    Args:
        source: the text.
        known: names of attributes that are torch's wherever they appear.
    """
    tree = ast.parse(source)
    roots: set[str] = set()  # names that lead to something of torch's
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    roots.add(alias.asname or "torch")
                    yield from ((node.lineno, part) for part in alias.name.split(".") if is_private(part))
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torch":
            roots.update(alias.asname or alias.name for alias in node.names)
            path = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from ((node.lineno, part) for part in path if is_private(part))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = base = node.value
            while isinstance(base, ast.Attribute):
                base = base.value
            of_torch = isinstance(base, ast.Name) and base.id in roots
            of_itself = ast.unparse(owner) in ("self", "cls", "super()")
            if of_torch or (node.attr in known and not of_itself):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call | ast.Compare):
            yield from ((node.lineno, text) for text in texts_of(node) if is_torchs(text, known))


def texts_of(node: ast.Call | ast.Compare) -> Iterator[str]:
    """Texts by which something is looked up."""
    if isinstance(node, ast.Compare):
        inside: list[ast.expr] = [node.left, *node.comparators]
    else:
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        inside = node.args if name in BY_NAME | {"get"} else []
    yield from (part.value for part in inside if isinstance(part, ast.Constant) and isinstance(part.value, str))


def is_torchs(text: str, known: frozenset[str]) -> bool:
    return text in known or (text.startswith("torch.") and any(map(is_private, text.split("."))))


def attributes(names: Iterator[str]) -> frozenset[str]:
    return frozenset(part for name in names for part in name.split(".") if is_private(part))


@pytest.mark.parametrize("module", DECLARING, ids=lambda path: path.parent.name)
def test_torch_has_what_is_declared(module: Path) -> None:
    gone = lacking(declared(module))
    version = importlib.import_module("torch").__version__
    assert not gone, f"torch {version} lacks {len(gone)} names of {module}:\n  " + "\n  ".join(gone)


def test_a_name_that_is_gone_is_named() -> None:
    gone = {
        "torch.utils.data.DataLoader._index_sampler": ("is a property", "1"),
        "torch.utils.data.DataLoader._dataset_kind": ("is set by a method", "2"),
        "torch.utils.data.DataLoader._gone": ("an attribute", "3"),
        "torch.utils._gone._symbol": ("a module", "4"),
    }
    assert lacking(gone) == [
        "torch.utils.data.DataLoader._gone (3): an attribute",
        "torch.utils._gone._symbol (4): a module",
    ]


@pytest.mark.parametrize("module", DECLARING, ids=lambda path: path.parent.name)
def test_what_a_module_uses_it_declares(module: Path) -> None:
    names = attributes(iter(declared(module)))
    assert attributes(name for _, name in used(module.read_text(), names)) <= names


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_private_names_are_used_in_one_module(capability: str) -> None:
    known = attributes(name for module in DECLARING for name in declared(module))
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {name}"
        for path in sorted((SOURCE / capability).rglob("*.py"))
        if path.name != "torch_private.py"
        for line, name in used(path.read_text(), known)
    ]
    assert not found, "private names of torch outside of `torch_private`:\n  " + "\n  ".join(found)


@pytest.mark.parametrize(
    "planted",
    [
        "import torch\ndef f():\n    torch._C._len_torch_function_stack()",
        "from torch.utils.data.dataloader import _BaseDataLoaderIter",
        "import torch._dynamo",
        "import torch.utils.data as data\ndata._utils.worker",
        "def f(loader):\n    return loader._index_sampler",
        "def f(loader):\n    return getattr(loader, '_index_sampler')",
        "import sys\nsys.modules.get('torch._dynamo.utils')",
        "def f(loader):\n    return '_index_sampler' in vars(loader)",
    ],
)
def test_a_planted_use_is_found(planted: str) -> None:
    assert list(used(planted, frozenset({"_index_sampler"})))


def test_names_of_ones_own_are_no_use() -> None:
    own = "import torch\nclass A:\n    def f(self, b):\n        return self._index_sampler, b._own, torch.__version__"
    assert not list(used(own, frozenset({"_index_sampler"})))
