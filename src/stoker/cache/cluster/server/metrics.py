"""A worker's figures in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

_COUNTERS = {
    "hits": "Pieces of pages that were served from this worker's store.",
    "misses": "Pieces of pages that were requested and not cached.",
    "hit_bytes": "Bytes served from this worker's store.",
    "sent_bytes": "Bytes sent to clients.",
    "requests": "Requests for ranges.",
    "refused": "Requests for paths that are not mounted or not granted.",
    "fetches": "Pages read from underlying stores.",
    "fetched_bytes": "Bytes read from underlying stores.",
    "moved": "Pages fetched from other workers: their owner, or the previous one just after the ring changed.",
    "moved_bytes": "Bytes of these.",
    "found": "Cache hits in this worker's directories, including those of processes that map them.",
    "missed": "Cache misses in this worker's directories.",
    "store_failures": "Reads of underlying stores that failed.",
    "faults": "Connections that ended by an unexpected error.",
}
_GAUGES = {
    "connections": "Open connections.",
    "clients": "Connected clients that are not workers.",
    "fetching": "Pages being fetched or waiting for it.",
    "members": "Workers in the ring.",
    "epoch": "Epoch of the ring.",
    "draining": "1 while the worker drains.",
    "uptime_s": "Seconds since the worker started.",
}


class _Worker(Collector):
    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """What the status has of each."""
        for key, text in _COUNTERS.items():
            if key in self._status:
                yield CounterMetricFamily(f"stoker_cache_{key}", text, value=float(self._status[key]))
        for key, text in _GAUGES.items():
            if key in self._status:
                name = f"stoker_cache_{key}".replace("uptime_s", "uptime_seconds")
                yield GaugeMetricFamily(name, text, value=float(self._status[key]))


def metrics_of(status: Mapping[str, Any]) -> tuple[bytes, str]:
    """A worker's status as the text, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Worker(status))
    return generate_latest(registry), CONTENT_TYPE_LATEST
