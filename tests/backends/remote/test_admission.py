"""Who serves whom: the same software, the same bytes, the same secret; else one line with the value and the remedy."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from stoker.backends import shipping
from stoker.backends.remote.admission import why_not_called, why_not_installed, why_not_same
from stoker.backends.remote.messages import FRAMING, Caller, HostOffer, RemoteKind, envelope
from stoker.feed.transport.messages import MessageKind
from stoker.wire import greeting
from stoker.wire.greeting import GreetingKind
from stoker.wire.secrets import create_secret
from tests.backends.remote.hosts import Host, Slow, Taking, gateways, opened
from tests.faults.serve import Record, loader_of, served
from tests.waiting import await_that

CALLER = Caller("0.1.0", "cpython 3.11", "x86_64")
HERE = "ONLY_WHERE_THE_PROGRAM_IS"
LATER = 800
"""A sample that one worker reaches after 16 seconds: by then a host has loaded the program, on a busy machine too."""


@pytest.mark.parametrize(
    ("host", "why"),
    [
        (HostOffer("0.1.0", "cpython 3.11", "x86_64", 2.0), ""),
        (
            HostOffer("0.2.0", "cpython 3.11", "x86_64", 2.0),
            "has stoker 0.2.0, the program 0.1.0; there: pip install stoker==0.1.0",
        ),
        (
            HostOffer("0.1.0", "cpython 3.12", "x86_64", 2.0),
            "has cpython 3.12, the program cpython 3.11; start the host with that Python",
        ),
        (
            HostOffer("0.1.0", "cpython 3.11", "aarch64", 2.0),
            "has aarch64 processors, the program's machine x86_64; name another host",
        ),
    ],
)
def test_a_host_of_another_kind(host: HostOffer, why: str) -> None:
    assert why_not_called(CALLER, host) == why


def test_packages_that_differ_are_named_with_the_line_that_installs_them() -> None:
    needed = {"torch": "2.6.0", "pillow": "11.0", "numpy": "2.4"}
    assert why_not_installed(needed, {"torch": "2.5.1", "numpy": "2.4", "pillow": None}) == (
        "has torch 2.5.1 (the program: 2.6.0), pillow not at all (the program: 11.0); "
        "there: pip install torch==2.6.0 pillow==11.0, or for this run: --remote-pip 'torch==2.6.0 pillow==11.0'"
    )
    assert why_not_installed(needed, {**needed, "flask": "3"}) == ""


def test_items_that_differ() -> None:
    assert why_not_same(3, b"a" * 16, b"a" * 16) == ""
    assert "other bytes of item 3 (62626262, the program 61616161)" in why_not_same(3, b"a" * 16, b"b" * 16)
    assert why_not_same(3, b"a" * 16, b"raises KeyError ").startswith("raises KeyError at item 3; make its files")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with opened(tmp_path_factory.mktemp("host")) as host:
        yield host


class Different(Slow):
    """Its samples depend on an environment."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + float(os.environ.get(HERE, "1")) - float(os.environ.get(HERE, "0"))


class Fails(Slow):
    """Some of its samples can't be made elsewhere."""

    def __init__(self, first: int) -> None:
        super().__init__(seconds=0.02)
        self.first = first

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.first:
            os.environ[HERE]
        return super().__getitem__(index)


class FailsOnce(Slow):
    """One of its samples can't be made elsewhere."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 400:
            os.environ[HERE]
        return super().__getitem__(index)


class HasALock(Slow):
    """Can't be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def refused(dataset: Any, said: Callable[[Record], Any], **settings: Any) -> str:
    """What is said of a host that does not serve; the program gets its batches from here."""
    with served(**settings) as record:
        taking = Taking(loader_of(dataset, num_workers=1))
        while not (found := said(record)):
            taking.take(1)
        taking.take(20)
    assert not record.lost() or all(lost.place for lost in record.lost())
    assert not gateways()
    return found


def first_notice(record: Record) -> str:
    return next(iter(record.notices()), "")


class Stream(torch.utils.data.IterableDataset[int]):
    """A stream."""

    def __iter__(self) -> Iterator[int]:
        yield from range(40)


@pytest.mark.integration
def test_a_loader_that_never_leaves_says_why(tmp_path: Path) -> None:
    create_secret(tmp_path / "secret")
    settings = {"backend": "static:127.0.0.1:1", "remote_secret_file": str(tmp_path / "secret")}
    with served(**settings) as record:
        loader = loader_of(Stream(), num_workers=1)
        for _ in range(2):
            assert len(list(loader)) == 10
    reason = "it is pinned: an iterable dataset has one shard for each of its 1 declared worker"
    assert record.notices() == [f"this loader's workers stay on this machine: {reason}"]


@pytest.mark.integration
class TestLive:
    @pytest.mark.slow("starts a host first")
    def test_other_packages(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shipping, "_versions", lambda: {"torch": "0.1"})
        said = refused(Slow(), first_notice, **host.settings)
        found = f"it has torch {torch.__version__} (the program: 0.1); there: pip install torch==0.1"
        found += ", or for this run: --remote-pip 'torch==0.1'"
        assert said == f"`{host.address}` gets no data workers: {found}"

    @pytest.mark.slow("the host loads another program")
    def test_other_bytes(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(HERE, "7")
        assert "it makes other bytes of item" in refused(Different(), first_notice, **host.settings)

    @pytest.mark.slow("the host loads another program")
    def test_samples_that_cannot_be_made_there(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(HERE, "7")
        said = refused(Fails(0), first_notice, **host.settings)
        assert "it raises KeyError at item 0; make its files readable there" in said

    def test_those_of_the_programs_environment_can_where_it_goes_along(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(HERE, "7")
        with served(**host.settings, remote_env=HERE) as record:
            taking = Taking(loader_of(Fails(0), num_workers=1))
            taking.until_away()
            del taking.iterator
        assert not [text for text in record.notices() if "KeyError" in text]

    @pytest.mark.slow("the host loads another program, and some hundred samples come first")
    def test_a_sample_that_fails_there_later_is_made_here(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(HERE, "7")
        said = refused(Fails(LATER), first_notice, **host.settings)
        assert "raised there: KeyError" in said
        assert said.endswith("it is made here")

    @pytest.mark.slow("the host loads another program, and some hundred samples come first")
    def test_a_machine_at_which_all_fail_gets_no_more(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_more(record: Record) -> str:
            return next((text for text in record.notices() if "gets no data workers" in text), "")

        monkeypatch.setenv(HERE, "7")
        said = refused(Fails(LATER), no_more, **host.settings)
        assert "it makes no item any more: item" in said

    @pytest.mark.slow("some hundred samples come first")
    def test_one_sample_that_fails_there_costs_nothing_but_itself(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(HERE, "7")
        with served(**host.settings) as record:
            taking = Taking(loader_of(FailsOnce(), num_workers=1))
            taking.until_away()
            taking.take(100)
            taking.until_away()
            assert host.workers()
            del taking.iterator
        assert not record.lost()
        assert all("is made here" in text for text in record.notices())

    def test_what_cannot_be_pickled(self, host: Host) -> None:
        said = refused(HasALock(), first_notice, **host.settings)
        assert said.startswith("this loader's workers stay on this machine: it can't be pickled (TypeError: ")
        await_that("nothing is left on the host", host.is_empty)

    def test_another_secret(self, host: Host, tmp_path: Path) -> None:
        create_secret(tmp_path / "other")
        settings = {**host.settings, "remote_secret_file": str(tmp_path / "other")}
        said = refused(Slow(), first_notice, **settings)
        assert f"`{host.address}` can't be used now: `peer` refused: the secret differs; use a copy of " in said
        assert "is refused: `client` refused: the secret differs" in host.said

    def test_nobody_there(self, host: Host) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        said = refused(Slow(), first_notice, **{**host.settings, "backend": f"static:{address}"})
        assert said.startswith(f"`{address}` can't be used now: `tcp://{address}` does not accept a connection")


class Bomb:
    """Makes a file where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.mark.integration
@pytest.mark.parametrize("proves", [False, True])
def test_nothing_is_unpickled_before_both_have_proven_the_secret(host: Host, tmp_path: Path, proves: bool) -> None:
    """Frames of the workers behind a greeting that is not one, or without one."""
    bomb = pickle.dumps(Bomb(str(tmp_path / "unpickled")))
    name, _, port = host.address.rpartition(":")
    with socket.create_connection((name, int(port))) as sock:
        if proves:
            hello = msgspec.msgpack.encode(greeting.Opening("default", bytes(32), b"certificate"))
            sock.sendall(greeting.FRAMING.pack(GreetingKind.HELLO, len(hello), 0) + hello)
            sock.recv(4096)
            sock.sendall(greeting.FRAMING.pack(GreetingKind.PROOF, 32, 0) + bytes(32))
        tell = envelope(0, MessageKind.ITERATION, bomb)
        sock.sendall(FRAMING.pack(RemoteKind.SPAWN, 8, 0) + bytes(8))
        with contextlib.suppress(ConnectionError):  # it closes with bytes that it has not read
            sock.sendall(FRAMING.pack(RemoteKind.TELL, len(tell), 0) + tell)
            while sock.recv(4096):
                pass
    await_that("its process ends", host.is_empty)
    assert not (tmp_path / "unpickled").exists()
