"""The layers hold, and the check that says so can fail."""

import ast
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Runs the check on the package below ``root/src``."""
    command = Path(sys.executable).with_name("lint-imports")
    environ = os.environ | {"PYTHONPATH": str(root / "src")}
    return subprocess.run(
        [str(command), "--no-cache"], cwd=root, env=environ, capture_output=True, text=True, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src/stoker", tmp_path / "src/stoker", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_layers_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "source", "link"),
    [
        ("core/planted.py", "import stoker.feed.scaling\n", "stoker.core.planted -> stoker.feed.scaling"),
        (
            "core/planted.py",
            "def late():\n    from stoker.feed import scaling\n    return scaling\n",
            "core.planted -> ",
        ),
        ("feed/planted.py", "from stoker.scale import planted_target\n", "stoker.feed.planted -> stoker.scale"),
        ("feed/planted.py", "import stoker.graph.choice.cut\n", "stoker.feed.planted -> stoker.graph.choice.cut"),
        ("graph/planted.py", "import stoker.feed.scaling\n", "stoker.graph.planted -> stoker.feed.scaling"),
        (
            "perf/planted.py",
            "import stoker.perf.study.cross_validation\n",
            "stoker.perf.planted -> stoker.perf.study.cross_validation",
        ),
        (
            "cli/planted.py",
            "def late():\n    from stoker.perf.study.tables import rows\n    return rows\n",
            "stoker.cli.planted -> stoker.perf.study.tables.rows",
        ),
        ("serve/planted.py", "import stoker.feed.scaling\n", "stoker.serve.planted -> stoker.feed.scaling"),
        ("serve/processes/planted.py", "import torch\n", "stoker.serve.processes.planted -> torch"),
        ("serve/models/planted.py", "import uvicorn\n", "stoker.serve.models.planted -> uvicorn"),
        ("perf/planning/planted.py", "import torch\n", "stoker.perf.planning.planted -> torch"),
        (
            "cache/filesystem/planted.py",
            "import stoker.cache.store.index.index_file\n",
            "stoker.cache.filesystem.planted -> stoker.cache.store.index.index_file",
        ),
        (
            "cache/cluster/server/planted.py",
            "def late():\n    from stoker.cache.store import locks\n    return locks\n",
            "stoker.cache.cluster.server.planted -> stoker.cache.store.locks",
        ),
        (
            "cache/planted.py",
            "from stoker.cache.cluster.client.connection_pool import ConnectionPool\n",
            "stoker.cache.planted -> stoker.cache.cluster.client.connection_pool",
        ),
        (
            "run/planted.py",
            "import stoker.cache.cluster.messages.frames\n",
            "stoker.run.planted -> stoker.cache.cluster.messages.frames",
        ),
        (
            "cache/planted.py",
            "def late():\n    import fsspec.core\n    return fsspec\n",
            "stoker.cache.planted -> fsspec",
        ),
        ("cache/filesystem/planted.py", "import pyarrow.fs\n", "stoker.cache.filesystem.planted -> pyarrow"),
        (
            "feed/loader/planted.py",
            "from stoker.feed.worker.loop import Worker\n",
            "stoker.feed.loader.planted -> stoker.feed.worker.loop",
        ),
        ("records/planted.py", "import xxhash\n", "stoker.records.planted -> xxhash"),
        # Circles, also by what is imported for types alone.
        (
            "perf/communication/planted.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from stoker.perf.prediction import anchor\n",
            "- .communication -> .prediction (1 import)",
        ),
        ("core/planted.py", "import stoker.records.events\n", "stoker.core.planted -> stoker.records.events"),
        (
            "wire/planted.py",
            "import stoker.feed.transport.messages\n",
            "stoker.wire.planted -> stoker.feed.transport.messages",
        ),
        ("wire/planted.py", "import stoker.records.events\n", "stoker.wire.planted -> stoker.records.events"),
        ("core/planted.py", "import stoker.wire.sockets\n", "stoker.core.planted -> stoker.wire.sockets"),
        ("ui/planted.py", "import stoker.cache.policies\n", "stoker.ui.planted -> stoker.cache.policies"),
        ("ui/planted.py", "import stoker.perf.catalogue\n", "stoker.ui.planted -> stoker.perf.catalogue"),
        (
            "cache/filesystem/routing_settings.py",
            "from stoker.cache.filesystem import routing\n",
            "No cycles are allowed in stoker.cache.filesystem",
        ),
        ("perf/memory/planted.py", "import stoker.perf.planning.space\n", "- .memory -> .planning (1 import)"),
        ("ui/planted.py", "import stoker.cli.main\n", "stoker.ui.planted -> stoker.cli.main"),
        ("ui/planted.py", "import stoker.graph.choice.cut\n", "stoker.ui.planted -> stoker.graph.choice.cut"),
        ("core/planted.py", "def late():\n    import torch\n    return torch\n", "stoker.core.planted -> torch"),
        # Through the package's own front door, which may import everything.
        ("core/planted.py", "import stoker\n", "stoker.core.planted -> stoker (l."),
    ],
)
def test_a_planted_import_is_found(copy: Path, module: str, source: str, link: str) -> None:
    (copy / "src/stoker/scale/planted_target.py").write_text("")
    with (copy / "src/stoker/__init__.py").open("a") as front:
        front.write("\nimport stoker.feed.scaling\n")
    (copy / "src/stoker" / module).write_text(source)
    done = lint_imports(copy)
    assert done.returncode == 1, done.stdout + done.stderr
    assert link in done.stdout


OUTSIDE = {
    "msgspec", "numpy", "torch", "fsspec", "pyarrow", "xxhash", "PIL", "cryptography", "ray", "starlette", "uvicorn",
    "httptools", "uvloop", "prometheus_client", "grpc", "google",
}  # fmt: skip
"""All that the package imports: the first two are required; contracts say where the others may be, or may not."""


def imported_from_outside(package: Path) -> dict[str, set[str]]:
    """Libraries that are not Python's, and the modules that import them."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"stoker"}:
                found[name].add(path.relative_to(package).as_posix())
    return found


@pytest.mark.slow("plants imports in a copy of the source, and checks it for each")
def test_nothing_else_is_imported_from_outside(copy: Path) -> None:
    (copy / "src/stoker/ui/planted.py").write_text("def late():\n    from matplotlib import pyplot\n")
    found = imported_from_outside(copy / "src/stoker")
    assert found.pop("matplotlib") == {"ui/planted.py"}
    assert found.pop("sitecustomize") == {"run/site/sitecustomize.py"}  # the one that it hides
    assert set(found) == OUTSIDE


def test_what_needs_no_torch_works_without_it() -> None:
    folders = [ROOT / "src/stoker" / name for name in ("core", "records", "wire", "scale", "ui", "cli")]
    modules = [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        if path.parent.name != "program"  # what `stoker demo` runs as any other program
    ]
    probe = (
        "import sys, importlib; sys.modules['torch'] = None\nfor name in sys.argv[1:]: importlib.import_module(name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, "stoker", *modules], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
