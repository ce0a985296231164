"""Sums and copies over real sockets of loopback: right for any sizes, dtypes, blocks, orders and numbers of ranks."""

from __future__ import annotations

import os
import socket
import threading
import time

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import ExchangeError
from stoker.train.ring import meeting
from stoker.train.ring.blocks import blocks, chain_block_bytes, chunk, copied_chunks, sum_block_bytes, summed_chunks
from tests.train.ring.ranks import Ranks, Seat, ring

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.complex64)


@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 3000))
def test_chunks_and_blocks_cover_each_element_once(length: int, count: int, most: int) -> None:
    covered = [
        place
        for number in range(count)
        for ends in blocks(*chunk(length, count, number), most)
        for place in range(*ends)
    ]
    assert covered == list(range(length))


@given(st.integers(2, 12))
def test_each_chunk_is_received_when_the_rank_before_has_sent_it(count: int) -> None:
    for place in range(count):
        ours, theirs = summed_chunks(place, count), summed_chunks((place - 1) % count, count)
        assert ours == [(place - 1) % count, *theirs[:-1]]
        ours, theirs = copied_chunks(place, count), copied_chunks((place - 1) % count, count)
        assert ours == [place, *theirs[:-1]]


def test_a_rank_that_comes_late_finds_the_first_chunk_there() -> None:
    """Not the opening alone: its way, and that of the answer, would be lost in each sum."""
    with ring(2) as ranks:
        first = ranks.exchanges[0].start(torch.ones(8_000), "sum")
        engine = ranks.exchanges[1]._engine
        assert engine is not None
        waiting = engine.links["flat"].sockets()[1]
        chunk_bytes, ends_s = 4 * 4_000, time.monotonic() + 20
        while len(waiting.recv(1 << 20, socket.MSG_PEEK)) < chunk_bytes:
            assert time.monotonic() < ends_s
            time.sleep(0.01)
        second = ranks.exchanges[1].start(torch.ones(8_000), "sum")
        assert bool((first.wait() == 2).all())
        assert bool((second.wait() == 2).all())


@given(st.integers(0, 1 << 30), st.integers(2, 64), st.integers(1 << 10, 1 << 26))
def test_blocks_keep_all_links_busy(size: int, count: int, most: int) -> None:
    least = 32 << 10
    of_sum, of_chain = sum_block_bytes(size, count, most), chain_block_bytes(size, count, most)
    assert min(least, most) <= of_sum <= most
    assert min(least, most) <= of_chain <= most
    assert of_sum <= max(least, size / count / 2)
    assert (count - 2) * of_chain <= max((count - 2) * least, 0.05 * size)


@settings(max_examples=25)
@given(
    st.permutations(range(4)).flatmap(lambda order: st.tuples(st.integers(1, 4), st.just(order))),
    st.sampled_from((1 << 10, 3000, 1 << 14)),
    st.lists(st.tuples(st.integers(0, 9000), st.sampled_from(DTYPES)), min_size=1, max_size=3),
    st.integers(0, 3),
)
def test_sums_and_copies_are_right_and_alike(
    shape: tuple[int, list[int]], block_bytes: int, tensors: list[tuple[int, torch.dtype]], source: int
) -> None:
    size, order = shape[0], [place for place in shape[1] if place < shape[0]]
    source %= size
    made = torch.Generator().manual_seed(size)
    with ring(size, block_bytes=block_bytes, order=order) as ranks:
        for length, dtype in tensors:
            own = [torch.randint(0, 50, (length,), generator=made).to(dtype) for _ in range(size)]
            expected = torch.stack(own).to(torch.complex128 if dtype.is_complex else torch.float64).sum(0)
            futures = ranks.all(lambda rank, own=own: ranks.exchanges[rank].start(own[rank], "layer"))
            results = [future.wait() for future in futures]
            assert all(result is tensor for result, tensor in zip(results, own, strict=True))
            assert torch.equal(own[0].to(expected.dtype), expected)
            assert all(torch.equal(own[0], other) for other in own)
        copies = [[torch.full((length,), rank).to(dtype) for length, dtype in tensors] for rank in range(size)]
        ranks.all(lambda rank: ranks.exchanges[rank].broadcast(copies[rank], source))
        assert all((tensor == source).all() for each in copies for tensor in each)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_that_round_are_the_same_bits_on_all_ranks(dtype: torch.dtype) -> None:
    with ring(3, block_bytes=4096) as ranks:
        own = [torch.randn(10_007, generator=torch.Generator().manual_seed(rank)).to(dtype) for rank in range(3)]
        ranks.all(lambda rank: ranks.exchanges[rank].all_reduce(own[rank]))
    assert torch.equal(own[0], own[1])
    assert torch.equal(own[0], own[2])


def test_tensors_of_any_layout() -> None:
    with ring(2) as ranks:
        own = [torch.arange(12.0).reshape(3, 4).t() + rank for rank in range(2)]
        ranks.all(lambda rank: ranks.exchanges[rank].all_reduce(own[rank]))
        assert torch.equal(own[1], 2 * torch.arange(12.0).reshape(3, 4).t() + 1)
        copied = [torch.full((4, 3), float(rank)).t() for rank in range(2)]
        ranks.all(lambda rank: ranks.exchanges[rank].broadcast([copied[rank]], 1))
        assert (copied[0] == 1).all()


def test_what_cannot_be_summed_is_refused() -> None:
    with ring(1) as ranks:
        for tensor in (torch.zeros(2, 2), torch.zeros(4)[::2], torch.zeros(2, dtype=torch.bool)):
            with pytest.raises(ValueError, match="`tensor` must be"):
                ranks.exchanges[0].start(tensor, "x")
        with pytest.raises(ValueError, match="`source` must be 0 to 0, got 1"):
            ranks.exchanges[0].broadcast([], 1)


def test_ranks_that_exchange_different_things_hear_which() -> None:
    with ring(3, timeout_s=10) as ranks:
        waiting = ranks.all(lambda rank: ranks.exchanges[rank].start(torch.ones(10), "head" if rank == 1 else "body"))
        for future in waiting:
            with pytest.raises(ExchangeError, match=r"exchanges sum 1, `\w+` of 10 float32"):
                future.wait()


def test_a_rank_that_leaves_is_named_with_layer_and_step() -> None:
    with ring(4, timeout_s=10, numbers=(10, 11, 12, 13)) as ranks:
        ranks.exchanges[2].close()
        for exchange in ranks.exchanges:
            exchange.step = 7
        waiting = {rank: ranks.exchanges[rank].start(torch.ones(10), "head") for rank in (0, 1, 3)}
        for future in waiting.values():
            with pytest.raises(
                ExchangeError, match="`rank 12` has left, in the exchange of 'head' at step 7"
            ) as caught:
                future.wait()
            assert caught.value.fields == {"rank": 12, "layer": "head", "step": 7}
        with pytest.raises(ExchangeError, match="`late` must be exchanged before the exchange is closed"):
            ranks.exchanges[2].start(torch.ones(1), "late").wait()


def test_a_rank_that_does_not_come_is_named_within_the_timeout() -> None:
    with ring(4, timeout_s=3.0) as ranks:
        begun = time.monotonic()
        waiting = [ranks.exchanges[rank].start(torch.ones(10), "head") for rank in (0, 1, 3)]
        for future in waiting:
            with pytest.raises(ExchangeError, match="`rank 2` did not come to the exchange"):
                future.wait()
        assert time.monotonic() - begun >= 2.0


def test_nothing_is_left_behind() -> None:
    with ring(3) as ranks:  # what is made once
        ranks.all(lambda rank: ranks.exchanges[rank].all_reduce(torch.ones(1)))
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(3):
        with ring(3) as ranks:
            ranks.all(lambda rank: ranks.exchanges[rank].all_reduce(torch.ones(1000)))
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_a_thousand_sums_take_no_more_descriptors_or_threads() -> None:
    with ring(2) as ranks:
        own = [torch.ones(500) for _ in range(2)]  # which overflow, as gradients may
        ranks.all(lambda rank: ranks.exchanges[rank].all_reduce(own[rank]))
        before = len(os.listdir("/proc/self/fd")), threading.active_count()
        for _ in range(1000):
            ranks.all(lambda rank: ranks.exchanges[rank].all_reduce(own[rank]))
        assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_a_forgotten_exchange_is_closed() -> None:
    ranks = Ranks(2)
    before = threading.active_count()
    ranks.exchanges.clear()
    deadline = time.monotonic() + 10
    while threading.active_count() >= before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() < before
    ranks._pool.shutdown()


def test_a_stranger_without_the_secret_is_refused_and_the_ranks_connect() -> None:
    """It connects to each listening socket first, says nothing, says nonsense, or proves another secret."""
    strangers: list[socket.socket] = []

    class Watched(Seat):
        def gather(self, data: bytes) -> list[bytes]:
            rows = super().gather(data)
            if self.rank == 0 and not strangers:
                for row in rows:
                    address = msgspec.msgpack.decode(row, type=meeting.RankPresence).address
                    host, port = address.removeprefix("tcp://").split(":")
                    for said in (b"", b"GET / HTTP/1.0\r\n\r\n"):
                        strangers.append(socket.create_connection((host, int(port))))
                        strangers[-1].sendall(said)
                    strangers.append(_impostor(host, int(port)))
            return rows

    with ring(3, seat=Watched) as ranks:
        own = [torch.ones(5) for _ in range(3)]
        ranks.all(lambda rank: ranks.exchanges[rank].all_reduce(own[rank]))
        assert all((tensor == 3).all() for tensor in own)
    for stranger in strangers:
        stranger.close()


def _impostor(host: str, port: int) -> socket.socket:
    from stoker.wire import greeting
    from stoker.wire.secrets import Secrets

    sock = socket.create_connection((host, port))

    def try_it() -> None:
        # Once all ranks are there, their doors close, before an answer if there was no time for one.
        with pytest.raises(Exception, match=r"refused|closed the connection"):
            greeting.introduce(sock, Secrets({"default": bytes(32)}), b"card", "stoker-exchange-1", 5)

    threading.Thread(target=try_it, daemon=True).start()
    return sock


def test_another_version_is_named_on_all_ranks() -> None:
    class Newer(Seat):
        def gather(self, data: bytes) -> list[bytes]:
            own = msgspec.msgpack.decode(data, type=meeting.RankPresence)
            stated = "0.2.0" if self.rank == 1 else "0.1.0"
            return super().gather(msgspec.msgpack.encode(msgspec.structs.replace(own, stoker=stated)))

    with pytest.raises(ExchangeError, match=r"one version on all ranks, got 0.1.0 on rank 0 and 0.2.0 on rank 1"):
        Ranks(2, seat=Newer)


def test_a_rank_without_its_interface_is_named_on_all_ranks() -> None:
    def find() -> str:
        raise ValueError("`GLOO_SOCKET_IFNAME` must name an interface with an address, got 'eth9'")

    with pytest.raises(ExchangeError, match=r"`rank 0` must listen for its neighbours, and can't: .*eth9"):
        Ranks(2, find_address=find)
