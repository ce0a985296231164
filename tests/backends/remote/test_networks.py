"""Two machines in network namespaces: a link that is cut without a word, and one that is slow (`tc tbf`)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.support.nodes import HostOn, NoNamespaces, machines
from stoker.wire.secrets import create_secret
from tests.backends.remote.hosts import Slow, Taking
from tests.faults.harness import below, named
from tests.faults.serve import loader_of, served
from tests.waiting import await_that

FAST_MBIT, SLOW_MBIT = 200.0, 8.0
WIDE = 40_000
"""Numbers a sample: 0.64 MB a batch, of which the slow link carries 1.6 a second."""


class Wide(Slow):
    """Samples that a slow link carries few of."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index)[:1].repeat(WIDE)


class WideTaking(Taking):
    """Takes batches of :class:`Wide`."""

    def take(self, count: int) -> None:
        for _ in range(count):
            batch = next(self.iterator)
            wanted = torch.arange(4 * self.taken, 4 * self.taken + 4, dtype=torch.float32)
            assert torch.equal(batch, wanted[:, None].expand(4, WIDE))
            self.taken += 1


@pytest.mark.integration
@pytest.mark.exhaustive
@pytest.mark.timeout(150)
@pytest.mark.slow("a cut link is found by silence on both sides, and the machine is called again")
def test_a_partition_and_a_slow_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    create_secret(secret)
    try:
        with (
            machines([FAST_MBIT, SLOW_MBIT]) as (fast, slow),
            HostOn(fast, secret, 2) as first,
            HostOn(slow, secret, 2) as second,
        ):
            backend = f"static:{first.address},{second.address}"
            with served(backend=backend, remote_secret_file=str(secret), workers=1, remote_workers=4) as record:
                taking = WideTaking(loader_of(Wide(), num_workers=1))
                for host in (first, second):
                    await_that("both have workers", lambda host=host: taking.take(1) or workers(host), 60)
                taking.until_away(60)
                assert not record.lost(), "a link that takes most of a second for a batch is not silent"
                fast.cut()
                await_that("it is lost", lambda: taking.take(1) or record.lost(), 30)
                assert {lost.place for lost in record.lost()} == {first.address}
                assert all("silent" in lost.cause for lost in record.lost())
                await_that("the machine behind it ends its workers", lambda: taking.take(1) or not workers(first))
                fast.mend()
                await_that("it is called again", lambda: taking.take(1) or workers(first), 60)
                assert not record.quarantined()
                del taking.iterator
            for host in (first, second):
                await_that("nothing is left there", lambda host=host: not below(host.process.pid))
    except NoNamespaces as error:
        pytest.skip(f"needs network namespaces: {error}")


def workers(host: HostOn) -> list[int]:
    """Data workers on a machine."""
    return named("stoker_worker", below(host.process.pid))
