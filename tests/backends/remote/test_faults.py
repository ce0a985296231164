"""Whatever dies: the same batches, exactly once, one loss that blames no sample, and nothing is left on any machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.backends.remote.hosts import Host, Slow, Taking, gateways, opened
from tests.faults.serve import Record, loader_of, served
from tests.waiting import await_that

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with opened(tmp_path_factory.mktemp("host")) as host:
        yield host


def harm(host: Host, then: Callable[[Taking, Record], None]) -> Record:
    """A program with workers elsewhere, to which something happens; nothing of it is left."""
    with served(**host.settings) as record:
        taking = Taking(loader_of(Slow(), num_workers=1))
        taking.until_away()
        then(taking, record)
        taking.take(60)
        del taking.iterator
    assert not gateways()
    await_that("nothing is left on the host", host.is_empty)
    assert not record.quarantined()
    return record


def test_a_worker_there(host: Host) -> None:
    def kill(taking: Taking, record: Record) -> None:
        os.kill(host.workers()[0], signal.SIGKILL)
        taking.until_away(20)

    (lost,) = harm(host, kill).lost()
    assert "SIGKILL" in lost.cause
    assert lost.place == host.address


@pytest.mark.slow("the host is called again after five seconds")
def test_its_process_there_is_one_loss_and_it_comes_back(host: Host) -> None:
    def kill(taking: Taking, record: Record) -> None:
        os.kill(host.sessions()[0], signal.SIGKILL)
        taking.until_away(20)

    lost = harm(host, kill).lost()
    assert {one.cause for one in lost} == {f"`{host.address}` is lost: it closed the connection"}


def test_one_that_stops_there(host: Host) -> None:
    def stop(taking: Taking, record: Record) -> None:
        (session,) = host.sessions()
        os.kill(session, signal.SIGSTOP)
        while not record.lost():
            taking.take(1)
        os.kill(session, signal.SIGCONT)

    assert all("silent" in lost.cause for lost in harm(host, stop).lost())


def test_the_gateway(host: Host) -> None:
    def kill(taking: Taking, record: Record) -> None:
        (gateway,) = gateways()
        os.kill(gateway, signal.SIGKILL)
        taking.until_away(20)

    assert all("gateway" in lost.cause for lost in harm(host, kill).lost())


@pytest.mark.slow("starts a host")
def test_the_host_itself(tmp_path: Path) -> None:
    with opened(tmp_path) as host:

        def kill(taking: Taking, record: Record) -> None:
            everybody = [*host.sessions(), *host.workers()]
            host.process.kill()
            host.process.wait()
            for pid in everybody:
                await_that("it dies with the host", lambda pid=pid: not os.path.exists(f"/proc/{pid}"))

        record = harm(host, kill)
    assert any("called again" in text for text in record.notices())
