"""What forks do to stoker goes through one module, and the check that says so finds what does not."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src/stoker"
HOME = SOURCE / "core/processes/forking.py"
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "allocate_lock"}
WORDS = {"register_at_fork", "getpid", *LOCKS}
"""A module with none of them is not parsed."""
NOT_OF_FORKS = {
    "backends/local.py": "get_native_id() == getpid(): whether this is the main thread",
    "backends/ray/clusters.py": "pid == getpid(): the caller is no process of the cluster that it looks for",
    "run/caching/report.py": "told.pid: the same, as the cache of a run is told of it",
    "run/session.py": "active.pid: the process that `stoker run` became, from its environment",
}


def strays(tree: ast.Module) -> Iterator[str]:
    """Hooks, locks that live as long as the process, and comparisons of process ids."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and _name(node) == "register_at_fork":
            yield f"line {node.lineno}: a hook"
        if isinstance(node, ast.Compare) and any(_is_pid(side) for side in [node.left, *node.comparators]):
            yield f"line {node.lineno}: a comparison"
    for node in _run_on_import(tree):
        if isinstance(node, ast.Call) and _name(node.func) in LOCKS:
            yield f"line {node.lineno}: a lock"


def _run_on_import(tree: ast.AST) -> Iterator[ast.AST]:
    """All but the bodies of functions; defaults of their arguments are made once."""
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        children: Iterable[ast.AST] = [tree.args]
    else:
        children = ast.iter_child_nodes(tree)
    for child in children:
        yield child
        yield from _run_on_import(child)


def _is_pid(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) == "getpid"


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _strays_in(text: str) -> list[str]:
    return list(strays(ast.parse(text))) if any(word in text for word in WORDS) else []


def test_forks_are_told_of_in_one_module() -> None:
    found = {
        str(path.relative_to(SOURCE)): lines
        for path in sorted(SOURCE.rglob("*.py"))
        if path != HOME and (lines := _strays_in(path.read_text()))
    }
    assert found.keys() == NOT_OF_FORKS.keys(), found
    assert all(len(lines) == 1 and "a comparison" in lines[0] for lines in found.values()), found
    assert len(list(strays(ast.parse(HOME.read_bytes())))) >= 2


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os\nos.register_at_fork(after_in_child=print)", ["line 2: a hook"]),
        ("from os import register_at_fork as late\ndef f():\n    g(register_at_fork)", ["line 3: a hook"]),
        ("_lock = threading.Lock()", ["line 1: a lock"]),
        ("class Pool:\n    lock: Any = RLock()", ["line 2: a lock"]),
        ("def f(*, lock=Lock()):\n    pass", ["line 1: a lock"]),
        ("if fast:\n    _locks = {'one': _thread.allocate_lock()}", ["line 2: a lock"]),
        ("def f():\n    if self._pid != os.getpid():\n        pass", ["line 2: a comparison"]),
        ("alive = os.getpid() in pools", ["line 1: a comparison"]),
        ("def f():\n    self._lock = threading.Lock()\npid = os.getpid()\n_lock = ForkedLock()", []),
    ],
)
def test_a_stray_is_found(source: str, found: list[str]) -> None:
    assert list(strays(ast.parse(source))) == found
