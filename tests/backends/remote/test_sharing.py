"""A host loads a program once, whoever calls: ranks of a run, and its loaders one after another."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.backends.remote.gateway.link import Link
from stoker.backends.remote.host import keeping
from stoker.backends.remote.host.keeping import ProgramClaim, called_program
from stoker.backends.remote.messages import CALL_BYTES, ProgramSetting, fingerprint_of, pack_call, unpack_call
from tests.backends.remote.hosts import Host, Slow, Taking, opened
from tests.backends.remote.test_faults import training_with
from tests.faults.harness import below, named
from tests.faults.serve import loader_of, served
from tests.waiting import await_that

pytestmark = pytest.mark.timeout(110)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with opened(tmp_path_factory.mktemp("host")) as host:
        yield host


def keepers(host: Host) -> list[int]:
    return named("stoker_program", below(host.process.pid))


def test_a_program_is_another_one_with_other_packages_or_variables() -> None:
    settings = [ProgramSetting(), ProgramSetting(packages=("one",)), ProgramSetting(environ={"A": "b"})]
    found = {fingerprint_of(parcel, setting) for parcel in (b"1", b"2") for setting in settings}
    assert len(found) == 6
    assert all(unpack_call(pack_call(fingerprint)) == fingerprint for fingerprint in found)


@pytest.mark.parametrize("begins", [b"GET / HTTP/1.1\r\n", b"", b"SRP"])
def test_a_connection_that_begins_otherwise_loses_nothing(begins: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_CALL_S", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(begins)
        assert called_program(theirs) == b""
        ours.shutdown(socket.SHUT_WR)
        assert theirs.recv(CALL_BYTES) == begins


def test_one_process_has_the_right_to_load_a_program_and_hands_it_on_by_its_end() -> None:
    claims = [ProgramClaim("test", bytes(32)) for _ in range(2)]
    assert claims[0].take()
    assert not claims[1].take()
    assert not claims[1].is_kept(), "it is not loaded yet"
    claims[0].open()
    assert claims[1].is_kept()
    claims[0].close()
    assert not claims[1].is_kept()
    assert claims[1].take()
    claims[1].close()


def test_a_host_that_takes_long_is_a_line_now_and_then() -> None:
    link = Link("b:7071", "b", b"", None, num_bytes=4 << 20, is_wanted=True, sent_bytes=1 << 20)
    link.since_s = link.progressed_s = link.pinged_s = 100.0
    said = [text for now_s in range(100, 146) if (text := link.look(float(now_s)))]
    assert said == [
        f"`b` gets data workers later: the program is on its way, 1.00 MiB of 4.00 MiB, for {seconds} s so far"
        for seconds in (10, 30)
    ]
    link.is_admitted, link.heard_s = True, 200.0
    assert link.look(200.0) == ""
    assert not link.lost


@pytest.mark.integration
@pytest.mark.slow("two programs start, and a host loads one of them")
def test_two_ranks_share_what_is_loaded(host: Host, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    program = tmp_path / "one"
    with training_with(host, program) as one, training_with(host, program) as other:
        (keeper,) = keepers(host)
        sessions = host.sessions()
        assert len(sessions) == 2
        assert set(sessions) <= set(below(keeper))
        one.kill()
        await_that("the other rank's session goes on", lambda: len(host.sessions()) == 1)
        assert keepers(host) == [keeper]
        other.kill()
    await_that("nothing is left on the host", host.is_empty)


@pytest.mark.integration
@pytest.mark.slow("a host loads a program twice")
def test_the_process_that_keeps_a_program_is_one_loss_and_another_loads_it(host: Host) -> None:
    with served(**host.settings) as record:
        taking = Taking(loader_of(Slow(), num_workers=1))
        taking.until_away()
        os.kill(keepers(host)[0], signal.SIGKILL)
        taking.until_away(20)
        assert {lost.cause for lost in record.lost()} == {f"`{host.address}` is lost: it closed the connection"}
        del taking.iterator
    await_that("nothing is left on the host", host.is_empty)
