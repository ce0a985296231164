"""Requests whose answer a task waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from stoker.serve.models.pending import Answering, Outputs, Pending
from stoker.serve.models.served_model import ServedModel
from stoker.serve.protocol.requests import InferRequest
from stoker.serve.refusals import RequestRefused

T = TypeVar("T")


class _Awaited(Pending, Generic[T]):
    __slots__ = ("encode", "future")

    def __init__(
        self, request: InferRequest, deadline_s: float, priority: int, encode: Callable[[Answering, Outputs], T]
    ) -> None:
        super().__init__(request, deadline_s, priority)
        self.encode = encode
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def answer(self, version: Answering, outputs: Outputs) -> None:
        if not self.future.done():
            self.future.set_result(self.encode(version, outputs))

    def refuse(self, refusal: RequestRefused) -> None:
        if not self.future.done():
            self.future.set_exception(refusal)


async def infer(
    model: ServedModel, request: InferRequest, deadline_s: float, priority: int,
    encode: Callable[[Answering, Outputs], T], *, label: str = "",
) -> T:  # fmt: skip
    """The answer, as ``encode`` made it; if the caller is cancelled, a request that waits does not run.

    Args:
        model: that is asked.
        request: of its interface.
        deadline_s: by ``time.monotonic``.
        priority: lower goes first.
        encode: makes the answer of one version and its outputs.
        label: of the version that is to answer; empty for whichever does.

    Raises:
        RequestRefused: there is none.
    """
    item = _Awaited(request, deadline_s, priority, encode)
    if label:
        model.submit_to(label, item)
    else:
        model.submit(item)
    try:
        return await item.future
    except asyncio.CancelledError:
        item.leave()
        raise
