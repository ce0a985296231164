"""A ring, and the owners of the chunks that were asked for: the same few are asked for again and again."""

from __future__ import annotations

from dataclasses import dataclass, field

from stoker.cache.cluster.membership.hot_chunks import MOST_COPIES
from stoker.cache.cluster.membership.ring import CHUNK_PAGES, HashRing, Member
from stoker.cache.names import ObjectName

_OWNERS_KEPT = 4096
_COUNT = MOST_COPIES + 2
"""Copies, and one or two for when some are lost."""


@dataclass(slots=True)
class OwnerCache:
    """Remembers owners as long as the ring holds.

    Attributes:
        ring: that holds.
        owners: by namespace, path and chunk.
    """

    ring: HashRing
    owners: dict[tuple[str, str, int], list[Member]] = field(default_factory=dict[tuple[str, str, int], list[Member]])

    def owners_of(self, name: ObjectName, page: int) -> list[Member]:
        """The owner of a page and those that follow it."""
        chunk = (name.namespace, name.path, page // CHUNK_PAGES)
        found = self.owners.get(chunk)
        if found is None:
            if len(self.owners) >= _OWNERS_KEPT:
                self.owners.clear()
            found = [self.ring.members[one] for one in self.ring.owners(name, page, _COUNT)]
            self.owners[chunk] = found
        return found
