"""S3 and web servers that truncate, lie, ignore, refuse, stall: right bytes of the right version, or an error."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest

from stoker.cache.sources import retrying
from stoker.cache.sources.opening import SourceSpec, open_source
from stoker.cache.sources.source import Source
from stoker.cache.versions import Strength
from stoker.core.errors import SourceChangedError, SourceReadError
from tests.cache import fault_server
from tests.cache.fault_server import Fault, FaultServer

pytestmark = pytest.mark.integration

DATA = random.Random(2).randbytes(300_000)
OTHER = random.Random(3).randbytes(300_000)
READ_TIMEOUT_S = 0.5
OBJECT = "/bucket/key"


@functools.cache
def s3(server: FaultServer) -> tuple[Source, str]:
    options: dict[str, Any] = {
        "key": "k", "secret": "s", "endpoint_url": server.url, "client_kwargs": {"region_name": "us-east-1"},
        "config_kwargs": {"read_timeout": READ_TIMEOUT_S, "retries": {"max_attempts": 0}},
    }  # fmt: skip
    return open_source(SourceSpec("s3", options)), "bucket/key"


@functools.cache
def http(server: FaultServer) -> tuple[Source, str]:
    import aiohttp

    options = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(sock_read=READ_TIMEOUT_S)}}
    return open_source(SourceSpec("http", options)), f"{server.url}{OBJECT}"


@pytest.fixture(params=[s3, http], ids=["s3", "http"])
def stored(request: pytest.FixtureRequest, faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, str]:
    """A source of the server, and the path of :data:`DATA` in it."""
    monkeypatch.setattr(retrying, "FIRST_PAUSE_S", 0.001)
    faults.objects[OBJECT] = DATA
    build: Callable[[FaultServer], tuple[Source, str]] = request.param
    return build(faults)


def test_a_range_is_of_the_version_asked_for(stored: tuple[Source, str]) -> None:
    source, path = stored
    info = source.info(path)
    assert info.version.strength is Strength.ETAG
    assert info.version.size == len(DATA)
    assert source.read(path, 100, 5000, info.version) == DATA[100:5000]
    assert source.read(path, 0, len(DATA), info.version) == DATA


def test_the_first_bytes_bring_their_version(stored: tuple[Source, str]) -> None:
    source, path = stored
    info, data = source.first(path, 1000)
    assert (info.version, data) == (source.info(path).version, DATA[:1000])
    assert source.first(path, 1 << 20)[1] == DATA


def test_an_empty_object(stored: tuple[Source, str], faults: FaultServer) -> None:
    faults.objects[OBJECT] = b""
    source, path = stored
    info, data = source.first(path, 1000)
    assert (info.version.size, data) == (0, b"")


def test_a_missing_object(stored: tuple[Source, str], faults: FaultServer) -> None:
    source, path = stored
    version = source.info(path).version
    faults.objects.clear()
    with pytest.raises(SourceChangedError, match="is gone"):
        source.read(path, 0, 10, version)
    with pytest.raises(FileNotFoundError):
        source.info(path)
    with pytest.raises(FileNotFoundError):
        source.first(path, 10)


def test_a_server_that_is_down_is_not_taken_for_one_without_the_object(
    stored: tuple[Source, str], faults: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, path = stored
    monkeypatch.setattr(type(source.target), "retries", 1, raising=False)
    version = source.info(path).version
    faults.is_down = True
    for ask in (source.info, lambda path: source.first(path, 10), lambda path: source.read(path, 0, 10, version)):
        with pytest.raises(OSError, match=r".") as caught:
            ask(path)
        assert not isinstance(caught.value, FileNotFoundError)
    faults.is_down = False
    assert source.info(path).version == version


@pytest.mark.parametrize("checks_conditions", [True, False])
def test_an_overwrite_of_the_same_size(
    stored: tuple[Source, str], faults: FaultServer, checks_conditions: bool
) -> None:
    """Between the HEAD and the GET; some servers know no ``If-Match``."""
    faults.checks_conditions = checks_conditions
    source, path = stored
    version = source.info(path).version
    faults.objects[OBJECT] = OTHER
    with pytest.raises(SourceChangedError):
        source.read(path, 0, 10, version)


@pytest.mark.parametrize("new", [OTHER[:1000], None])
def test_an_object_that_got_shorter_or_went(stored: tuple[Source, str], faults: FaultServer, new: bytes | None) -> None:
    """Some servers look at the range before they look at ``If-Match``."""
    faults.checks_range_first = True
    source, path = stored
    version = source.info(path).version
    faults.objects = {OBJECT: new} if new is not None else {}
    with pytest.raises(SourceChangedError):
        source.read(path, 100_000, 200_000, version)


@pytest.mark.parametrize("adds", [-100_000, 100_000])
def test_a_wrong_length_is_the_servers_fault(stored: tuple[Source, str], faults: FaultServer, adds: int) -> None:
    """Its HEAD states another size under the same ETag than its GET, or has bytes that the GET has not."""
    faults.head_adds = adds
    source, path = stored
    version = source.info(path).version
    for start in (0, version.size - 1000):
        with pytest.raises(SourceReadError, match=rf"it reports {len(DATA) + adds} bytes, but returned"):
            source.read(path, start, start + 1000, version)


@pytest.mark.parametrize("fault", [
    fault_server.truncate, fault_server.send_less, fault_server.send_other_range, fault_server.ignore_range,
    fault_server.be_busy, fault_server.hang_up, fault_server.stall,
])  # fmt: skip
def test_one_wrong_answer_is_asked_again(stored: tuple[Source, str], faults: FaultServer, fault: Fault) -> None:
    source, path = stored
    version = source.info(path).version
    faults.faults.append(fault)
    assert source.read(path, 1000, 9000, version) == DATA[1000:9000]


@pytest.mark.parametrize("fault", [fault_server.truncate, fault_server.send_less, fault_server.send_other_range])
def test_wrong_answers_for_ever_are_an_error(stored: tuple[Source, str], faults: FaultServer, fault: Fault) -> None:
    source, path = stored
    version = source.info(path).version
    faults.faults += [fault] * 100
    with pytest.raises(SourceReadError, match="1000 to 9000"):
        source.read(path, 1000, 9000, version)


@pytest.mark.parametrize("fault", [fault_server.lie_about_etag, fault_server.drop_etag])
def test_bytes_without_the_versions_etag_are_not_taken(
    stored: tuple[Source, str], faults: FaultServer, fault: Fault
) -> None:
    source, path = stored
    version = source.info(path).version
    faults.faults.append(fault)
    with pytest.raises(SourceChangedError):
        source.read(path, 1000, 9000, version)


def test_a_web_server_without_ranges_is_read_from_its_start(faults: FaultServer) -> None:
    faults.knows_ranges = False
    faults.objects[OBJECT] = DATA
    source, path = http(faults)
    assert source.read(path, 1000, 9000, source.info(path).version) == DATA[1000:9000]


@pytest.mark.parametrize(("age_s", "strength"), [(60.0, Strength.DATED), (-60.0, Strength.NONE)])
def test_a_date_counts_once_it_has_settled(faults: FaultServer, age_s: float, strength: Strength) -> None:
    import time

    faults.has_etags = False
    faults.modified = time.time() - age_s
    faults.objects[OBJECT] = DATA
    for build in (s3, http):
        source, path = build(faults)
        version = source.info(path).version
        assert version.strength is strength
        assert source.read(path, 5, 10, version) == DATA[5:10]
    faults.modified -= 10
    with pytest.raises(SourceChangedError):
        source.read(path, 5, 10, version)
