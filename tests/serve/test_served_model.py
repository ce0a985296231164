"""Which version answers which requests while a new one is tried, with the engines played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from stoker.core.errors import ServingError
from stoker.serve.models import served_model
from stoker.serve.models.served_model import ServedModel, SwapOutcome, SwapPlan
from stoker.serve.models.version import ModelVersion
from stoker.serve.refusals import RequestRefused
from tests.serve.played import Asked, PlayedEngine, PlayedModel, played_version, turns


class Trial:
    """A model whose version 1 answers, and version 2 gets every second request that names none."""

    def __init__(self, hold_s: float = 60.0, *, engines: int = 1, start_s: float = 300.0) -> None:
        self._played: list[PlayedModel] = []
        self._engines: list[PlayedEngine] = []
        self._hold_s = hold_s
        self._num_engines, self._start_s = engines, start_s
        self.served = ServedModel("m", self._make, lambda text: None)

    async def __aenter__(self) -> Trial:
        await self.served.start("old")
        self.swapping = asyncio.ensure_future(
            self.served.swap(SwapPlan(source="new", canary_frac=0.5, hold_s=self._hold_s))
        )
        while len(self.served.versions) < 2:
            await turns()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.swapping.cancel()
        await self.served.abort()
        for engine in self._engines:
            engine.channel.close()
        for model in self._played:
            model.close()

    @property
    def old(self) -> PlayedEngine:
        """The engine of version 1."""
        return self._engines[0]

    @property
    def new(self) -> PlayedEngine:
        """The engine of version 2."""
        return self._engines[1]

    def asked(self, label: str = "") -> Asked:
        """A request on its way."""
        item = Asked()
        if label:
            self.served.submit_to(label, item)
        else:
            self.served.submit(item)
        return item

    async def another(self, version: int) -> None:
        """One more engine of a version becomes warm."""
        self._engines.append(await self._played[version - 1].engine(1e-3))
        await turns()

    async def tried(self) -> Asked:
        """A request that version 2 gets as its share."""
        while True:
            item = self.asked()
            await turns()
            if await self.new.samples():
                return item
            await self.old.samples()
            self.old.done()
            await turns()

    async def _make(self, source: str, label: str) -> ModelVersion:
        model = PlayedModel()
        version = played_version(label, model, engines=self._num_engines, start_s=self._start_s)
        starting = asyncio.ensure_future(version.start())
        self._played.append(model)
        self._engines.append(await model.engine(1e-3))
        await starting
        return version


def played(test: Coroutine[Any, Any, None]) -> None:
    """Runs a test in a loop."""
    asyncio.run(asyncio.wait_for(test, 30.0))


def test_a_request_is_answered_by_the_version_that_it_names() -> None:
    async def named() -> None:
        async with Trial() as trial:
            for label, engine in (("1", trial.old), ("2", trial.new)):
                items = [trial.asked(label) for _ in range(4)]
                assert await engine.samples() == [4]
                engine.done()
                await turns()
                assert [item.answered_by for item in items] == [label] * 4
            with pytest.raises(RequestRefused, match="served as version 1 and 2, not 3") as caught:
                trial.served.asked("3")
            assert caught.value.status == 404

    played(named())


def test_what_a_version_on_trial_fails_at_has_no_answer_where_it_was_named() -> None:
    async def failed() -> None:
        async with Trial() as trial:
            item = trial.asked("2")
            assert await trial.new.samples() == [1]
            trial.new.broken()
            await turns()
            assert item.became == "failed"

    played(failed())


def test_a_new_version_answers_all_that_the_old_one_cannot() -> None:
    async def alone() -> None:
        async with Trial() as trial:
            trial.old.channel.close()
            trial.served.current.pool.trouble = "its source is gone"
            await turns()
            items = [trial.asked() for _ in range(3)]
            assert await trial.new.samples() == [3]
            trial.new.done()
            await turns()
            assert [item.answered_by for item in items] == ["2"] * 3

    played(alone())


def test_a_change_that_is_stopped_on_trial_leaves_the_version_that_answered() -> None:
    async def stopped() -> None:
        async with Trial() as trial:
            item = trial.asked("2")
            assert await trial.new.samples() == [1]
            trial.served.stop_change("its caller has left")
            with pytest.raises(ServingError, match="stopped, as its caller has left; version 1 answers as before"):
                await trial.swapping
            assert [version.label for version in trial.served.versions] == ["1"]
            trial.new.done()  # what it has begun it still answers
            await turns()
            assert item.answered_by == "2"
            trial.served.stop_change("there is none")
            again = asyncio.ensure_future(trial.served.swap(SwapPlan(source="newer", hold_s=60.0)))
            await turns()
            assert [version.label for version in trial.served.versions] == ["1", "3"]
            again.cancel()
            with pytest.raises(asyncio.CancelledError):
                await again

    played(stopped())


def test_a_change_that_is_stopped_while_it_loads_loads_no_further() -> None:
    async def stopped() -> None:
        ended: list[str] = []

        async def make(source: str, label: str) -> ModelVersion:
            if source == "old":
                return played_version(label, PlayedModel())
            try:
                await asyncio.sleep(60.0)
            finally:
                ended.append(source)
            raise AssertionError

        served = ServedModel("m", make, lambda text: None)
        old = await served.start("old")
        swapping = asyncio.ensure_future(served.swap(SwapPlan(source="new")))
        await turns()
        served.stop_change("the service ends")
        with pytest.raises(ServingError, match="the service ends; version 1 answers as before"):
            await swapping
        assert ended == ["new"]
        await old.close()

    played(stopped())


def test_what_both_versions_fail_at_says_nothing_of_the_new_one() -> None:
    """Else anyone could stop a change by one request that no version takes."""

    async def both() -> None:
        async with Trial() as trial:
            item = await trial.tried()
            trial.new.broken()
            assert await trial.old.samples() == [1]
            trial.old.broken()
            await turns()
            assert item.became == "failed"
            assert not trial.swapping.done()
            assert trial.asked("2").became == "waits"  # it is still on trial

    played(both())


def test_what_the_new_version_alone_fails_at_ends_its_trial() -> None:
    async def alone() -> None:
        async with Trial() as trial:
            item = await trial.tried()
            trial.new.broken()
            assert await trial.old.samples() == [1]
            trial.old.done()
            outcome = await trial.swapping
            assert (item.became, item.answered_by) == ("answered", "1")
            assert (outcome.version, outcome.changed) == ("1", False)
            assert "failed for 1 of" in outcome.reason

    played(alone())


def test_a_trial_ends_once_the_old_version_has_ended_with_what_the_new_one_failed_at() -> None:
    async def late() -> None:
        async with Trial(0.05) as trial:
            await trial.tried()
            trial.new.broken()
            assert await trial.old.samples() == [1]
            await asyncio.sleep(0.1)
            trial.old.done()
            assert not (await trial.swapping).changed

    played(late())


def test_what_the_old_version_has_not_answered_in_time_speaks_against_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served_model, "_LAST_S", 0.05)

    async def unanswered() -> None:
        async with Trial(0.05) as trial:
            await trial.tried()
            trial.new.broken()
            assert await trial.old.samples() == [1]
            outcome = await trial.swapping
            assert not outcome.changed
            assert outcome.reason == "version 2 failed for 1 requests that version 1 has not answered yet"

    played(unanswered())


def test_what_a_version_on_trial_fails_at_goes_before_what_waits() -> None:
    """It has waited already; a deadline without end would put it behind all others under overload."""

    async def first() -> None:
        async with Trial() as trial:
            item = await trial.tried()
            waiting = [trial.asked("1") for _ in range(12)]
            assert await trial.old.samples() == [4, 4]
            trial.new.broken()
            await turns()
            trial.old.done()
            assert await trial.old.samples() == [4, 1]
            trial.old.done()
            trial.old.done()
            await turns()
            assert item.answered_by == "1"
            assert waiting[-1].became == "waits"

    played(first())


def test_a_new_version_takes_over_once_all_its_engines_are_warm() -> None:
    async def slow() -> None:
        async with Trial(0.0, engines=2) as trial:
            await asyncio.sleep(0.15)
            assert not trial.swapping.done()
            assert trial.served.current.label == "1"
            await trial.another(2)
            assert (await trial.swapping).changed

    played(slow())


@pytest.mark.parametrize("old_engines", [1, 2])
def test_a_new_version_with_fewer_engines_than_the_old_one_does_not_take_over(old_engines: int) -> None:
    async def short() -> None:
        async with Trial(0.1, engines=2, start_s=0.15) as trial:
            if old_engines == 2:
                await trial.another(1)
            outcome = await trial.swapping
            assert outcome.changed == (old_engines == 1)
            if old_engines == 2:
                assert outcome.reason == "version 2 has 1 of 2 engines: others are not warm after 0.15 s"

    played(short())


def test_an_engine_that_is_ready_stays_where_the_next_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file can be opened for it, which is no fault of the one that is ready."""

    async def full() -> None:
        said: list[str] = []
        model = PlayedModel()
        version = played_version("1", model, engines=2)
        version.pool._say = said.append
        starting = asyncio.ensure_future(version.start())
        version.pool._behind = True
        first = model.engine(1e-3)
        engine = await first

        def none() -> None:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(version.pool, "_fork", none)
        await starting
        await turns()
        assert version.pool.num_ready == 1
        assert "Too many open files; it is tried again" in said[0]
        await version.close()
        engine.channel.close()
        model.close()

    played(full())


def test_requests_that_name_no_version_are_shared() -> None:
    async def shared() -> None:
        async with Trial() as trial:
            items = [trial.asked() for _ in range(8)]
            for engine in (trial.old, trial.new):
                assert await engine.samples() == [4]
                engine.done()
            await turns()
            assert [item.answered_by for item in items] == ["1", "2"] * 4

    played(shared())


def test_what_a_trial_says_ends_in_an_outcome() -> None:
    """A change that nothing disturbs takes place."""

    async def undisturbed() -> None:
        async with Trial(0.01) as trial:
            outcome: SwapOutcome = await trial.swapping
            assert (outcome.version, outcome.changed) == ("2", True)
            with pytest.raises(RequestRefused, match="served as version 2, not 1"):
                trial.asked("1")

    played(undisturbed())
