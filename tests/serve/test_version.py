"""Which engine gets which requests, with the engines played by the test: no process, and every message by hand."""

from __future__ import annotations

import asyncio
import math

import pytest

from tests.serve.played import Asked, PlayedModel, played_version, turns


async def held_back(costs_s: float, end: str) -> None:
    model = PlayedModel()
    version = played_version("test", model)
    starting = asyncio.ensure_future(version.start())
    engine = await model.engine(costs_s)
    await starting
    first = Asked()
    version.submit(first)
    assert await engine.samples() == [1]

    # Four fill a batch, until one is dropped: the rest stays, whether the engine should have ended or not.
    rest = [Asked(deadline_s) for deadline_s in (0.0, math.inf, math.inf, math.inf)]
    for each in rest:
        version.submit(each)
    assert await engine.samples() == [1]
    assert [each.became for each in rest] == ["dropped", "waits", "waits", "waits"]

    if end == "lost":
        engine.channel.close()
        engine = await model.engine(costs_s)
        assert await engine.samples() == [1]  # what may have ended the other runs alone
    getattr(engine, "broken" if end == "broken" else "done")()
    assert await engine.samples() == [3]
    engine.done()
    await version.drained()
    assert first.became == ("failed" if end == "broken" else "answered")
    assert [each.became for each in rest] == ["dropped", "answered", "answered", "answered"]

    # One that is full does not wait for the engine.
    more = [Asked() for _ in range(5)]
    version.submit(more[0])
    assert await engine.samples() == [1]
    for each in more[1:]:
        version.submit(each)
    assert await engine.samples() == [1, 4]
    engine.done()
    engine.done()
    await version.drained()
    assert {each.became for each in more} == {"answered"}
    await version.close()
    engine.channel.close()
    model.close()


@pytest.mark.parametrize("end", ["done", "broken", "lost"])
@pytest.mark.parametrize("costs_s", [1e-9, 100.0], ids=["late", "punctual"])
def test_what_an_engine_that_computes_does_not_get_runs_once_it_ends(costs_s: float, end: str) -> None:
    asyncio.run(asyncio.wait_for(held_back(costs_s, end), 30.0))


async def not_loaded_again() -> None:
    model = PlayedModel()
    version = played_version("test", model)
    starting = asyncio.ensure_future(version.start())
    engine = await model.engine(1e-3)
    await starting
    items = [Asked(), Asked()]
    version.submit(items[0])
    assert await engine.samples() == [1]
    version.submit(items[1])
    model.trouble = "its source `m` is gone"
    model.close()
    engine.channel.close()
    while items[1].became == "waits":
        await turns()
    items.append(Asked())
    version.submit(items[2])
    assert [each.became for each in items] == ["refused"] * 3
    assert {each.reason for each in items} == {"503 `test`: its source `m` is gone"}
    assert version.policy.num_waiting == version.num_pending == 0
    assert model.known == [b"", b"a source"]
    await version.close()
    model.close()


def test_requests_do_not_wait_for_a_model_that_is_not_loaded_again() -> None:
    asyncio.run(asyncio.wait_for(not_loaded_again(), 30.0))


def test_a_version_that_has_not_started_has_nobody_to_tell() -> None:
    """Its model does not load: the pool says so before there is a queue."""

    async def missing() -> None:
        version = played_version("test", PlayedModel())
        version.engines_missing("the model does not load")
        await version.close()

    asyncio.run(asyncio.wait_for(missing(), 30.0))
