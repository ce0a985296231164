"""The pick against every pace of small networks; what is refused says why; reports and their foldings."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.pareto import no_worse
from stoker.core.texts import to_json
from stoker.deploy.search.families import Dataflow, DataflowDesign, SearchedPackage, SolvedDesign
from stoker.deploy.search.model import DeviceDemand, EstimatedDesign, model_of
from stoker.deploy.search.report import engine_of, foldings_of, misses, read_pick, report_of
from stoker.deploy.search.searching import DesignLimits, check_clock, search
from stoker.deploy.search.solving import order_of
from stoker.deploy.tools.devices import Fpga, fpga
from stoker.records.deploy.search import SearchReport
from stoker.ui.deploy.search_html import render_search_page
from stoker.ui.deploy.search_plots import draw_designs
from stoker.ui.deploy.search_text import render_search
from tests.deploy.rtl.nets import any_net, residual_digits
from tests.deploy.search.unplaced import unplaced_model
from tests.ui.drawn import labels_of, lines_of

SMALL = fpga("ecp5-25k")
MODEL = model_of(SMALL)


@cache
def family(seed: int, loss_frac: float | None = None) -> Dataflow:
    """A random network, its solved designs kept from example to example."""
    return Dataflow(SearchedPackage(name=f"net{seed}", digest=f"{seed}", graph=any_net(seed), loss_frac=loss_frac),
                    SMALL, MODEL)  # fmt: skip


@cache
def digits() -> Dataflow:
    return Dataflow(SearchedPackage(name="digits", digest="d", graph=residual_digits()), SMALL, MODEL)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 5), st.floats(2.0, 7.0), st.floats(-6.0, -2.0))
def test_the_pick_is_the_least_of_all_paces_that_keep_the_limits(seed: int, rate: float, latency: float) -> None:
    wanted = DesignLimits(rate_per_s=10**rate, latency_s=10**latency)
    own = family(seed)
    found = search([own], wanted)
    every = [own.design(pace) for pace in own.paces()]
    fits = [each for each in every if each.share <= 1 and wanted.slowness(each) <= 1]
    assert (found.pick is not None) == bool(fits)
    if found.pick is None:
        least = min(max(each.share, wanted.slowness(each)) for each in every)
        assert found.nearest.excess == pytest.approx(least, rel=0.02)  # foldings change lanes of other units a little
        assert list(misses(found.nearest, wanted, SMALL))
    else:
        assert found.pick.design.share <= min(each.share for each in fits) * 1.02


@settings(deadline=None, max_examples=6)
@given(st.integers(0, 5))
def test_without_a_limit_of_speed_the_fastest_that_fits_is_picked(seed: int) -> None:
    own = family(seed)
    found = search([own], DesignLimits())
    fits = [each for each in map(own.design, own.paces()) if each.share <= 1]
    assert found.pick is not None
    assert found.pick.design.interval == pytest.approx(min(each.interval for each in fits), rel=0.02)
    figures = [(each.design.interval, each.design.latency, each.design.share) for each in found.front]
    assert not any(no_worse(one, other) for one in figures for other in figures if one != other)


def test_a_package_that_loses_too_much_is_left_for_one_that_does_not() -> None:
    lossy, sound = family(1, 0.03), family(2, 0.001)
    found = search([lossy, sound], DesignLimits(loss_frac=0.005))
    assert found.pick is not None
    assert found.pick.family is sound
    report = report_of(found, DesignLimits(loss_frac=0.005), SMALL)
    assert "a loss of 3.00 %, at most 0.50 % allowed" in report.families[0].why
    assert report.families[1].why == ""
    none = search([lossy], DesignLimits(loss_frac=0.0))
    assert none.pick is None


def test_what_is_too_much_is_named_by_resource_with_the_nearest_design(tmp_path: Path) -> None:
    wanted = DesignLimits(rate_per_s=900_000.0)
    report = report_of(search([digits()], wanted), wanted, SMALL)
    assert report.pick is None
    assert report.nearest is not None
    said = "; ".join(report.misses)
    assert "of 28 DSPs:" in said
    assert "too many" in said
    assert "of 900,000 samples/s" in said
    text, page = render_search(report), render_search_page(report)
    for words in ("Nothing keeps the limits on ecp5-25k", "too many"):
        assert words in text
        assert words in page
    path = tmp_path / "search.json"
    path.write_bytes(to_json(report))
    with pytest.raises(ValueError, match="must have a pick, and nothing kept its limits"):
        read_pick(path, "d")


def test_a_report_is_read_again_by_its_package_alone(tmp_path: Path) -> None:
    wanted = DesignLimits(rate_per_s=5000.0)
    found = search([digits()], wanted)
    report = report_of(found, wanted, SMALL)
    path = tmp_path / "search.json"
    path.write_bytes(to_json(report))
    assert msgspec.json.decode(path.read_bytes(), type=SearchReport) == report
    assert found.pick is not None
    assert isinstance(found.pick.design, DataflowDesign)
    assert foldings_of(read_pick(path, "d")) == dict(found.pick.design.foldings)
    assert engine_of(read_pick(path, "d")) is None
    with pytest.raises(ValueError, match=r"must be of this package, and its pick is of `digits`"):
        read_pick(path, "another")
    path.write_text("{}")
    with pytest.raises(ValueError, match="must be a report of a search"):
        read_pick(path, "d")
    text, page = render_search(report), render_search_page(report)
    for words in ("sets the pace", "combinations of foldings as fast", "line buffer"):
        assert words in page
        assert words in text or words == "line buffer"


@pytest.mark.parametrize("rate", [300.0, 3000.0, 8000.0, 900_000.0, 0.0])
def test_no_label_of_the_plot_crosses_a_line_or_another(rate: float) -> None:
    wanted = DesignLimits(rate_per_s=rate)
    drawing = draw_designs(report_of(search([digits()], wanted), wanted, SMALL))
    labels = labels_of(drawing)
    assert set(labels) >= {"ecp5-25k", "nearest" if rate == 900_000.0 else "pick"}
    assert ("rate" in labels) == bool(rate)
    lines = [*lines_of(drawing, "limit"), *lines_of(drawing, "stairs")]
    assert len(lines) > 2
    assert not [name for name, room in labels.items() if any(map(room.meets, lines))]
    assert not [pair for pair in itertools.combinations(labels, 2) if labels[pair[0]].meets(labels[pair[1]])]


def test_without_a_clock_times_are_cycles_and_with_a_stated_one_seconds() -> None:
    part, package = fpga("xc7a35t"), SearchedPackage(name="net", digest="d", graph=any_net(1))
    model = unplaced_model()
    in_cycles = search([Dataflow(package, part, model)], DesignLimits())
    report = report_of(in_cycles, DesignLimits(), part)
    pick = report.pick
    assert pick is not None
    assert (pick.clock_mhz, pick.rate_per_s, pick.latency_s) == (None, None, None)
    assert report.notes == ("designs for xc7a35t are synthesised, not placed: no clock; times are in cycles",)
    text, page = render_search(report), render_search_page(report)
    for words in ("synthesised, not placed: no clock", f"{pick.cycles:,} cycles between samples", "cycles a sample"):
        assert words in text
        assert words in page
    assert "MHz" not in text
    assert "samples/s" not in text

    # At a stated clock the same designs are found, for a limit that is the same number of cycles.
    slow = in_cycles.front[-1].design
    wanted = DesignLimits(latency_s=slow.latency_cycles / 50e6, rate_per_s=50e6 / slow.cycles)
    stated = report_of(search([Dataflow(package, part, model.at(50.0))], wanted), wanted, part, clock_mhz=50.0)
    assert stated.pick is not None
    assert stated.pick.cycles == slow.cycles
    assert stated.pick.latency_s == pytest.approx(slow.latency_cycles / 50e6)
    for words in ("50 MHz are stated, and no tool checks them", "xc7a35t at 50 MHz", "50 MHz as stated"):
        assert words in render_search(stated)


@dataclass(frozen=True)
class Listed:
    """A family whose designs are given: cycles, latency and what each takes; lookup tables are a part's 24,288."""

    name: str
    designs: Mapping[int, DeviceDemand]
    clock_mhz: float | None = 100.0
    part: Fpga = SMALL
    structure: str = "dataflow"
    weights: str = ""
    requantiser: str = "shifts"
    obtained: str = "as given"

    @property
    def package(self) -> SearchedPackage:
        return SearchedPackage(name=self.name, digest="d", graph=any_net(1))

    def paces(self) -> Sequence[int]:
        return sorted(self.designs)

    def design(self, cycles: int) -> SolvedDesign:
        demand = self.designs[cycles]
        return SolvedDesign(
            cycles=cycles, latency_cycles=cycles, multipliers=demand.dsps, order=order_of(demand, self.part),
            estimate=EstimatedDesign(demand=demand, clock_mhz=self.clock_mhz),
        )  # fmt: skip


def taking(luts: float, dsps: float) -> DeviceDemand:
    """Percents of lookup tables and multipliers of the part."""
    return DeviceDemand(luts=luts * SMALL.luts / 100, dsps=round(dsps * SMALL.dsps / 100))


def chosen_of(wanted: DesignLimits, *families: Listed) -> tuple[str, list[str]]:
    """The family of the pick or of the nearest, and what is said of all."""
    found = search(families, wanted)
    return found.nearest.family.package.name, [each.why for each in report_of(found, wanted, SMALL).families]


PACED, FASTEST = DesignLimits(rate_per_s=1.0), DesignLimits()


@pytest.mark.parametrize("wanted", [PACED, FASTEST])
def test_families_within_a_thousandth_are_equal_and_the_sum_of_shares_decides(wanted: DesignLimits) -> None:
    memories, both = Listed("memories", {64: taking(30.0, 25.0)}), Listed("any", {64: taking(30.02, 0.0)})
    said = "takes 55 % with all shares of the device added where the pick takes 30 %"
    assert chosen_of(wanted, memories, both) == ("any", [said, ""])
    assert chosen_of(wanted, both, memories) == ("any", ["", said])
    # Above the thousandth the largest share decides, and is written apart.
    above = Listed("any", {64: taking(30.2, 0.0)})
    said = "takes 30.2 % of the device where the pick takes 30.0 %"
    assert chosen_of(wanted, memories, above) == ("memories", ["", said])


def test_a_thousandth_is_of_the_least_share_and_does_not_add_up() -> None:
    """The third is within a thousandth of the second, and not of the first: its sum does not count."""
    families = [
        Listed(name, {64: taking(*each)})
        for name, each in (("first", (30.0, 25.0)), ("second", (30.02, 14.0)), ("third", (30.04, 0.0)))
    ]
    for order in itertools.permutations(families):
        picked, said = chosen_of(PACED, *order)
        assert picked == "second"
        assert said[order.index(families[2])] == "takes 30.04 % of the device where the pick takes 30.02 %"


def test_paces_within_a_thousandth_are_equal() -> None:
    family = Listed("net", {64: taking(30.02, 0.0), 128: taking(30.0, 25.0)})
    assert search([family], PACED).nearest.design.cycles == 64


def test_misses_within_a_thousandth_are_equal_but_limits_are_kept_exactly() -> None:
    over, more = Listed("over", {64: taking(200.02, 50.0)}), Listed("more", {64: taking(200.0, 75.0)})
    assert chosen_of(PACED, more, over)[0] == "over"
    fits, misses_it = Listed("fits", {64: taking(99.99, 96.0)}), Listed("misses", {64: taking(100.01, 0.0)})
    assert chosen_of(PACED, misses_it, fits)[0] == "fits"


def test_a_family_as_good_is_told_by_what_differs() -> None:
    """Shares where the intervals are equal, intervals to the digit that differs, or nothing."""
    one, other = Listed("one", {128: taking(30.0, 0.0)}, None), Listed("other", {128: taking(40.0, 0.0)}, None)
    assert chosen_of(FASTEST, one, other)[1] == ["", "takes 40 % of the device where the pick takes 30 %"]
    assert chosen_of(FASTEST, one, one)[1] == ["", "no better than the pick"]
    slower = Listed("slower", {129: taking(10.0, 0.0)}, None)
    assert chosen_of(FASTEST, one, slower)[1][1] == "takes 129 cycles a sample at least where the pick takes 128"
    fast, near = Listed("fast", {10**8: taking(30.0, 0.0)}), Listed("near", {10**8 + 10**6: taking(10.0, 0.0)})
    assert chosen_of(FASTEST, fast, near)[1][1] == "gives 0.99 samples/s at most where the pick gives 1.00"


@pytest.mark.parametrize(
    ("device", "limits", "clock", "said"),
    [
        ("xc7a35t", {"latency_s": 40e-6}, None, "`latency` is in seconds and needs a clock.*such as `--clock 100MHz`"),
        ("xc7a35t", {"rate_per_s": 20e3}, None, "`rate` is in seconds and needs a clock.*not placed: no clock"),
        ("ecp5-45k", {"rate_per_s": 20e3}, 100.0, "`clock` must be left out for ecp5-45k.*got 100 MHz"),
        ("xc7a35t", {"rate_per_s": 20e3}, 100.0, ""),
        ("xc7a35t", {"loss_frac": 0.1}, None, ""),
        ("ecp5-45k", {"rate_per_s": 20e3}, None, ""),
    ],
)
def test_seconds_need_a_clock_that_is_known_or_stated(
    device: str, limits: dict[str, float], clock: float | None, said: str
) -> None:
    given = fpga(device), DesignLimits(**limits), clock
    if not said:
        check_clock(*given)
        return
    with pytest.raises(ValueError, match=said):
        check_clock(*given)


@pytest.mark.parametrize(
    ("given", "said"),
    [({"latency_s": 0.0}, "`latency` must be positive, got 0.0"), ({"rate_per_s": -1.0}, "`rate_per_s` must be")],
)
def test_limits_are_checked(given: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DesignLimits(**given)
