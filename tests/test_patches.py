"""Names of other libraries are replaced through one module, and the check that says so finds what does not.

It reads text, so it sees an assignment whose owner the file itself took from an import, one to a special method, and
every ``setattr``. It does not see other ones to an owner that came as an argument, out of a container or from
``sys.modules``, nor to ``vars(owner)``, nor what a library's own functions register (hooks of optimizers and modules).
"""

import ast
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src/stoker"
HOME = SOURCE / "core/patching.py"
LIBRARIES = {"torch", "fsspec", "pyarrow", "numpy", "multiprocessing", "importlib"}
SPECIAL = {
    "__new__",
    "__init__",
    "__call__",
    "__iter__",
    "__next__",
    "__getitem__",
    "__getattr__",
    "__torch_function__",
}
SETTERS = {"setattr", "delattr"}
NO_PATCHES = {
    "cache/reading/run_counters.py": "a class of its own",
    "cli/cache/arguments.py": "argparse's way to return a value",
    "feed/torch_private.py": "`_worker_info`: torch's variable for what a data worker is",
    "feed/state/window.py": "counters of its own",
    "perf/features/tracing/distributed.py": "modules of the traced program, in a process of its own",
}


def strays(tree: ast.Module) -> Iterator[str]:
    """Lines that set attributes or items of what is imported from libraries, special methods, or by ``setattr``."""
    names = _library_names(tree)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in SETTERS
            and ast.unparse(node.args[0]) != "self"
        ):
            yield f"line {node.lineno}: {node.func.id}"
        for target in _targets(node):
            if not isinstance(target, ast.Attribute | ast.Subscript):
                continue
            if _root(target) in names or (isinstance(target, ast.Attribute) and target.attr in SPECIAL):
                yield f"line {target.lineno}: {ast.unparse(target)}"


def _library_names(tree: ast.Module) -> set[str]:
    """What imports call the libraries and their parts, and variables that are set to one of them."""
    names = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (node.module or "" if isinstance(node, ast.ImportFrom) else alias.name).partition(".")[0] in LIBRARIES
    }
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Name | ast.Attribute) and _root(value) in names:
            names |= {target.id for target in _targets(node) if isinstance(target, ast.Name)}
    return names


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        parts = ((target.elts if isinstance(target, ast.Tuple) else [target]) for target in node.targets)
        return list(itertools.chain(*parts))
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For) else []


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.slow("reads the source of each module")
def test_names_of_libraries_are_replaced_in_one_module() -> None:
    found = {
        str(path.relative_to(SOURCE)): lines
        for path in sorted(SOURCE.rglob("*.py"))
        if path != HOME and (lines := list(strays(ast.parse(path.read_bytes()))))
    }
    assert found.keys() == NO_PATCHES.keys(), found
    assert all(len(lines) == 1 for lines in found.values()), found
    assert len(list(strays(ast.parse(HOME.read_bytes())))) >= 2


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch.save = print", ["line 2: torch.save"]),
        ("from torch.utils.data import DataLoader as L\ndef f():\n    L.__init__ = g", ["line 3: L.__init__"]),
        ("import pyarrow.fs as pafs\npafs.a, pafs.b = 1, 2", ["line 2: pafs.a", "line 2: pafs.b"]),
        ("import torch\ndef f():\n    cuda: Any = torch.cuda\n    cuda.Event = 1", ["line 4: cuda.Event"]),
        ("from fsspec.registry import known\nknown['s3']['class'] = 1", ["line 2: known['s3']['class']"]),
        ("from torch import nn\ndel nn.Module.cuda", ["line 2: nn.Module.cuda"]),
        ("def f(kind):\n    kind.__next__ = g", ["line 2: kind.__next__"]),
        ("setattr(self, name, 1)\nsetattr(self.kind, name, 1)", ["line 2: setattr"]),
        ("setattr(owner, name, value)", ["line 1: setattr"]),
        ("import torch\nx = torch.ones(3)\nself.size = other.size = 1\nx[0] = 1", []),
        ("def f(owner):\n    owner.save = g", []),  # as the module's text says
    ],
)
def test_a_stray_is_found(source: str, found: list[str]) -> None:
    assert list(strays(ast.parse(source))) == found


@pytest.mark.slow("imports each module of stoker, and torch")
@pytest.mark.integration
def test_nothing_is_replaced_by_an_import() -> None:
    modules = [
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        for path in sorted(SOURCE.rglob("*.py"))
        if path.name not in ("__init__.py", "__main__.py", "sitecustomize.py")
    ]
    probe = (
        "import sys, importlib, torch\n"
        "stock = torch._C._to_dlpack\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "from stoker.core.patching import patched\n"
        "print(patched(), torch._C._to_dlpack is torch.utils.dlpack.to_dlpack is stock)\n"
        "from stoker.run.replaced import replace_all\n"
        "print(len(replace_all()) > 5, torch._C._to_dlpack is stock)"
    )
    done = subprocess.run([sys.executable, "-c", probe, *modules], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["{} True", "True False"], done.stderr
