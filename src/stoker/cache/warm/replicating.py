"""Warms the workers of a cluster: puts each page on its owner and the next workers, and verifies that it is there.

The pages do not pass through this machine. It requests one byte of each page; workers fetch the rest, the owner from
the store and the others from the owner.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from stoker.cache.cluster.client.client import PeerClient
from stoker.cache.cluster.client.range_request import PartState
from stoker.cache.cluster.membership.ring import CHUNK_PAGES, HashRing, Member
from stoker.cache.cluster.messages.frames import Flag, Reason, fits
from stoker.cache.names import ObjectName
from stoker.cache.reading.reader import Reader, kept_version
from stoker.cache.versions import Version
from stoker.cache.warm.preloading import Listing
from stoker.cache.warm.warm_plan import Account, Outcome, WarmObject, num_pieces, page_bytes, pieces_of, share_out
from stoker.core.errors import ConfigError

TIMEOUT_S = 5.0
"""Longest silence of a worker: it is long, because requests are large and no program waits."""
_BUSY_S, _BUSY_WAIT_S = 30.0, 0.1
"""How long a worker may have too much to do, and how long it is left alone each time."""


@dataclass(slots=True)
class _Object:
    item: WarmObject
    chunks_left: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    version: Version | None = None
    moved: bool = False
    end: tuple[Outcome, str] | None = None


class Replicating:
    """Warms the workers of one cluster with the objects of one store."""

    def __init__(
        self, reader: Reader, client: PeerClient, copies: int, account: Account,
        report: Callable[[int, bool], None] = lambda num_bytes, moved: None,
    ) -> None:  # fmt: skip
        """Makes no request yet.

        Args:
            reader: of the store.
            client: of the cluster.
            copies: workers that each page goes to.
            account: updated with the results.
            report: called with what was done.

        Raises:
            ConfigError: the cluster has fewer workers.
        """
        record = client.record
        members = 0 if record is None else len(record.members)
        if record is None or not 1 <= copies <= members:
            raise ConfigError(f"`--replicas` must be 1 to the number of workers in the ring ({members}), got {copies}")
        self.account = account
        self._reader, self._client, self._copies, self._report = reader, client, copies, report
        self._ring = HashRing(record)
        self._done: list[_Object] = []
        self._stop = threading.Event()

    def run(self, listing: Listing, jobs: int) -> None:
        """Makes the workers fetch what is missing; after an interruption, finishes what is in flight and raises it."""
        objects = [_Object(item, num_pieces(item.size, CHUNK_PAGES)) for item in listing.items]
        for each in objects:
            each.version = listing.versions.get(each.item.path)
        chunks = pieces_of(listing.items, CHUNK_PAGES)
        share_out(chunks, lambda chunk: self._work(objects[chunk.item], chunk.pages), jobs, self._stop)

    def check(self) -> None:
        """Checks all pages on the workers once more, and counts those that are missing."""
        with ThreadPoolExecutor(8, thread_name_prefix="stoker-check") as threads:
            for each, is_whole in zip(self._done, threads.map(self._is_whole, self._done), strict=True):
                if not is_whole:
                    self.account.evicted.add(each.item.size)

    def _work(self, each: _Object, pages: range) -> None:
        try:
            if each.end is None:
                each.end = self._bring(each, pages)
        except Exception as error:  # one object that cannot be read must not stop the others
            each.end = "failed", f"{type(error).__name__}: {error}"
        self._report(page_bytes(pages, each.item.size), each.moved)
        with each.lock:
            each.chunks_left -= 1
            is_last = each.chunks_left == 0
        if is_last:
            self._end(each)

    def _end(self, each: _Object) -> None:
        outcome, reason = each.end or ("fetched" if each.moved else "present", "")
        self.account.end(each.item, outcome, reason)
        if outcome in ("fetched", "present"):
            self._done.append(each)

    def _bring(self, each: _Object, pages: range) -> tuple[Outcome, str] | None:
        """Brings a chunk to its workers; how the object ends if that could not be done."""
        path = each.item.path
        name, (_, rule) = self._reader.name(path), self._reader.rules.of(path)
        with each.lock:
            if each.version is None:
                each.version = kept_version(self._reader.holder.get().info(path).version, rule)
            version = each.version
        if not rule.cached or not version.storable or not fits(name.namespace, path, version):
            return "uncached", ""
        # The owner first: the others take the pages from it.
        for number, member in enumerate(self._members(name, pages)):
            missing, _ = self._lacking(member, name, version, pages, Flag.ONLY_IF_CACHED)
            if missing:
                each.moved = True
                said = self._fill(member, name, version, missing, Flag.COPY if number else Flag.NONE)
                missing, reason = self._lacking(member, name, version, missing, Flag.ONLY_IF_CACHED)
                if missing:
                    return self._why(member, said or reason)
        return None

    def _fill(self, member: Member, name: ObjectName, version: Version, pages: list[int], flag: Flag) -> Reason | None:
        """Has a worker get pages; why one of them did not come, if one did not."""
        deadline = time.monotonic() + _BUSY_S
        while True:
            pages, reason = self._lacking(member, name, version, pages, flag)
            if not pages or reason is not Reason.BUSY or time.monotonic() > deadline:
                return reason
            self._stop.wait(_BUSY_WAIT_S)

    def _lacking(
        self, member: Member, name: ObjectName, version: Version, pages: range | list[int], flag: Flag
    ) -> tuple[list[int], Reason | None]:
        """Pages of which a worker sends no byte, and why it does not send the last of them."""
        parts = self._client.hold(member, name, version, pages, flag)
        lacking = [part for part in parts if part.state is not PartState.DONE]
        return [part.page for part in lacking], lacking[-1].reason if lacking else None

    def _why(self, member: Member, reason: Reason | None) -> tuple[Outcome, str]:
        if reason is None and not self._client.usable(member.id):
            return "failed", f"{member.id} does not answer"
        if reason in (None, Reason.NOT_CACHED):
            return "refused", ""  # it came, and there was no room for it
        return "failed", f"{member.id} says {reason.name.lower().replace('_', ' ')}"

    def _members(self, name: ObjectName, pages: range) -> list[Member]:
        if not pages:
            return []
        return [self._ring.members[one] for one in self._ring.owners(name, pages.start, self._copies)]

    def _is_whole(self, each: _Object) -> bool:
        name, version = self._reader.name(each.item.path), each.version
        assert version is not None
        return not any(
            self._lacking(member, name, version, pages, Flag.ONLY_IF_CACHED)[0]
            for _, pages in pieces_of([each.item], CHUNK_PAGES)
            for member in self._members(name, pages)
        )
