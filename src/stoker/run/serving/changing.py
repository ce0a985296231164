"""Tells a running service to change a version, from another process of the same user."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping

import msgspec

from stoker.core.errors import ServingError
from stoker.wire.control import CONTROL_HEADER, NONCE_HEADER, ControlChallenge, ControlProof

_TIMEOUT_S = 3600.0
"""Loading a large model takes minutes, and the trial as long as asked for."""


def change_version(url: str, model: str, plan: Mapping[str, object], token: str = "") -> dict[str, object]:
    """What became of a change of version, after it: ``version``, ``changed`` and ``reason``.

    Args:
        url: of the service.
        model: its name.
        plan: ``source``, and what `SwapPlan` has besides.
        token: of the service, where it asks for one.

    Raises:
        ServingError: the service does not answer, refuses, or is not that whose secret it names.
        ConfigError: this user cannot read the service's secret.
    """
    base = url.rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise _no_service(url, "it begins with neither http:// nor https://")
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    proof = ControlProof()
    try:
        asked = urllib.request.Request(f"{base}/stoker/control", headers=headers | {NONCE_HEADER: proof.nonce})
        challenge = msgspec.json.decode(_answer(asked, url), type=ControlChallenge)
        body = msgspec.json.encode(plan)
        headers[CONTROL_HEADER] = proof.header(challenge, model, body)
        path = f"/stoker/models/{urllib.parse.quote(model, safe='')}/swap"
        return msgspec.json.decode(
            _answer(urllib.request.Request(f"{base}{path}", body, headers), url), type=dict[str, object]
        )
    except (ValueError, msgspec.MsgspecError) as error:  # no URL, or no answer of ours
        raise _no_service(url, error) from None


def _answer(request: urllib.request.Request, url: str) -> bytes:
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        told = error.read()
        try:
            reason = msgspec.json.decode(told, type=dict[str, str])["error"]
        except (msgspec.MsgspecError, KeyError):
            reason = f"status {error.code}"
        raise ServingError(f"`{url}` refuses the change: {reason}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _no_service(url, getattr(error, "reason", error)) from None


def _no_service(url: str, reason: object) -> ServingError:
    return ServingError(f"`--url` must be that of `stoker serve run`, got {url}: {reason}")
