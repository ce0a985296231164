"""Versions of a model: each form timed where there are several, the best one started."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stoker.core.errors import ConfigError, ServingError
from stoker.core.units import format_seconds
from stoker.run.serving.fetching import FoundSource, found_source
from stoker.run.serving.sources import ModelForm, chosen_forms
from stoker.run.serving.template import ModelTemplate
from stoker.scale.serving import CostCurve, ServingQueue, ServingRules
from stoker.serve.figures import ModelFigures
from stoker.serve.models.version import Costs, ModelVersion, VersionSettings


@dataclass(frozen=True, kw_only=True)
class StartPlan:
    """How versions of a model are started.

    Attributes:
        engine: ``auto`` or the name of one.
        rules: what requests are promised.
        version: its engines and bounds.
        threads: of an engine.
    """

    engine: str
    rules: ServingRules
    version: VersionSettings
    threads: int


class SourcedVersion(ModelVersion):
    """A version whose files stay as long as it does: a process that loads it again finds them."""

    source: FoundSource | None = None

    async def close(self, *, at_once: bool = True) -> None:
        """As every version's; lets go of its files as well."""
        await super().close(at_once=at_once)
        if self.source is not None:
            await self.source.close()


class Starter:
    """Starts versions of one model.

    Args:
        name: of the model.
        plan: how.
        template: that their processes are forked from.
        figures: told what versions do.
        say: shows a line to people.
    """

    def __init__(
        self, name: str, plan: StartPlan, template: ModelTemplate, figures: ModelFigures, say: Callable[[str], None]
    ) -> None:
        self._name = name
        self._plan = plan
        self._template = template
        self._figures = figures
        self._say = say
        self._serves = False

    async def version(self, source: str, label: str) -> ModelVersion:
        """A version that is warm.

        Raises:
            ServingError: it cannot be fetched, or none of its forms loads.
        """
        try:
            found = await found_source(source, self._plan.threads, behind=self._serves)
        except ConfigError as error:
            raise ServingError(str(error.args[0])) from None
        try:
            forms = chosen_forms(found.forms, self._plan.engine)
            form = forms[0] if len(forms) == 1 else await self._fastest(forms)
            version = await self._start(form, label, self._plan.version)
        except BaseException as error:
            await found.close()
            if isinstance(error, ConfigError):
                raise ServingError(str(error.args[0])) from None
            raise
        version.source = found
        self._serves = True
        return version

    async def _start(self, form: ModelForm, label: str, settings: VersionSettings) -> SourcedVersion:
        version = self._version(form, label, settings)
        try:
            ready = await version.start()
        except BaseException:
            await version.close()
            raise
        rate, batch = capacity(ready.costs, self._plan.rules, settings.pool.engines)
        self._say(
            f"`{self._name}` version {label}: {form.text} on {form.engine}, {settings.pool.engines} engines of "
            f"{form.threads} threads, {format_seconds(ready.costs[0][1])} for one sample, "
            f"at best {rate:,.0f} samples/s" + ("" if ready.interface.alone else f" in batches of {batch}")
        )
        if alone := ready.interface.alone:
            self._say(f"`{self._name}` version {label}: {alone}; requests run one at a time")
        if warning := broken_promise(ready.costs, self._plan.rules):
            self._say(f"`{self._name}`: {warning}")
        return version

    def _version(self, form: ModelForm, label: str, settings: VersionSettings) -> SourcedVersion:
        subject = f"`{self._name}` version {label}" if label != self._name else f"`{self._name}` on {form.engine}"
        return SourcedVersion(
            label, functools.partial(self._template.start, form), settings, self._policy, self._figures, self._say,
            behind=self._serves, subject=subject,
        )  # fmt: skip

    def _policy(self, costs: Costs, engines: int) -> ServingQueue:
        return ServingQueue(self._plan.rules, CostCurve(tuple(costs)), engines)

    async def _fastest(self, forms: Sequence[ModelForm]) -> ModelForm:
        """The form with the highest rate within the promise; what was measured is shown."""
        alone = replace(self._plan.version, pool=replace(self._plan.version.pool, engines=1))
        found: list[tuple[float, ModelForm]] = []
        for form in forms:
            version = self._version(form, self._name, alone)
            try:
                ready = await version.start()
                rate, batch = capacity(ready.costs, self._plan.rules, 1)
                found.append((rate, form))
                costs = ", ".join(f"{samples}: {format_seconds(seconds)}" for samples, seconds in ready.costs)
                self._say(f"`{self._name}` on {form.engine}: {rate:,.0f} samples/s in batches of {batch} ({costs})")
            except ServingError as error:
                self._say(str(error.args[0]))
            finally:
                await version.close()
        if not found:
            raise ServingError(f"`{self._name}` must load in one of its forms; none does")
        found.sort(key=lambda each: -each[0])
        self._say(f"`{self._name}`: {found[0][1].engine}, which computes the most samples a second")
        return found[0][1]


def broken_promise(costs: Costs, rules: ServingRules) -> str:
    """Why nearly no request will be answered in time, in words; empty where that is not so."""
    one_s = CostCurve(tuple(costs)).seconds(1)
    if one_s <= rules.margin_frac * rules.slo_s:
        return ""
    return (
        f"one sample takes {format_seconds(one_s)}, --slo is {format_seconds(rules.slo_s)}: nearly every request will "
        "be refused"
    )


def capacity(costs: Costs, rules: ServingRules, engines: int) -> tuple[float, int]:
    """Samples a second that engines compute at most, and the batch at which they do."""
    curve = CostCurve(tuple(costs))
    batch = ServingQueue(rules, curve, engines).batch
    return engines * batch / curve.seconds(batch), batch
