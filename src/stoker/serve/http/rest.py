"""All of the service but inference: health, metadata, figures for Prometheus, and the change of a version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker.core.errors import ConfigError, ServingError
from stoker.serve.http.door import OpenModel
from stoker.serve.models.served_model import ServedModel, SwapOutcome, SwapPlan
from stoker.serve.protocol import answers
from stoker.serve.refusals import RequestRefused
from stoker.wire.control import CONTROL_HEADER, NONCE_HEADER, ControlChallenges

SWAP_PATH = "/stoker/models/{model}/swap"
CONTROL_PATH = "/stoker/control"
STATUS_PATH = "/stoker/status"
_MAX_PLAN_BYTES = 1 << 16
_JSON = "application/json"

Metrics = Callable[[], tuple[bytes, str]]
"""Text for Prometheus, and its content type."""


class Rest:
    """Routes of Starlette over the models of a service.

    Args:
        models: by name.
        version: of stoker.
        metrics: makes the text for Prometheus.
        control: file with the secret that a change of version must prove to know: a new version is a program, and on
            one machine all users reach the service.
    """

    def __init__(self, models: Mapping[str, OpenModel], version: str, metrics: Metrics, control: Path) -> None:
        self.is_draining = False
        """Whether the service takes no more requests: it is not ready, though it lives."""
        self._models = models
        self._version = version
        self._metrics = metrics
        self._control = control
        self._challenges = ControlChallenges(control)
        model = "/v2/models/{model}"
        routes: list[tuple[str, Callable[[Request], Awaitable[Response]], str]] = [
            ("/v2", self._server, "GET"),
            ("/v2/health/live", self._live, "GET"),
            ("/v2/health/ready", self._ready, "GET"),
            *((f"{each}/ready", self._model_ready, "GET") for each in (model, f"{model}/versions/{{version}}")),
            *((each, self._model, "GET") for each in (model, f"{model}/versions/{{version}}")),
            ("/metrics", self._prometheus, "GET"),
            (STATUS_PATH, self._status, "GET"),
            (CONTROL_PATH, self._where_control, "GET"),
            (SWAP_PATH, self._swap, "POST"),
        ]
        self.application = Starlette(
            routes=[Route(path, endpoint, methods=[method]) for path, endpoint, method in routes],
            exception_handlers={404: _unknown, 405: _wrong_method},
        )
        self.application.router.redirect_slashes = False

    async def _server(self, _: Request) -> Response:
        return _json({"name": "stoker", "version": self._version, "extensions": list(answers.EXTENSIONS)})

    async def _live(self, _: Request) -> Response:
        return _json({"live": True})

    async def _ready(self, _: Request) -> Response:
        ready = not self.is_draining and all(_is_ready(each.model) for each in self._models.values())
        return _json({"ready": ready}, 200 if ready else 503)

    async def _model_ready(self, request: Request) -> Response:
        found = self._found(request)
        if isinstance(found, Response):
            return found
        version = found.model.asked(request.path_params.get("version", ""))
        ready = not self.is_draining and version.pool.num_ready > 0
        return _json({"name": found.model.name, "ready": ready}, 200 if ready else 503)

    async def _model(self, request: Request) -> Response:
        found = self._found(request)
        if isinstance(found, Response):
            return found
        model = found.model
        interface = model.asked(request.path_params.get("version", "")).interface
        return _json(answers.metadata(model.name, [each.label for each in model.versions], interface))

    async def _prometheus(self, _: Request) -> Response:
        text, kind = self._metrics()
        return Response(text, media_type=kind)

    async def _status(self, _: Request) -> Response:
        return _json({name: status_of(opened) for name, opened in self._models.items()})

    async def _where_control(self, request: Request) -> Response:
        try:
            return _json(msgspec.to_builtins(self._challenges.challenge(request.headers.get(NONCE_HEADER, ""))))
        except ValueError as error:
            return _error(400, str(error))
        except ConfigError as error:
            return _error(403, str(error.args[0]))

    async def _swap(self, request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MAX_PLAN_BYTES:
                return _error(413, f"`body` must have at most {_MAX_PLAN_BYTES} bytes")
        try:
            header = request.headers.get(CONTROL_HEADER, "")
            known = self._challenges.accepts(header, str(request.path_params["model"]), body)
        except ConfigError as error:
            return _error(403, str(error.args[0]))
        if not known:
            return _error(
                403, f"`{CONTROL_HEADER}` must prove the secret in {self._control}, as `stoker serve swap` does"
            )
        found = self._found(request)
        if isinstance(found, Response):
            return found
        try:
            plan = msgspec.json.decode(body, type=SwapPlan)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return _error(400, f"`body` must be the plan of a change: {error}")
        if self.is_draining:
            return _error(503, "the service ends")
        try:
            outcome = await _while_asked(request, found.model, plan)
        except ServingError as error:
            return _error(503 if self.is_draining else 409, str(error.args[0]))
        return _json(msgspec.to_builtins(outcome))

    def _found(self, request: Request) -> OpenModel | Response:
        name, version = request.path_params["model"], request.path_params.get("version")
        opened = self._models.get(name)
        if opened is None:
            return _error(404, f"`{name[:80]}` must be one of {', '.join(self._models)}")
        try:
            opened.model.asked(version or "")
        except RequestRefused as refusal:
            return _error(refusal.status, str(refusal))
        return opened


async def _while_asked(request: Request, model: ServedModel, plan: SwapPlan) -> SwapOutcome:
    """What became of a change; one whose caller goes away is stopped, and none is left half made."""
    change = asyncio.ensure_future(model.swap(plan))
    gone = asyncio.ensure_future(request.receive())  # the body has been read: what comes now is the end
    try:
        await asyncio.wait({change, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not change.done():
            model.stop_change("its caller has left")
        return await asyncio.shield(change)
    finally:
        gone.cancel()


def status_of(opened: OpenModel) -> dict[str, object]:
    """What people and tests ask of a model that is served."""
    model = opened.model
    return {
        "versions": {
            each.label: {
                "processes": each.pool.pids,
                "ready_engines": each.pool.num_ready,
                "lost_engines": each.pool.lost,
                "waiting": each.policy.num_waiting,
                "pending": each.num_pending,
                "costs": each.costs,
                "trouble": each.trouble,
            }
            for each in model.versions
        },
        "answers": model.current.label,
        "outcomes": dict(opened.figures.outcomes),
        "retries": opened.figures.retries,
        "handover_s": opened.figures.handover_s / max(1, opened.figures.batches),
    }


def _is_ready(model: ServedModel) -> bool:
    return model.is_ready and model.current.pool.num_ready > 0


async def _unknown(request: Request, _: Exception) -> Response:
    """Clients of the protocol read each answer as JSON."""
    return _error(404, f"`path` must be one that this service has, got {request.url.path[:200]}")


async def _wrong_method(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is called with these alone"
    allowed = (error.headers or {}).get("Allow", "")
    words = " or ".join(sorted(allowed.split(", "))) or "another one"
    answer = _error(405, f"`method` must be {words} for {request.url.path[:200]}, got {request.method[:20]}")
    if allowed:
        answer.headers["allow"] = allowed
    return answer


def _json(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type=_JSON)


def _error(status: int, message: str) -> Response:
    return Response(answers.error(message), status, media_type=_JSON)
