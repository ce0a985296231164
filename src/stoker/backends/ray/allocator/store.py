"""Records of submitted jobs in the key-value store of Ray's head.

There, since they live exactly as long as what they name: the actors and placement groups of jobs that run. A file of
one machine would be lost with it, or outlive the cluster.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import contextlib

import msgspec
from ray.experimental import internal_kv

from stoker.backends.ray.allocator.launch import JobRecord

_PREFIX, _STARTED, _ORDER = b"job:", b"allocator", b"order"


class JobStore:
    """The records; what did not change is not written again.

    Args:
        namespace: of the allocator.
    """

    def __init__(self, namespace: str) -> None:
        self._space = namespace.encode()
        self._written: dict[int, bytes] = {}

    def is_first(self) -> bool:
        """Whether no allocator of this cluster has asked before."""
        return not internal_kv._internal_kv_put(_STARTED, b"1", overwrite=False, namespace=self._space)  # pyright: ignore[reportPrivateUsage]  # Ray has no public name for its store

    def discipline(self) -> str:
        """The order of the queue that was chosen; empty if none was."""
        return (internal_kv._internal_kv_get(_ORDER, namespace=self._space) or b"").decode()  # pyright: ignore[reportPrivateUsage]  # as above

    def choose(self, discipline: str) -> None:
        """Notes the order of the queue."""
        internal_kv._internal_kv_put(_ORDER, discipline.encode(), overwrite=True, namespace=self._space)  # pyright: ignore[reportPrivateUsage]  # as above

    def load(self) -> list[JobRecord]:
        """All records, by number; one that cannot be read, of another version, is left out."""
        found: list[JobRecord] = []
        for key in internal_kv._internal_kv_list(_PREFIX, namespace=self._space):  # pyright: ignore[reportPrivateUsage]  # Ray has no public name for its store
            data = internal_kv._internal_kv_get(key, namespace=self._space)  # pyright: ignore[reportPrivateUsage]  # as above
            with contextlib.suppress(msgspec.MsgspecError):
                record = msgspec.json.decode(data or b"", type=JobRecord)
                self._written[record.job.number] = data or b""
                found.append(record)
        return sorted(found, key=lambda record: record.job.number)

    def save(self, record: JobRecord) -> None:
        """Writes a record if it changed."""
        data = msgspec.json.encode(record)
        number = record.job.number
        if self._written.get(number) != data:
            internal_kv._internal_kv_put(_key(number), data, overwrite=True, namespace=self._space)  # pyright: ignore[reportPrivateUsage]  # as above
            self._written[number] = data

    def forget(self, number: int) -> None:
        """Removes a record."""
        internal_kv._internal_kv_del(_key(number), namespace=self._space)  # pyright: ignore[reportPrivateUsage]  # as above
        self._written.pop(number, None)


def _key(number: int) -> bytes:
    return _PREFIX + str(number).encode()
