"""How much a gateway's links are used, measured now and then: for people who look at the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stoker.backends.remote.brokering import LinkUse
from stoker.backends.remote.gateway.link import Link

_EVERY_S = 2.0


class LinkMeter:
    """Bytes that came from each host since the last measurement."""

    def __init__(self) -> None:
        self._measured_s = float("-inf")
        self._received: dict[Link, int] = {}
        self._use: tuple[LinkUse, ...] = ()

    def look(self, now_s: float, links: Iterable[Link]) -> tuple[LinkUse, ...]:
        """Use of the hosts' links; the same again until the next measurement is due."""
        lasted_s = now_s - self._measured_s
        if lasted_s < _EVERY_S:
            return self._use
        received = {link: link.channel.num_received for link in links if link.channel is not None}
        workers, came = Counter[str](), Counter[str]()
        for link, num_bytes in received.items():
            workers[link.address] += link.num_workers
            came[link.address] += num_bytes - self._received.get(link, num_bytes)
        self._measured_s, self._received = now_s, received
        self._use = tuple(
            LinkUse(address=address, workers=workers[address], bytes_per_s=round(came[address] / lasted_s))
            for address in sorted(workers)
        )
        return self._use
