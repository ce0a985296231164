"""A store that answers wrongly in any order, while its objects are replaced by others of the same size."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.names import PAGE_BYTES
from stoker.cache.policies import Freshness, Rule
from stoker.cache.sources import retrying
from stoker.core.errors import CacheError
from tests.cache import fault_server
from tests.cache.fault_server import FaultServer

pytestmark = pytest.mark.integration

SIZE = 2 * PAGE_BYTES + 300_000
REST = random.Random(4).randbytes(SIZE - 8)
KEY = "bucket/key"
numbers = itertools.count()


def new_version() -> bytes:
    """As there was none before, alike but for its begin and a byte in each page."""
    number = next(numbers).to_bytes(8, "little")
    data = bytearray(number + REST)
    for at in (PAGE_BYTES - 2, PAGE_BYTES + 1, 2 * PAGE_BYTES + 5):
        data[at : at + 8] = number
    return bytes(data)


def answer(*_: Any) -> bool:
    """Rightly."""
    return False


FAULTS = [
    answer, answer, answer, fault_server.truncate, fault_server.send_less, fault_server.send_other_range,
    fault_server.ignore_range, fault_server.lie_about_etag, fault_server.drop_etag, fault_server.be_busy,
    fault_server.hang_up,
]  # fmt: skip
READS = [(None, None), (5, 900), (PAGE_BYTES - 3, PAGE_BYTES + 3), (2 * PAGE_BYTES, None)]


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    server = FaultServer()
    yield server
    server.close()


@pytest.fixture(params=["s3", "http"])
def reading(
    request: pytest.FixtureRequest, make: Callable[..., StokerFileSystem], server: FaultServer,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[StokerFileSystem, str]:  # fmt: skip
    """A filesystem that asks the store at every open, and the object's path."""
    monkeypatch.setattr(retrying, "FIRST_PAUSE_S", 0.001)
    options: dict[str, Any] = {
        "key": "k", "secret": "s", "endpoint_url": server.url, "client_kwargs": {"region_name": "us-east-1"},
        "config_kwargs": {"read_timeout": 5, "retries": {"max_attempts": 0}},
    }  # fmt: skip
    if request.param == "http":
        options = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(sock_read=5)}}
    filesystem = make(request.param, options, rules=(Rule(freshness=Freshness.ALWAYS),))
    monkeypatch.setattr(type(filesystem.target), "retries", 1, raising=False)
    return filesystem, KEY if request.param == "s3" else f"{server.url}/{KEY}"


steps = st.lists(st.tuples(st.sampled_from(READS), st.booleans(), st.integers(0, 6)), min_size=1, max_size=4)


@given(steps=steps, faults=st.lists(st.sampled_from(FAULTS), min_size=6, max_size=40))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_faults_in_any_order(
    reading: tuple[StokerFileSystem, str], server: FaultServer, steps: list[Any], faults: list[fault_server.Fault]
) -> None:
    filesystem, path = reading
    server.objects = {f"/{KEY}": new_version()}
    server.faults[:] = faults
    for (start, end), opened, changes_at in steps:
        gets = len(server.gets)
        new = new_version()
        old = server.objects[f"/{KEY}"]

        def change(first: int, new: bytes) -> None:
            if len(server.gets) == first:
                server.objects[f"/{KEY}"] = new

        server.on_get = functools.partial(change, gets + changes_at, new) if changes_at else None
        try:
            if opened:
                with filesystem.open(path) as file:
                    file.seek(start or 0)
                    found = file.read(-1 if end is None else end - (start or 0))
            else:
                found = filesystem.cat_file(path, start, end)
        except (CacheError, OSError):
            continue  # said, not returned
        finally:
            server.on_get = None
        assert found in (old[start:end], new[start:end])
