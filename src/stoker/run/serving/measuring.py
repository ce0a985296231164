"""What a model costs on this machine, for a plan: batches on its engines, and a request at the service's front end.

The front end is measured with real requests over loopback, by the time of this process: engines and clients are others.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import socket
import sys
import time
from collections.abc import AsyncGenerator, MutableMapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import uvloop

from stoker.core.errors import ServingError
from stoker.run.serving.fetching import found_source
from stoker.run.serving.sources import ModelForm, chosen_forms
from stoker.run.serving.template import ModelTemplate
from stoker.scale.serving import CostCurve, ServingQueue, ServingRules
from stoker.serve.engine import Interface
from stoker.serve.figures import ModelFigures
from stoker.serve.http.door import ClientBounds, InferenceDoor, OpenModel, Receive, Send
from stoker.serve.http.server import Shutdown, serve_until_told
from stoker.serve.models.served_model import ServedModel
from stoker.serve.models.version import Costs, ModelVersion, VersionSettings
from stoker.serve.processes.pooled import PoolSettings
from stoker.serve.processes.probing import small_numbers
from stoker.serve.protocol.datatypes import name_of

_NAME = "planned"
_SECONDS = 0.5
"""That each form of request is sent for."""
_LEAVES_S = 10.0
"""That clients may take longer: they start, and wait for the last answers."""


@dataclass(frozen=True, kw_only=True)
class FrontCosts:
    """Seconds of a core for a request, by the form of its tensors.

    Attributes:
        json_s: numbers in JSON.
        binary_s: bytes behind the JSON.
    """

    json_s: float
    binary_s: float


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """What a model costs on this machine.

    Attributes:
        costs: of batches, on an engine alone, by the kinds of engines.
        front: of the front end's core for a request; None where that could not be measured.
        no_front: why, in words.
    """

    costs: dict[str, Costs]
    front: FrontCosts | None
    no_front: str = ""


def measured(source: str, engine: str, threads: int, max_batch: int, samples: int) -> MeasuredModel:
    """Measures engines and the front end, one after another.

    Args:
        source: of the model.
        engine: the only one, or ``auto``.
        threads: of an engine.
        max_batch: samples that run together.
        samples: of a request.

    Raises:
        ConfigError: there is no model, or none for this engine.
        ServingError: it cannot be fetched, or does not load.
    """

    async def each() -> MeasuredModel:
        found = await found_source(source, threads)
        try:
            forms = chosen_forms(found.forms, engine)
            front, why = None, ""
            costs: dict[str, Costs] = {}
            for form in forms:
                async with _started(form, max_batch) as version:
                    costs[form.engine] = version.costs
                    if front is None and not why:
                        try:
                            front = await front_costs(version, samples)
                        except ServingError as error:  # a model may not take numbers that are made up
                            why = error.args[0]
            return MeasuredModel(costs=costs, front=front, no_front=why)
        finally:
            await found.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # that of the service
        return runner.run(each())


@contextlib.asynccontextmanager
async def _started(form: ModelForm, max_batch: int) -> AsyncGenerator[ModelVersion]:
    rules = ServingRules(max_batch=max_batch)
    lost: list[str] = []
    template = ModelTemplate()
    version = ModelVersion(
        form.text, functools.partial(template.start, form),
        VersionSettings(pool=PoolSettings(engines=1, max_batch=max_batch)),
        lambda costs, engines: ServingQueue(rules, CostCurve(tuple(costs)), engines), ModelFigures(), lost.append,
    )  # fmt: skip
    try:
        await version.start()
        yield version
    finally:
        await version.close()
        template.close()


async def front_costs(version: ModelVersion, samples: int) -> FrontCosts:
    """Measures them: the door, the queue and the loop of `stoker serve run` before this version's engines.

    Args:
        version: that has started.
        samples: of a request.

    Raises:
        ServingError: the model does not answer requests of made-up numbers.
    """

    async def started(source: str, label: str) -> ModelVersion:
        return version

    async def nothing(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        raise AssertionError("only inference is asked for")

    model = ServedModel(_NAME, started, lambda _: None)
    await model.start("")
    door = InferenceDoor({_NAME: OpenModel(model, ModelFigures())}, ClientBounds(slo_s=math.inf), nothing)
    shutdown = Shutdown(lambda _: None)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as sock:
        serving = asyncio.ensure_future(serve_until_told(door, sock, 1.0, shutdown))
        try:
            port = sock.getsockname()[1]
            json_s, binary_s = [
                await _cost_s(port, inference_request(version.interface, samples, binary=binary))
                for binary in (False, True)
            ]
        finally:
            shutdown.begun.set()
            await serving
    return FrontCosts(json_s=json_s, binary_s=binary_s)


def inference_request(interface: Interface, samples: int, *, binary: bool) -> bytes:
    """A request over HTTP for :data:`_NAME`, of numbers that its model takes.

    Args:
        interface: of the model.
        samples: of the request, where the model has a batch.
        binary: whether tensors are bytes behind the JSON, those of the answer as well.
    """
    random = np.random.default_rng(0)
    inputs: list[dict[str, object]] = []
    tails: list[bytes] = []
    for spec in interface.inputs:
        array = small_numbers(spec, samples if spec.is_batched else spec.shape[0] if spec.shape else 1, random)
        given: dict[str, object] = {"name": spec.name, "shape": array.shape, "datatype": name_of(spec.dtype)}
        if binary:
            tails.append(array.tobytes())
            given["parameters"] = {"binary_data_size": array.nbytes}
        else:
            given["data"] = array.reshape(-1).tolist()
        inputs.append(given)
    head = msgspec.json.encode({"inputs": inputs, "parameters": {"binary_data_output": binary}})
    body = b"".join((head, *tails))
    lines = [f"POST /v2/models/{_NAME}/infer HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    if binary:
        lines.append(f"Inference-Header-Content-Length: {len(head)}")
    return "\r\n".join((*lines, "", "")).encode() + body


async def _cost_s(port: int, request: bytes) -> float:
    """Seconds of this process for one of many such requests at once."""
    clients = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stoker.run.serving.front_client_main", str(port), str(_SECONDS),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    begun_s = time.process_time()
    try:
        told, _ = await asyncio.wait_for(clients.communicate(request), _SECONDS + _LEAVES_S)
    except TimeoutError:
        raise ServingError(f"a request is not answered within {_LEAVES_S:g} s") from None
    finally:
        if clients.returncode is None:
            clients.kill()
            await clients.wait()
    took_s = time.process_time() - begun_s
    if clients.returncode:
        raise ServingError(told.decode(errors="replace").strip() or "clients could not be started")
    return took_s / int(told)
