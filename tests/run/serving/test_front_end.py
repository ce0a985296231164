"""The front end of a service in a plan: how many services, what it takes of real ones, and requests of every type."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.cli.main import main
from stoker.deploy.package.folder import write_package
from stoker.run.serving.measuring import inference_request
from stoker.run.serving.planning import Demand, Planned, plan, services_for
from stoker.serve.engine import ANY, Interface, TensorSpec
from stoker.serve.protocol.datatypes import DTYPES
from stoker.serve.protocol.requests import RequestParser
from stoker.sim.serving import Arrival, poisson
from tests.deploy.test_package import small

COSTS = ["serve", "plan", "--costs", "1=1ms,32=4ms", "--p99", "20ms"]


def planned(rate: float, front_s: float, arrivals: Sequence[Arrival] | None = None, most: int = 32) -> Planned:
    """Engines take 1 ms for one sample, and 4 ms for 32; 20 ms are promised."""
    return plan("int", ((1, 1e-3), (32, 4e-3)), Demand(rate=rate, p99_s=0.02), most, arrivals, front_s)


@settings(max_examples=10, deadline=None)
@given(st.floats(1e-6, 2e-3), st.floats(0.1, 5.0))
def test_services_are_the_least_that_keep_up(front_s: float, load: float) -> None:
    """Requests at equal distances never wait: the share of the core alone decides."""
    arrivals = [Arrival(at * front_s / load) for at in range(700)]
    found = planned(load / front_s, front_s, arrivals, most=64)
    assert found.services == math.ceil(load / 0.7)


def test_what_comes_at_once_needs_more_services() -> None:
    """Bursts of 100 requests of 1 ms at 99 of 100, where 20 ms are allowed: 5 services have 20 of each."""
    bursts = [Arrival(second) for second in np.repeat(np.arange(10.0), 100)]

    def shares(services: int) -> list[Sequence[Arrival]]:
        return [bursts[first::services] for first in range(services)]

    assert services_for(shares, 1, 64, 1e-3, allowed_s=0.02) == 5
    assert services_for(shares, 1, 4, 1e-3, allowed_s=0.02) == 4
    assert services_for(shares, 1, 64, 0.0, allowed_s=0.02) == 1
    assert services_for(shares, 1, 64, 0.03, allowed_s=0.02) == 1


@pytest.mark.parametrize("front_s", [3.9e-3, 4e-3, 5e-3, 8e-3])
def test_a_front_end_that_takes_long_needs_few_more_services(front_s: float) -> None:
    """At 30 % of its core, requests wait now and then: what is left of the promise is there for that."""
    found = planned(0.3 / front_s, front_s)
    assert found.count == 1
    assert found.services <= 2


def test_every_share_of_a_trace_is_served() -> None:
    """Large requests and small ones in turn: one of two services has all large ones."""
    arrivals = [Arrival(at / 1000.0, 32 if at % 2 else 1) for at in range(4000)]
    found = planned(1000.0, 0.9e-3, arrivals)
    assert (found.services, found.count, found.requests) == (2, 2, 4000)
    assert len(found.trace.latencies_s) >= 0.999 * 4000


@pytest.mark.parametrize(
    ("front_s", "arrivals", "reason"),
    [
        (0.025, None, "a request takes 25.0 ms of the front end and 1.00 ms of an engine, together more than"),
        (0.01, [Arrival(0.0), Arrival(1e-3), Arrival(2e-3)], "a trace of 3 requests is too short for more services"),
    ],
)
def test_a_front_end_that_does_not_do_is_the_reason(
    front_s: float, arrivals: list[Arrival] | None, reason: str
) -> None:  # fmt: skip
    found = planned(2.0 if arrivals is None else 1000.0, front_s, arrivals)
    assert found.count is None
    assert reason in found.reason


def test_a_plan_divides_what_one_front_end_cannot_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COSTS, "--rate", "10000"]) == 0
    told = capsys.readouterr().out
    assert "20.0 ms: 2 engines, as given" in told
    assert "is not counted: none is measured without MODEL; give --front TIME" in told
    assert main([*COSTS, "--rate", "10000", "--front", "200us"]) == 0
    told = capsys.readouterr().out
    assert "20.0 ms: 3 services with 1 engine each, as given" in told
    assert "takes 200 us of its core for a request (--front): 5,000 requests/s at most" in told


def test_a_trace_goes_to_services_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "arrivals"
    path.write_text("".join(f"{each.at_s}\n" for each in poisson(10_000.0, 3000)))
    assert main([*COSTS, "--arrivals", str(path), "--front", "200us", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["services"], one["requests"]) == (3, 3000)
    assert one["front_s"] == pytest.approx(2e-4)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("name", DTYPES)
def test_requests_are_what_the_service_reads(name: str, binary: bool) -> None:
    dtype = DTYPES[name]
    values = (0, 7) if dtype.kind in "iu" else None
    taken = (TensorSpec("x", dtype, (ANY, 3, ANY), values), TensorSpec("at", np.dtype("<i8"), (ANY,)))
    interface = Interface(taken, (TensorSpec("y", np.dtype("<f4"), (ANY,)),), "test")
    head, body = inference_request(interface, 5, binary=binary).split(b"\r\n\r\n", 1)
    lengths = dict(line.split(b": ") for line in head.split(b"\r\n")[1:])
    assert int(lengths[b"Content-Length"]) == len(body)
    found = RequestParser(interface, 1024).parse(body, int(lengths.get(b"Inference-Header-Content-Length", len(body))))
    assert [(each.shape, each.dtype) for each in found.inputs] == [((5, 3, 1), dtype), ((5,), np.dtype("<i8"))]
    assert found.samples == 5
    assert found.outputs == [("y", binary)]


@pytest.mark.integration
def test_a_model_is_measured_with_its_front_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_package(tmp_path / "p", small(), "small")
    words = ["serve", "plan", str(tmp_path / "p"), "--engine", "int", "--rate", "100", "--p99", "1s", "--json"]
    assert main(words) == 0
    (small_one,) = json.loads(capsys.readouterr().out)
    assert main([*words, "--samples", "512"]) == 0
    (large,) = json.loads(capsys.readouterr().out)
    assert 1e-5 < small_one["front_s"] < 5e-3
    assert large["front_s"] > 1.5 * small_one["front_s"]  # a thousand numbers to read in place of two
    assert small_one["services"] == large["services"] == 1
