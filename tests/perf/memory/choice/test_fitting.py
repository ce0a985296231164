"""Plans on real traces: peaks of the same module traced with the measures carried out, and properties of any budget."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import Tensor, nn

from stoker.core.patching import Patches
from stoker.perf.communication.times import PassTimes
from stoker.perf.features.lifetimes import BufferLife, MemoryTimeline
from stoker.perf.features.records import StepFeatures
from stoker.perf.features.step import trace
from stoker.perf.memory.choice.fitting import FitPlanner, FitQuestion, plan_fit, taken_of
from stoker.perf.memory.choice.options import Options, why_not_used_up, with_options
from stoker.perf.memory.choice.units import ModuleUnit, nested_units, repeated
from stoker.perf.memory.timeline import by_category, by_line, by_module, step_peak, with_lives, with_seconds
from stoker.records.fitting import FitPlan, Keeps, TracedModel
from stoker.train.fitting.recomputing import recompute


class Block(nn.Module):
    """A residual block with two parts of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.GELU())
        self.second = nn.Sequential(nn.Linear(3 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))


def net() -> nn.Sequential:
    return nn.Sequential(*[Block(32) for _ in range(5)], nn.Linear(32, 200))


def traced(model: nn.Module) -> tuple[StepFeatures, MemoryTimeline]:
    """A step of the model itself, not of a copy, with states that are there already."""
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(2, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

    def step(x: Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()  # gradients stay to the end, as where a program is traced

    features, timeline = trace(step, torch.empty(256, 32), target="cpu")
    return features, with_seconds(timeline, features, PassTimes.shared(features, 1.0, 2.0, 0.1))


PLAIN = traced(net())
MODEL = TracedModel(model="Sequential", num_parameters=1, optimizers=("AdamW",))


def everywhere(units: tuple[ModuleUnit, ...]) -> dict[str, ModuleUnit]:
    found = {unit.path: unit for unit in units}
    for unit in units:
        found |= everywhere(unit.children)
    return found


UNITS = everywhere(nested_units(PLAIN[1]))


def question(budget: int, model: TracedModel = MODEL) -> FitQuestion:
    return FitQuestion(
        name="net", features=PLAIN[0], timeline=PLAIN[1], model=model, budget=budget, device="emulated", emulated=True
    )


def carried_out(chosen: dict[str, Keeps]) -> int:
    """The peak of the module traced in the form of a choice."""
    model = net()
    modules = dict(model.named_modules())
    with Patches("test") as patches:
        for path, keeps in chosen.items():
            recompute(modules[path], keeps, patches)
        return step_peak(traced(model)[1]).bytes


def test_units_are_nested_as_the_modules_are() -> None:
    outer = nested_units(PLAIN[1])
    assert [unit.path for unit in outer][:5] == ["0", "1", "2", "3", "4"]
    assert {"0.first", "0.second"} <= {child.path for child in outer[0].children}
    assert "0" not in everywhere(nested_units(PLAIN[1], {"0"}))
    assert "0.first" in everywhere(nested_units(PLAIN[1], {"0"})), "what is inside may be repeated"


CHOICES: list[dict[str, Keeps]] = [
    {"0": "nothing"}, {"2": "products"}, {"0": "nothing", "1": "products", "3": "nothing"}, {"1.first": "nothing"},
    {"0.first": "nothing", "0.second": "nothing", "2": "products"}, {str(place): "nothing" for place in range(5)},
    {str(place): "products" for place in range(5)},
]  # fmt: skip


@pytest.mark.parametrize("chosen", CHOICES)
def test_a_repeated_timeline_has_the_peak_of_the_trace(chosen: dict[str, Keeps]) -> None:
    changed, seconds = repeated(PLAIN[1], [(UNITS[path], keeps) for path, keeps in chosen.items()])
    assert step_peak(changed).bytes == pytest.approx(carried_out(chosen), rel=0.01)
    assert seconds > 0
    assert seconds <= sum(UNITS[path].seconds for path in chosen)


@given(
    chosen=st.dictionaries(
        st.sampled_from([str(place) for place in range(5)]), st.sampled_from(("nothing", "products"))
    )
)
def test_a_remedy_changes_nothing_of_what_is_computed(chosen: dict[str, Keeps]) -> None:
    plain = PLAIN[1]
    changed, _ = repeated(plain, [(UNITS[path], keeps) for path, keeps in chosen.items()])
    assert [replace(call, at=0) for call in changed.calls] == [replace(call, at=0) for call in plain.calls]
    assert all(first.at <= second.at for first, second in itertools.pairwise(changed.calls))
    for before, after in zip(plain.buffers, changed.buffers, strict=False):
        assert replace(after, birth=0, death=0) == replace(before, birth=0, death=0)
        assert after.birth <= after.death
    again = changed.buffers[len(plain.buffers) :]
    assert all(one.phase == "forward" and one.category in ("activations", "temporaries") for one in again)
    peak = step_peak(changed)
    for sums in (by_category, by_module, by_line):
        assert sum(sums(changed, peak).values()) == peak.bytes


def test_what_an_exchange_frees_at_a_backward_pass_is_gone_when_the_forward_pass_is_repeated() -> None:
    start = UNITS["0"].passes[0].backward[0]
    assert any(each.birth == start for each in PLAIN[1].buffers), "no free of the program has this event"
    life = BufferLife(1000, start - 3, start, -1, "temporaries", "backward", "(exchange)", "")
    changed, _ = repeated(with_lives(PLAIN[1], [life]), [(UNITS["0"], "nothing")])
    (found,) = (each for each in changed.buffers if each.module == "(exchange)")
    assert (found.birth, found.death) == (life.birth, life.death)


def plain_peak() -> int:
    return taken_of(PLAIN[1], emulated=True, expandable=False)


@given(share=st.floats(0.2, 1.1), more=st.floats(0.0, 0.5))
def test_more_budget_is_never_slower(share: float, more: float) -> None:
    first, second = (plan_fit(question(int(part * plain_peak()))) for part in (share, share + more))
    if first.fits:
        assert second.fits
        assert first.step_s is not None
        assert second.step_s is not None
        assert second.step_s <= first.step_s + 1e-9
        assert first.peak_bytes <= first.budget_bytes


def test_what_fits_is_left_alone_and_what_cannot_fit_says_what_lacks() -> None:
    assert not plan_fit(question(plain_peak())).measures
    plan = plan_fit(question(1000))
    for each in plan.rejected:
        if each.peak_bytes is not None and each.peak_bytes >= plain_peak():
            assert each.reason.startswith(("it saves nothing", "it raises the peak"))
    assert not plan.fits
    assert not plan.changes
    assert plan.lacks_bytes == plan.peak_bytes - 1000
    assert plan.peak_bytes < 0.7 * plain_peak(), "the nearest miss"


def kinds(plan: FitPlan) -> set[str]:
    return {measure.kind for measure in plan.measures}


def test_gradients_are_used_up_only_where_nobody_asks_for_them() -> None:
    budget = int(0.6 * plain_peak())
    free = plan_fit(question(budget))
    assert "used_up" in kinds(plan_fit(question(1000)))
    for model, word in (
        (replace(MODEL, gradients_read="train.py:3 asks for gradients"), "asks for gradients"),
        (replace(MODEL, optimizers=("AdamW", "SGD")), "several optimizers"),
        (replace(MODEL, optimizers=("LBFGS",)), "several parameters"),
    ):
        plan = plan_fit(question(1000, model))
        assert "used_up" not in kinds(plan)
        assert any(word in each.reason for each in plan.rejected)
        assert word in why_not_used_up(PLAIN[0], PLAIN[1], model)
    assert free.fits


def test_clipping_and_accumulation_are_seen_in_the_trace() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())

    def clipped(x: Tensor) -> None:
        model(x).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def twice(x: Tensor) -> None:
        for part in x.chunk(2):
            model(part).sum().backward()
        optimizer.step()

    for step, word in ((clipped, "reads them before"), (twice, "several backward passes")):
        model.zero_grad()
        features, timeline = trace(step, torch.empty(64, 32), target="cpu")
        assert word in why_not_used_up(features, timeline, MODEL)


def test_used_up_gradients_leave_the_peak() -> None:
    weights = PLAIN[0].weights.bytes
    changed, seconds = with_options(PLAIN[1], Options(used_up=True))
    assert seconds > 0
    assert step_peak(changed).bytes <= step_peak(PLAIN[1]).bytes
    largest = max(one.bytes for one in changed.buffers if one.category == "gradients")
    assert by_category(changed, step_peak(changed)).get("gradients", 0) <= largest < weights


def test_a_compiled_model_is_not_repeated() -> None:
    plan = plan_fit(question(1000, replace(MODEL, compiled=True)))
    assert "recompute" not in kinds(plan)
    assert any("compiles" in each.reason for each in plan.rejected)


def test_modules_that_must_stay_are_named() -> None:
    kept = {"0": "its forward pass writes `calls`"}
    plan = plan_fit(question(int(0.55 * plain_peak()), replace(MODEL, kept_as_is=kept)))
    assert all("0" not in measure.paths for measure in plan.measures)
    assert any("`0`" in each.name and "writes `calls`" in each.reason for each in plan.rejected)


def activations() -> nn.Sequential:
    """Activations that are modules by themselves: repeated, each keeps the product that it reads."""
    return nn.Sequential(*[each for _ in range(5) for each in (nn.Linear(32, 32), nn.ReLU())])


def test_what_saves_nothing_is_no_candidate_and_is_rejected_with_the_reason() -> None:
    features, timeline = traced(activations())
    plain = step_peak(timeline).bytes
    asked = FitQuestion(
        name="net", features=features, timeline=timeline, model=MODEL, budget=int(0.9 * plain), device="emulated",
        emulated=True, barred={"used_up": "asked for", "one_by_one": "asked for"},
    )  # fmt: skip
    plan = plan_fit(asked)
    assert (plan.measures, plan.peak_bytes) == ((), plain), "repeating any of them saves nothing"
    (every,) = (each for each in plan.rejected if each.name == "every outermost module recomputed")
    assert every.peak_bytes is not None
    assert every.peak_bytes > 1.2 * plain
    assert every.reason.startswith("it raises the peak: ")
    assert all("recomputation" not in each.name for each in plan.rejected)

    model = activations()
    with Patches("test") as patches:
        for module in model:
            if isinstance(module, nn.ReLU):
                recompute(module, "nothing", patches)
        assert every.peak_bytes == pytest.approx(step_peak(traced(model)[1]).bytes, rel=0.001), "as it is predicted"


def test_segments_grow_only_where_that_reserves_less() -> None:
    on_gpu = dataclasses.replace(question(1000), emulated=False)
    plain, grown = (FitPlanner(on_gpu).taken(PLAIN[1], expandable=each) for each in (False, True))
    plan = plan_fit(on_gpu)
    assert ("expandable" in kinds(plan)) is (grown < plain)
    refused = [each for each in plan.rejected if each.name == "expandable segments"]
    assert bool(refused) is (grown >= plain)
