"""A store that answers wrongly on request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cache.fault_server import FaultServer


@pytest.fixture(scope="module")
def fault_server() -> Iterator[FaultServer]:
    """One for all tests of a module: building a client of S3 takes longer than most of them."""
    server = FaultServer()
    yield server
    server.close()


@pytest.fixture
def faults(fault_server: FaultServer) -> Iterator[FaultServer]:
    """A server without objects, that answers rightly."""
    fault_server.reset()
    yield fault_server
    fault_server.released.set()
