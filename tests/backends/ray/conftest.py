"""One Ray cluster of two nodes on this machine for the tests of a file; its daemons would slow down all others."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.backends.ray import clusters


def needs_ray() -> None:
    """Skips a test where Ray is not installed; it is not imported here, where programs are served."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install 'stoker[ray]'")


SMALL = clusters.NodeShape(cpus=2, gpus=0, object_store_bytes=clusters.LEAST_OBJECT_STORE_BYTES)


@pytest.fixture(scope="module")
def state_home() -> Iterator[Path]:
    """A user's folder of states; its notes are not those of who runs the tests."""
    folder = Path(tempfile.mkdtemp(prefix="stoker-test-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(state_home: Path) -> Iterator[clusters.ClusterRecord]:
    needs_ray()
    folder = state_home / "stoker" / "cluster"
    record = clusters.up(folder, 2, SMALL)
    yield record
    if clusters.read(folder) is not None:
        clusters.down(folder)


@pytest.fixture
def joining_environ(state_home: Path) -> dict[str, str]:
    """The environment of a program of that user."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return environ | {"XDG_STATE_HOME": str(state_home)}
