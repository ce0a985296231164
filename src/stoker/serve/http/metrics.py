"""Figures of the service for Prometheus: made when it asks, so that requests pay nothing for them."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from stoker.serve.figures import LatencyHistogram, edge_s
from stoker.serve.http.door import OpenModel

_EDGES_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class ServiceCollector(Collector):
    """Metrics of all models.

    Args:
        models: by name.
    """

    def __init__(self, models: Mapping[str, OpenModel]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Each metric with a sample a model."""
        requests = CounterMetricFamily(
            "stoker_serve_requests", "Requests by how they ended.", labels=["model", "outcome"]
        )
        times = HistogramMetricFamily(
            "stoker_serve_request_seconds", "From arrival to answer, of answered requests.", labels=["model"]
        )
        batches = CounterMetricFamily("stoker_serve_batches", "Batches that engines computed.", labels=["model"])
        samples = CounterMetricFamily("stoker_serve_samples", "Samples of these batches.", labels=["model"])
        compute = CounterMetricFamily("stoker_serve_compute_seconds", "Seconds in engines.", labels=["model"])
        handover = CounterMetricFamily(
            "stoker_serve_handover_seconds", "Seconds of batches between queue and engines.", labels=["model"]
        )
        retries = CounterMetricFamily(
            "stoker_serve_retries", "Requests that lost their engine and ran again.", labels=["model"]
        )
        waiting = GaugeMetricFamily("stoker_serve_waiting", "Requests that wait.", labels=["model", "version"])
        engines = GaugeMetricFamily("stoker_serve_engines", "Engines that are warm.", labels=["model", "version"])
        for name, opened in self._models.items():
            seen = opened.figures
            for outcome, count in seen.outcomes.items():
                requests.add_metric([name, outcome], count)
            times.add_metric([name], _buckets(seen.times), seen.times.sum_s)
            for family, value in (
                (batches, seen.batches), (samples, seen.batched_samples), (compute, seen.compute_s),
                (handover, seen.handover_s),
                (retries, seen.retries),
            ):  # fmt: skip
                family.add_metric([name], value)
            for version in opened.model.versions:
                waiting.add_metric([name, version.label], version.policy.num_waiting)
                engines.add_metric([name, version.label], version.pool.num_ready)
        yield from (requests, times, batches, samples, compute, handover, retries, waiting, engines)


def _buckets(times: LatencyHistogram) -> list[tuple[str, float]]:
    """Cumulative counts up to each edge of :data:`_EDGES_S`."""
    counts = [0] * (len(_EDGES_S) + 1)
    for place, count in enumerate(times.counts):
        if count:
            counts[bisect.bisect_left(_EDGES_S, edge_s(place) * 0.999)] += count
    found: list[tuple[str, float]] = []
    total = 0
    for edge, count in zip((*map(str, _EDGES_S), "+Inf"), counts, strict=True):
        total += count
        found.append((edge, total))
    return found


def metrics_of(models: Mapping[str, OpenModel]) -> tuple[bytes, str]:
    """The text for Prometheus, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceCollector(models))
    return generate_latest(registry), CONTENT_TYPE_LATEST
